"""vLLM's OpenAI-compatible server on this machine, which reads the adapters that it is told to load from its disk.

What answers may be anything: an answer has a limit of time and of size, and what is not as vLLM says it is one line.
"""

from __future__ import annotations

import weakref
from typing import Any

import httpx2

from marft.engines.connections import (
    Connections,
    HttpAnswer,
    NoAnswerError,
    error_message,
    one_line,
    request_headers,
    send_request,
)
from marft.engines.vllm.adapter_versions import AdapterVersion
from marft.engines.vllm.discovery import SHORT, ServedModel
from marft.engines.vllm.engine import SampledTokens
from marft.engines.vllm.protocol import ALWAYS, LARGEST, read_completion, read_names
from marft.models.team import TeamModel
from marft.types import MarftError, Request, SpeechError

CONNECT = 10.0  # seconds
BROKEN = 500  # from this HTTP status on the server is what failed
TOO_LARGE = "max_lora_rank"  # what it says, as an error of its own, of an adapter larger than it was started for
PATIENCE = 1800.0  # for all of an answer, which waits its turn on a busy server


class ServerAway(SpeechError):
    """A server does not answer, or has lost its adapters: another may be asked, or the same one later."""


class ServerBroken(ServerAway):
    """A server answers that it has failed (HTTP 5xx), and not the request."""


class Server:
    """One server. As many requests as `slots` are under way at once."""

    def __init__(self, team: TeamModel, served: ServedModel, *, slots: int) -> None:
        self.served = served
        self.ends = sorted(team.end_ids)
        self.adapters, self.rank = (
            len(team.agents),
            max([team.lora.specs[name].rank for name in team.agents], default=0),
        )
        self.connections = Connections(self._make_client, slots)
        self.loaded: list[str] = []
        self.unwanted: list[str] = []  # of these
        self._leave = weakref.finalize(self, unload_adapters, served, self.loaded)

    async def look(self) -> set[str]:
        """Names of all that the server has, adapters included; SpeechError where it does not say."""
        connection = await self.connections.get()
        url = f"{self.served.url}/v1/models"
        answer = await self._send(connection.client, "GET", url, None, patience=SHORT)
        try:
            if answer.status == 200:
                return read_names(answer.body)
        except ValueError:
            pass
        raise SpeechError(self._refusal(answer))

    async def load(self, adapter_version: AdapterVersion) -> None:
        """Have the server load an adapter version from its folder."""
        body = {"lora_name": adapter_version.name, "lora_path": str(adapter_version.folder)}
        answer = await self._post("/v1/load_lora_adapter", body)
        if answer.status >= BROKEN and TOO_LARGE not in self._complaint(answer):
            raise ServerBroken(self._refusal(answer))
        if answer.status != 200:
            raise MarftError(
                f"engine.url: {self.served.url} cannot load adapters ({self._complaint(answer)}); start it on this machine "
                f"with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora, --max-loras {self.adapters + 1} and "
                f"--max-lora-rank {self.rank} or more"
            )
        self.loaded.append(adapter_version.name)

    async def drop(self, adapter_version: AdapterVersion) -> None:
        """What it does not let go of now is tried again with the next."""
        if adapter_version.name not in self.unwanted:
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
            raise SpeechError(self._refusal(refused))

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
        if answer.status >= BROKEN:
            raise ServerBroken(self._refusal(answer))
        if answer.status != 200:
            started_again = answer.status == 404 and adapter_version is not None  # it knows the adapter no longer
            raise (ServerAway if started_again else SpeechError)(self._refusal(answer))
        try:
            return read_completion(answer.body, sampling.stop)
        except ValueError as error:
            raise SpeechError(f"vLLM at {self.served.url} gives no whole answer: {one_line(str(error))}") from None

    async def _post(self, path: str, body: dict[str, Any]) -> HttpAnswer:
        connection = await self.connections.get()
        async with connection.permits:
            return await self._send(connection.client, "POST", f"{self.served.url}{path}", body, patience=PATIENCE)

    async def _send(
        self, client: httpx2.AsyncClient, method: str, url: str, body: dict[str, Any] | None, *, patience: float
    ) -> HttpAnswer:
        try:
            return await send_request(client, method, url, body, patience=patience, largest=LARGEST)
        except NoAnswerError as error:
            reason = one_line(self.served.secret.scrub(str(error)))
            kind = ServerAway if error.passing else SpeechError
            raise kind(f"vLLM at {self.served.url} is away: {reason}") from None

    def _refusal(self, answer: HttpAnswer) -> str:
        return f"vLLM at {self.served.url} answers {answer.status}: {self._complaint(answer)}"

    def _complaint(self, answer: HttpAnswer) -> str:
        return one_line(self.served.secret.scrub(error_message(answer.body)))

    def close(self) -> None:
        """Takes our adapters off the server, which goes on without us."""
        self.connections.close()
        self._leave()

    def _make_client(self, limits: httpx2.Limits) -> httpx2.AsyncClient:
        """Permits limit the requests; `look` has none, and must not wait for a connection either."""
        return httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=CONNECT),
            limits=httpx2.Limits(max_keepalive_connections=limits.max_keepalive_connections),
            trust_env=False,
            headers=request_headers(self.served.secret),
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
