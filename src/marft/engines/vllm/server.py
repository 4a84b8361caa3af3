"""vLLM's OpenAI-compatible server on this machine, which reads the adapters that it is told to load from its disk.

What answers may be anything: an answer has a limit of time and of size, and what is not as vLLM says it is one line.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2

from marft.engines.checked import ROUNDING
from marft.engines.connections import (
    Connections,
    HttpAnswer,
    NoAnswerError,
    error_message,
    one_line,
    request_headers,
    send_request,
)
from marft.engines.secret import Secret
from marft.engines.vllm.adapter_versions import AdapterVersion
from marft.engines.vllm.engine import SampledTokens
from marft.models.team import TeamModel
from marft.types import MarftError, Request, SpeechError

KEY = "VLLM_API_KEY"  # where vLLM itself looks for the key
START = f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 {KEY}=… vllm serve MODEL --host 127.0.0.1"
CONNECT = 10.0  # seconds
PATIENCE = 1800.0  # for all of an answer, which waits its turn on a busy server
SHORT = 60.0  # before anything is loaded
LARGEST = 64 << 20  # bytes of an answer: of each token its id, text and log-prob
CERTAIN = -1e-6  # log-prob of the only choice, up to rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What runs at a URL: the base model's name there, and the most tokens of a sequence."""

    url: str  # without /v1
    model: str
    longest: int
    secret: Secret


def read_secret(url: str) -> Secret:
    """The key, if there is one. It goes to no other machine in clear text."""
    secret = Secret(KEY if os.environ.get(KEY, "").strip() else None, url, "engine.url")
    secret.scrub_logs("httpx2", "httpcore2.http11")
    address = httpx2.URL(url)
    if secret and address.scheme != "https" and not is_loopback(address.host):
        raise MarftError(
            f"engine.url: the key in {KEY} would go to {address.host} in clear text; give http://127.0.0.1:PORT, or https"
        )
    return secret


