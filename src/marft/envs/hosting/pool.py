"""Worker processes that answer for an environment, each question under a deadline."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

from marft.envs.base import Environment
from marft.envs.hosting.host import NO_DEADLINES, Deadlines, Host
from marft.envs.hosting.messages import unpack_answer
from marft.envs.hosting.workers import ForkServer, Spawner, Worker
from marft.game.lockstep import Lockstep
from marft.game.validation import EnvironmentFault
from marft.processes import forks_safely
from marft.types import MarftError
from marft.untrusted_values import described

MOST_WORKERS = 8  # unless the config says how many


class Pool(Host):
    """At most `workers` processes; states travel with the questions, so any of them may answer any.

    A worker that misses its deadline is killed with all that it started, and another takes its place.
    """

    def __init__(
        self, env: Environment[Any], name: str, settings: Mapping[str, Any], *, deadline: float, workers: int | None,
        lockstep: Lockstep, deadlines: Deadlines = NO_DEADLINES,
    ) -> None:  # fmt: skip
        super().__init__(env, deadlines=deadlines)
        self.deadline, self.lockstep = deadline, lockstep
        self._workers = (ForkServer if forks_safely() else Spawner)(name, settings)  # the former start sooner
        self._free = workers or min(MOST_WORKERS, os.cpu_count() or 1)  # how many more may be at work
        self._idle: list[Worker] = []
        self._queue: deque[asyncio.Future[None]] = deque()
        self._closing = weakref.finalize(self, close_workers, self._workers, self._idle)

    async def ask(self, method: str, *arguments: Any, last: bool = False) -> Any:
        """Asks the next free worker; methods that the environment does not override are answered here."""
        if getattr(type(self.env), method) is getattr(Environment, method):  # nothing of the user's would run
            return getattr(self.env, method)(*arguments)
        question = self._ask(method, arguments)
        return await (question if last else self.lockstep.reply(question))

    async def _ask(self, method: str, arguments: tuple[Any, ...]) -> Any:
        while not self._free:
            place = asyncio.get_running_loop().create_future()
            self._queue.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if not place.cancelled():  # it had just been given the place
                    self._call_next()
                raise
        self._free -= 1
        try:
            return await self._answer(method, arguments)
        finally:
            self._free += 1
            self._call_next()

    def _call_next(self) -> None:
        while self._queue:
            if not (place := self._queue.popleft()).done():
                place.set_result(None)
                return

    async def _answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        worker = self._idle.pop() if self._idle else self._workers.start()
        try:
            await worker.ready()
            given = unpack_answer(await worker.answer((method, arguments), self.deadline))
        except EnvironmentFault:
            self._idle.append(worker)
            raise
        except GeneratorExit:  # the event loop has been closed, and nothing can be awaited
            worker.kill()
            raise
        except BaseException as error:
            await asyncio.to_thread(worker.kill)
            match error:
                case TimeoutError():
                    raise EnvironmentFault(f"took more than {self.deadline:g} s (env.deadline)", kind="late") from None
                case EOFError():
                    raise EnvironmentFault("ended its process") from None
                case Exception() if not isinstance(error, MarftError):  # the environment wrote into our pipe
                    raise EnvironmentFault(f"gave what cannot be read: {described(error)}") from error
            raise
        self._idle.append(worker)
        return given

    def close(self) -> None:
        """Kills all workers."""
        self._closing()


def close_workers(workers: ForkServer | Spawner, idle: list[Worker]) -> None:
    """The end of where they come from is the end of all workers, at work or not."""
    while idle:
        idle.pop().kill()
    workers.close()
