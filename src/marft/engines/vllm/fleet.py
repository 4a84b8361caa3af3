"""One or more vLLM servers as one backend: what each is asked, and what happens when one goes away and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from marft.engines.vllm.adapter_versions import AdapterVersion
from marft.engines.vllm.discovery import SHORT, ServerAbsent, check_same, examine
from marft.engines.vllm.engine import SampledTokens
from marft.engines.vllm.routing import choose_server, prefix_key
from marft.engines.vllm.server import Server, ServerAway, ServerBroken
from marft.terminal import complain
from marft.types import MarftError, Request, SpeechError

LOOK_S = 5.0  # between two looks at a server, while requests are under way


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """A server of the fleet. One that is `living` has every adapter version that is in use."""

    server: Server
    living: bool
    requests: int = 0  # that it has answered
    tokens: int = 0  # of its answers
    attempts: set[asyncio.Task[SampledTokens]] = field(default_factory=set)  # requests under way
    trouble: str = ""  # why it was not living when it last was not
    broken: bool = False  # it answered, that it failed
    looked: float = field(default_factory=time.monotonic)
    look: asyncio.Task[None] | None = None
    watch: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Its name."""
        return self.server.served.url


class Servers:
    """The backend behind URLs. A request goes to the server that `choose_server` names among the living ones.

    A server that is away or broken is asked for every `LOOK_S` seconds and taken back once it serves what it should; its
    requests go to others. They may be asked twice, because a completion is a function of its request's seed.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self.members = [Member(server=each, living=each.served.answers) for each in servers]
        self.longest = servers[0].served.longest
        self.wanted: dict[str, AdapterVersion] = {}  # versions in use, by name
        self.under_way = 0
        for member in self.members:
            if not member.living:
                member.trouble = f"vLLM at {member.url} is away: it has not answered yet"
                complain(f"marft: {member.trouble}; it is asked again while the team plays")

    # --- the backend -------------------------------------------------------------------------------------------------
    async def load(self, adapter_version: AdapterVersion) -> None:
        """Have every living server load an adapter version; the others load it before they are taken back."""
        self.wanted[adapter_version.name] = adapter_version
        try:
            await asyncio.gather(*(self._load_on(member, adapter_version) for member in self._living()))
            if not self._living():
                await self._find_living()
        except BaseException:
            self._unwant(adapter_version.name)
            raise

    async def drop(self, adapter_version: AdapterVersion) -> None:
        """Free the memory of an adapter version on every living server; the others do when they are taken back."""
        self._unwant(adapter_version.name)
        await asyncio.gather(*(self._drop_on(member, adapter_version) for member in self._living()))

    async def complete(self, request: Request, adapter_version: AdapterVersion | None, limit: int) -> SampledTokens:
        """Some server's completion. Every server may fail it once, and one twice; then ServerAway is raised."""
        key = prefix_key(request.adapter, request.prompt_ids)
        self.under_way += 1
        try:
            self._watch_all()
            for _ in self.members:
                member = await self._choose(key)
                try:
                    return await self._ask(member, request, adapter_version, limit)
                except ServerAway:
                    continue
            return await self._ask(await self._choose(key), request, adapter_version, limit)
        finally:
            self.under_way -= 1

    def close(self) -> None:
        """Takes our adapters off the servers, which go on without us."""
        for member in self.members:
            for task in (member.watch, member.look):
                if task is not None and not task.get_loop().is_closed():
                    task.cancel()
            member.server.close()

    # --- one server --------------------------------------------------------------------------------------------------
    async def _ask(
        self, member: Member, request: Request, adapter_version: AdapterVersion | None, limit: int
    ) -> SampledTokens:
        attempt = asyncio.create_task(member.server.complete(request, adapter_version, limit))
        member.attempts.add(attempt)
        try:
            await asyncio.wait([attempt])
        finally:  # also where whoever asked has gone
            attempt.cancel()
            member.attempts.remove(attempt)
        if attempt.cancelled():  # by `_look_at`
            raise ServerAway(member.trouble)
        try:
            said = attempt.result()
        except ServerAway as error:
            self._lose(member, error)
            raise
        member.requests += 1
        member.tokens += len(said.token_ids)
        return said

    async def _load_on(self, member: Member, adapter_version: AdapterVersion) -> None:
        if adapter_version.name in member.server.unwanted:
            member.server.unwanted.remove(adapter_version.name)
        if adapter_version.name in member.server.loaded:
            return
        try:
            await member.server.load(adapter_version)
        except ServerAway as error:
            self._lose(member, error)

    async def _drop_on(self, member: Member, adapter_version: AdapterVersion) -> None:
        try:
            await member.server.drop(adapter_version)
        except ServerAway as error:
            self._lose(member, error)

    def _unwant(self, name: str) -> None:
        """Servers that have a version get rid of it with the next one that they drop."""
        self.wanted.pop(name, None)
        for member in self.members:
            if name in member.server.loaded and name not in member.server.unwanted:
                member.server.unwanted.append(name)

    # --- who is there ------------------------------------------------------------------------------------------------
    def _living(self) -> list[Member]:
        return [member for member in self.members if member.living]

    async def _choose(self, key: bytes) -> Member:
        if not self._living():
            await self._find_living()
        living = {member.url: member for member in self._living()}
        return living[choose_server(key, {url: len(member.attempts) for url, member in living.items()})]

    async def _find_living(self) -> None:
        """Looks at all servers until one is taken back; ServerAway where none is within a minute."""
        looks = {self._look(member) for member in self.members}
        deadline = time.monotonic() + SHORT
        while looks and not self._living() and (left := deadline - time.monotonic()) > 0:
            _, looks = await asyncio.wait(looks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not self._living():
            every = f"none of {len(self.members)} servers answers: " if len(self.members) > 1 else ""
            raise ServerAway(f"{every}{self.members[0].trouble}")

    def _lose(self, member: Member, error: Exception) -> None:
        if member.living:
            member.living, member.trouble, member.broken = False, str(error), isinstance(error, ServerBroken)
            complain(f"marft: {error}; it is asked for every {LOOK_S:g} s")

    def _watch_all(self) -> None:
        for member in self.members:
            if not is_under_way(member.watch):
                member.watch = asyncio.create_task(self._watch(member))

    async def _watch(self, member: Member) -> None:
        while self.under_way:
            await asyncio.sleep(max(0.0, member.looked + LOOK_S - time.monotonic()))
            await self._look(member)

    def _look(self, member: Member) -> asyncio.Task[None]:
        """One look at a time, for all who wait for it."""
        if member.look is None or not is_under_way(member.look):
            member.look = asyncio.create_task(self._look_at(member))
        return member.look

    async def _look_at(self, member: Member) -> None:
        """Whether a living server still is, and whether another one may be taken back."""
        try:
            if member.living:
                await self._check_living(member)
            if not member.living:  # perhaps only now: a request has failed
                await self._take_back(member)
        except (SpeechError, MarftError) as error:
            if not (member.living or isinstance(error, (ServerAbsent, ServerAway)) or member.trouble == str(error)):
                member.trouble = str(error)
                complain(f"marft: {error}")
            self._lose(member, error)
            for attempt in member.attempts:  # nobody can tell how long they would have to wait
                attempt.cancel()
        finally:
            member.looked = time.monotonic()

    async def _check_living(self, member: Member) -> None:
        """Raise ServerAway where a server does not answer, or has been started again without our adapters."""
        server = member.server
        before = set(server.loaded)
        names = await server.look()
        if before.intersection(server.loaded).difference(server.unwanted) - names:
            raise ServerAway(f"vLLM at {member.url} has lost its adapters")

    async def _take_back(self, member: Member) -> None:
        """What is served must be what was, with all versions in use; what the server kept of others goes with the next. One
        that has failed must complete something first."""
        server = member.server
        names = await server.look()
        started_again = not server.loaded or not names.issuperset(server.loaded)  # perhaps another way
        if started_again or member.broken:
            check_same(await examine(member.url), server.served)
        server.loaded[:] = [name for name in names if name in self.wanted or name in server.loaded]
        server.unwanted[:] = [name for name in server.loaded if name not in self.wanted]
        while missing := [each for name, each in self.wanted.items() if name not in server.loaded]:
            try:
                await server.load(missing[0])
            except MarftError:
                if missing[0].name in self.wanted:  # else its files have gone meanwhile
                    raise
        server.unwanted[:] = [name for name in server.loaded if name not in self.wanted]
        member.living = True
        complain(f"marft: vLLM at {member.url} is back")


def is_under_way(task: asyncio.Task[None] | None) -> bool:
    """Whether a task still runs, in the event loop that runs now."""
    return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()