def is_loopback(host: str) -> bool:
    """Whether the host is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def describe_refusal(answer: HttpAnswer, secret: Secret) -> str:
    """Why a request was refused, in one line without the key."""
    if answer.status in (401, 403):
        return f"HTTP {answer.status}: it asks for another key; set {KEY} to the one it was started with"
    return f"HTTP {answer.status}: {one_line(secret.scrub(error_message(answer.body)))}"


# --- whether there is one ---------------------------------------------------------------------------------------------
def find_server(url: str) -> ServedModel:
    """The server at `url`, which must answer, and give log-probs of the distribution it draws from."""
    base = url.rstrip("/").removesuffix("/v1")
    secret = read_secret(base)
    try:
        with ThreadPoolExecutor(1) as other:  # in this thread, as in a notebook's, an event loop may be running
            served, logprob = other.submit(asyncio.run, probe(base, secret)).result()
    except NoAnswerError as error:
        reason = one_line(secret.scrub(str(error)))
        raise MarftError(
            f"engine.url: no vLLM server answers at {url} ({reason}); start one with {START}, and set {KEY} here too"
        ) from None
    except ValueError:
        raise MarftError(f"engine.url: what answers at {url} is no vLLM server of a known version") from None
    if not -math.inf < logprob <= ROUNDING:
        raise MarftError(f"engine.url: the server at {url} gives {logprob:g} for a log-prob, which no probability has")
    if logprob < CERTAIN:
        raise MarftError(
            f"engine.url: the server at {url} gives log-probs before temperature, top_k and top_p; start it with "
            "--logprobs-mode processed_logprobs"
        )
    return served


async def probe(base: str, secret: Secret) -> tuple[ServedModel, float]:
    """What is served, and the log-prob of a token that is the only choice."""
    async with httpx2.AsyncClient(timeout=SHORT, trust_env=False, headers=request_headers(secret)) as client:

        async def ask(method: str, path: str, body: object = None) -> bytes:
            answer = await send_request(client, method, f"{base}{path}", body, patience=SHORT, largest=LARGEST)
            if answer.status != 200:
                raise NoAnswerError(describe_refusal(answer, secret))
            return answer.body

        model, longest = read_model_card(await ask("GET", "/v1/models"))
        only = {"model": model, "prompt": [1], "max_tokens": 1, "temperature": 1.0, "top_k": 1, **ALWAYS}
        [logprob] = read_completion(await ask("POST", "/v1/completions", only), ()).logprobs
    return ServedModel(url=base, model=model, longest=longest, secret=secret), logprob


def read_model_card(body: bytes) -> tuple[str, int]:
    """The name of the base model, and the most tokens of a sequence."""
    match parse_json(body):
        case {"data": [*cards]}:
            for card in cards:
                match card:
                    case {"id": str(name), "max_model_len": int(longest)} if not card.get("parent") and longest > 0:
                        return name, longest
    raise ValueError("no base model")


def parse_json(body: bytes) -> Any:
    """JSON from a stranger: ValueError for whatever Python cannot read."""
    try:
        return json.loads(body, parse_int=parse_bounded_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_bounded_int(digits: str) -> int:
    """An integer of at most 20 digits."""
    if len(digits) > 20:
        raise ValueError("a number of more digits than any has")
    return int(digits)


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


# --- the backend ------------------------------------------------------------------------------------------------------
class Server:
    """The backend behind a URL. As many requests as `slots` are under way at once."""

    def __init__(self, team: TeamModel, served: ServedModel, *, slots: int) -> None:
        self.served, self.longest = served, served.longest
        self.ends = sorted(team.end_ids)
        self.adapters, self.rank = (
            len(team.agents),
            max([team.lora.specs[name].rank for name in team.agents], default=0),
        )
        self.connections = Connections(self._make_client, slots)
        self.loaded: list[str] = []
        self.unwanted: list[str] = []  # of these
        self._leave = weakref.finalize(self, unload_adapters, served, self.loaded)

    async def load(self, adapter_version: AdapterVersion) -> None:
        """Have the server load an adapter version from its folder."""
        body = {"lora_name": adapter_version.name, "lora_path": str(adapter_version.folder)}
        answer = await self._post("/v1/load_lora_adapter", body)
        if answer.status != 200:
            raise MarftError(
                f"engine.url: {self.served.url} cannot load adapters ({self._complaint(answer)}); start it on this machine "
                f"with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora, --max-loras {self.adapters + 1} and "
                f"--max-lora-rank {self.rank} or more"
            )
        self.loaded.append(adapter_version.name)

    async def drop(self, adapter_version: AdapterVersion) -> None:
        """What it does not let go of now is tried again with the next."""
        self.unwanted.append(adapter_version.name)
        refused = None
        for name in list(self.unwanted):
            answer = await self._post("/v1/unload_lora_adapter", {"lora_name": name})
            if answer.status not in (200, 404):  # 404: it has none of this name
                refused = answer
                continue
            for names in (self.unwanted, self.loaded):
                if name in names:  # two may have asked at once
                    names.remove(name)
        if refused is not None:
            raise SpeechError(f"vLLM at {self.served.url} answers {refused.status}: {self._complaint(refused)}")

    async def complete(self, request: Request, adapter_version: AdapterVersion | None, limit: int) -> SampledTokens:
        """The server's completion; SpeechError where it gives none."""
        sampling = request.sampling
        body = {
            "model": self.served.model if adapter_version is None else adapter_version.name,
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
        if answer.status != 200:
            raise SpeechError(f"vLLM at {self.served.url} answers {answer.status}: {self._complaint(answer)}")
        try:
            return read_completion(answer.body, sampling.stop)
        except ValueError as error:
            raise SpeechError(f"vLLM at {self.served.url} gives no whole answer: {one_line(str(error))}") from None

    async def _post(self, path: str, body: dict[str, Any]) -> HttpAnswer:
        connection = await self.connections.get()
        async with connection.permits:
            try:
                url = f"{self.served.url}{path}"
                return await send_request(connection.client, "POST", url, body, patience=PATIENCE, largest=LARGEST)
            except NoAnswerError as error:
                reason = one_line(self.served.secret.scrub(str(error)))
                raise SpeechError(f"vLLM at {self.served.url} is away: {reason}") from None

    def _complaint(self, answer: HttpAnswer) -> str:
        return one_line(self.served.secret.scrub(error_message(answer.body)))

    def close(self) -> None:
        """Takes our adapters off the server, which goes on without us."""
        self.connections.close()
        self._leave()

    def _make_client(self, limits: httpx2.Limits) -> httpx2.AsyncClient:
        timeout = httpx2.Timeout(None, connect=CONNECT)
        return httpx2.AsyncClient(
            timeout=timeout, limits=limits, trust_env=False, headers=request_headers(self.served.secret)
        )


def read_completion(body: bytes, stop: tuple[str, ...]) -> SampledTokens:
    """What a completion says; ValueError, with a few words, where that is not all of it."""
    match parse_json(body):
        case {"choices": [{"token_ids": [*ids], "logprobs": {"token_logprobs": [*logprobs]}} as choice, *_]}:
            pass
        case _:
            raise ValueError("it lacks token ids or log-probs")
    if choice.get("finish_reason") not in ("stop", "length") or not ids or len(ids) != len(logprobs):
        raise ValueError("it is cut short")
    if not all(type(token) is int for token in ids) or not all(type(each) in (int, float) for each in logprobs):
        raise ValueError("a token id or a log-prob is no number")
    reason = choice.get("stop_reason")
    return SampledTokens(
        token_ids=tuple(ids),
        logprobs=tuple(map(float, logprobs)),
        stop=reason if isinstance(reason, str) and reason in stop else None,
    )


def unload_adapters(served: ServedModel, loaded: list[str]) -> None:
    """Take our adapters off a server that goes on without us."""
    try:
        with httpx2.Client(timeout=2.0, trust_env=False, headers=request_headers(served.secret)) as client:
            for name in loaded:
                with client.stream("POST", f"{served.url}/v1/unload_lora_adapter", json={"lora_name": name}):
                    pass  # whatever it says, nobody hears it
    except httpx2.HTTPError:
        pass  # it has gone too
