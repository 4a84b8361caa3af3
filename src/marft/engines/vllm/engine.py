"""What vLLM samples, as every engine of ours promises it: ids as drawn, their log-probs, the policy's version."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from marft.config.schema import EngineConfig
from marft.engines.base import Adapters
from marft.engines.checked import check_sampled
from marft.engines.stop_strings import cut_at_stop
from marft.engines.vllm.adapter_versions import AdapterVersion, AdapterVersions, erase
from marft.models.chat import ChatFormat
from marft.models.team import TeamModel
from marft.terminal import complain
from marft.types import (
    Completion,
    MarftError,
    PromptTooLong,
    Request,
    SpeechError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """vLLM's answer: `stop` is the stop string that ended it, where one did."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: str | None


class Backend(Protocol):
    """vLLM itself, wherever it runs."""

    longest: int  # tokens of a sequence

    async def load(self, adapter_version: AdapterVersion) -> None:
        """Make an adapter version available to requests."""
        ...

    async def drop(self, adapter_version: AdapterVersion) -> None:
        """Free the memory of an adapter version."""
        ...

    async def complete(self, request: Request, adapter_version: AdapterVersion | None, limit: int) -> SampledTokens:
        """At most `limit` tokens; without an adapter those of the base."""
        ...

    def close(self) -> None:
        """Free all that the backend holds."""
        ...


class VllmEngine:
    """`generate` from any number of coroutines, of one event loop after the other.

    An adapter's new version is loaded by the first request for it; other versions go as soon as no request uses them.
    """

    def __init__(self, team: TeamModel, backend: Backend) -> None:
        self.team, self.backend = team, backend
        self.longest = min(team.longest, backend.longest)
        self.version = self.tokens = 0
        self.closed = False
        self.adapter_versions = AdapterVersions(team)
        self.warned = False
        self.encode = ChatFormat(team.tokenizer, team.end_ids).encode

    async def generate(self, request: Request) -> Completion:
        """vLLM's completion by the adapter's current version."""
        if self.closed:
            raise RuntimeError("the engine is closed")
        if len(request.prompt_ids) >= self.longest:
            raise PromptTooLong(len(request.prompt_ids), self.longest, "vLLM")
        limit = min(request.sampling.max_tokens, self.longest - len(request.prompt_ids))
        version, adapter_version = self.version, self.adapter_versions.current(request.adapter, self.version)
        if adapter_version is None:
            said = await self.backend.complete(request, None, limit)
        else:
            adapter_version.users += 1
            try:
                await self._loaded(adapter_version)
                said = await self.backend.complete(request, adapter_version, limit)
            finally:
                adapter_version.users -= 1
            await self._drop_outdated()
        check_sampled(said.token_ids, said.logprobs, limit=limit, words=self.team.words, who="vLLM")
        self.tokens += len(said.token_ids)
        return self._completion(request, said, version)

    def publish(self, version: int, adapters: Adapters | None = None) -> None:
        """Writes what the agents' adapters now are to new folders, which requests from now on have loaded."""
        if adapters is not None:
            self.team.load_adapters(adapters)
        self.version = version
        self.adapter_versions.renew(version)
        for name in self.team.agents:
            self.adapter_versions.current(name, version)

    def close(self) -> None:
        """Closes the backend and deletes the adapters' folders."""
        if not self.closed:
            self.closed = True
            self.backend.close()
            self.adapter_versions.close()

    async def _loaded(self, adapter_version: AdapterVersion) -> None:
        """The first who needs a version has it loaded; the others wait with it."""
        if adapter_version.ready is None or (adapter_version.ready.done() and has_failed(adapter_version.ready)):
            adapter_version.ready = asyncio.ensure_future(self._load(adapter_version))
        await asyncio.shield(adapter_version.ready)  # whoever gives up takes it from nobody

    async def _load(self, adapter_version: AdapterVersion) -> None:
        await self._drop_outdated()  # first, for its slot
        await self.backend.load(adapter_version)

    async def _drop_outdated(self) -> None:
        """One at a time, so that who is interrupted leaves the others known."""
        while (old := self.adapter_versions.pop_outdated(self.version)) is not None:
            try:
                if old.ready is not None and not has_failed(old.ready):
                    await self.backend.drop(old)
            except SpeechError as error:  # what is old costs memory there, but nobody an answer
                self._say_once(f"an old adapter could not be dropped: {error}")
            finally:
                erase(old)

    def _say_once(self, line: str) -> None:
        if not self.warned:
            complain(f"marft: {line}")
        self.warned = True

    def _completion(self, request: Request, said: SampledTokens, version: int) -> Completion:
        ended = said.token_ids[-1] in self.team.end_ids
        spoken = said.token_ids[:-1] if ended else said.token_ids
        text = self.team.tokenizer.decode(spoken, skip_special_tokens=True)
        text, stop = cut_at_stop(text, request.sampling.stop)
        stop = stop or said.stop  # it reads token by token, and may see one where the whole text has none
        greedy = request.sampling.temperature == 0  # then there was nothing to draw
        return Completion(
            text=text,
            token_ids=said.token_ids,
            logprobs=tuple(0.0 if greedy else min(0.0, logprob) for logprob in said.logprobs),
            finish="stop" if ended or stop is not None else "length",
            version=version,
            stop=stop,
        )


def has_failed(ready: asyncio.Future[None]) -> bool:
    """Whether loading was cancelled or raised."""
    return ready.cancelled() or ready.exception() is not None


def check_available(config: EngineConfig) -> None:
    """A package that is missing or a server that is away is better known before the model is read."""
    if config.urls:
        from marft.engines.vllm.discovery import find_servers

        find_servers(config.urls)
    elif importlib.util.find_spec("vllm") is None:
        raise MarftError(
            "engine.name: vllm is not installed; pip install 'marft[vllm]', or on a machine without a GPU see docs/engines.md"
        )


def make_vllm_engine(
    team: TeamModel, config: EngineConfig, settled: Callable[[], Awaitable[None]], engines: int = 1
) -> VllmEngine:
    """An engine on the servers at `config.urls`, or on vLLM in this process, one of so many `engines` on its device."""
    backend: Backend
    if config.urls:
        from marft.engines.vllm.discovery import find_servers
        from marft.engines.vllm.fleet import Servers
        from marft.engines.vllm.server import Server

        backend = Servers([Server(team, served, slots=config.slots) for served in find_servers(config.urls)])
    else:
        from marft.engines.vllm.process import Process

        backend = Process(team, slots=config.slots, memory=config.share / engines, settled=settled)
    return VllmEngine(team, backend)
