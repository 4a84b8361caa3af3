"""vLLM's OpenAI-compatible server on this machine, which reads the adapters that it is told to load from its disk."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx2

from marft.engines.vllm.editions import Edition
from marft.engines.vllm.engine import Said
from marft.models.team import TeamModel
from marft.types import MarftError, Request, SpeechError

PATIENCE = httpx2.Timeout(None, connect=10.0)  # seconds; an answer takes as long as it takes
CERTAIN = -1e-6  # log-prob of the only choice, up to rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What runs at a URL: the base model's name there, and the most tokens of a sequence."""

    url: str  # without /v1
    model: str
    longest: int


def find(url: str) -> Served:
    """The server at `url`, which must answer, and give log-probs of the distribution it draws from."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        with httpx2.Client(timeout=60.0, trust_env=False) as client:
            listed = client.get(f"{base}/v1/models").raise_for_status().json()
            card = next(one for one in listed["data"] if not one.get("parent"))
            served = Served(url=base, model=card["id"], longest=int(card["max_model_len"]))
            only = {"model": served.model, "prompt": [1], "max_tokens": 1, "temperature": 1.0, "top_k": 1, **ALWAYS}
            answer = client.post(f"{base}/v1/completions", json=only).raise_for_status().json()
            [logprob] = read(answer, ()).logprobs
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise MarftError(f"engine.url: no vLLM server answers at {url} ({reason}); start one with vllm serve") from None
    except (StopIteration, LookupError, ValueError, TypeError):
        raise MarftError(f"engine.url: what answers at {url} is no vLLM server of a known version") from None
    if logprob < CERTAIN:
        raise MarftError(
            f"engine.url: the server at {url} gives log-probs before temperature, top_k and top_p; start it with "
            "--logprobs-mode processed_logprobs"
        )
    return served


# said in every request: the server may have defaults of its own, which the model's files bring along
ALWAYS = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,  # a turn ends at stop_token_ids
    "logprobs": 0,  # of the drawn tokens alone
    "return_token_ids": True,
}


class Server:
    """The backend behind a URL. As many requests as `slots` are under way at once."""

    def __init__(self, team: TeamModel, served: Served, *, slots: int) -> None:
        self.served, self.slots = served, slots
        self.longest = served.longest
        self.ends = sorted(team.end_ids)
        self.adapters, self.rank = (
            len(team.agents),
            max([team.lora.specs[name].rank for name in team.agents], default=0),
        )
        self.clients: dict[asyncio.AbstractEventLoop, tuple[httpx2.AsyncClient, AsyncGenerator[None]]] = {}
        self.loaded: list[str] = []
        self.unwanted: list[str] = []  # of these
        weakref.finalize(self, leave, served.url, self.loaded)

    async def load(self, edition: Edition) -> None:
        body = {"lora_name": edition.name, "lora_path": str(edition.folder)}
        answer = await self._post("/v1/load_lora_adapter", body)
        if answer.status_code != 200:
            raise MarftError(
                f"engine.url: {self.served.url} cannot load adapters ({complaint(answer)}); start it on this machine with "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora, --max-loras {self.adapters + 1} and --max-lora-rank "
                f"{self.rank} or more"
            )
        self.loaded.append(edition.name)

    async def drop(self, edition: Edition) -> None:
        """What it does not let go of now is tried again with the next."""
        self.unwanted.append(edition.name)
        refused = None
        for name in list(self.unwanted):
            answer = await self._post("/v1/unload_lora_adapter", {"lora_name": name})
            if answer.status_code not in (200, 404):  # 404: it has none of this name
                refused = answer
                continue
            for names in (self.unwanted, self.loaded):
                if name in names:  # two may have asked at once
                    names.remove(name)
        if refused is not None:
            raise SpeechError(f"vLLM at {self.served.url} answers {refused.status_code}: {complaint(refused)}")

    async def complete(self, request: Request, edition: Edition | None, limit: int) -> Said:
        sampling = request.sampling
        body = {
            "model": self.served.model if edition is None else edition.name,
            "prompt": list(request.prompt_ids),
            "max_tokens": limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": request.seed,
            "stop": list(sampling.stop),
            "stop_token_ids": self.ends,
            **ALWAYS,
        }
        answer = await self._post("/v1/completions", body)
        if answer.status_code != 200:
            raise SpeechError(f"vLLM at {self.served.url} answers {answer.status_code}: {complaint(answer)}")
        try:
            return read(answer.json(), sampling.stop)
        except (LookupError, ValueError, TypeError) as error:
            raise SpeechError(f"vLLM at {self.served.url} gives no whole answer: {type(error).__name__}") from None

    async def _post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        client = await self._client()
        try:
            return await client.post(f"{self.served.url}{path}", json=body)
        except httpx2.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise SpeechError(f"vLLM at {self.served.url} is away: {reason}") from None

    async def _client(self) -> httpx2.AsyncClient:
        """Connections belong to an event loop and end with it."""
        loop = asyncio.get_running_loop()
        if loop not in self.clients:
            limits = httpx2.Limits(max_connections=self.slots, max_keepalive_connections=self.slots)
            client = httpx2.AsyncClient(timeout=PATIENCE, limits=limits, trust_env=False)
            keeper = self._keep(loop, client)
            self.clients[loop] = client, keeper
            await anext(keeper)
        return self.clients[loop][0]

    async def _keep(self, loop: asyncio.AbstractEventLoop, client: httpx2.AsyncClient) -> AsyncGenerator[None]:
        """At its end `asyncio.run` closes the generators that are still open: the last moment to close connections."""
        try:
            yield
        finally:
            del self.clients[loop]
            await client.aclose()


def read(answer: Any, stop: tuple[str, ...]) -> Said:
    choice = answer["choices"][0]
    ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    if choice["finish_reason"] not in ("stop", "length") or not ids or len(ids) != len(logprobs):
        raise ValueError(choice["finish_reason"])
    reason = choice.get("stop_reason")
    return Said(
        token_ids=tuple(int(token) for token in ids),
        logprobs=tuple(float(logprob) for logprob in logprobs),
        stop=reason if isinstance(reason, str) and reason in stop else None,
    )


def complaint(answer: httpx2.Response) -> str:
    try:
        text = answer.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        text = answer.text
    return " ".join(str(text).split())[:200]


def leave(url: str, loaded: list[str]) -> None:
    """Take our adapters off a server that goes on without us."""
    try:
        with httpx2.Client(timeout=2.0, trust_env=False) as client:
            for name in loaded:
                client.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": name})
    except httpx2.HTTPError:
        pass  # it has gone too
