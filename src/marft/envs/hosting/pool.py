"""Worker processes that answer for an environment, each question under a deadline."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from marft.envs.base import Environment
from marft.envs.hosting.host import Host
from marft.game.lockstep import Lockstep
from marft.game.world import Fault
from marft.types import MarftError

MOST_WORKERS = 8  # unless the config says how many


class Worker:
    """One process that answers one question at a time."""

    def __init__(self, connection: Connection, pid: int) -> None:
        self.connection, self.pid = connection, pid

    async def answer(self, method: str, arguments: tuple[Any, ...], deadline: float) -> Any:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        self.connection.send((method, arguments))
        loop.add_reader(self.connection.fileno(), arrived.set)
        try:
            await asyncio.wait_for(arrived.wait(), deadline)
        except TimeoutError:
            if not self.connection.poll():  # it may have come while this process was busy
                raise
        finally:
            loop.remove_reader(self.connection.fileno())
        return self.connection.recv()

    def kill(self) -> None:
        """It and all that it started."""
        for kill in (os.killpg, os.kill):  # the latter for one that had no time to make a group of its own
            with suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)
        self.connection.close()


class Nursery:
    """The process that workers are forked from."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "marft.envs.hosting.nursery", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
        with Connection(os.dup(self.control.fileno())) as first:
            first.send((name, dict(settings), sys.path))
            try:
                refusal = first.recv()
            except (EOFError, OSError):
                refusal = "its process ended while it was being built"
        if refusal is not None:
            self.close()
            raise MarftError(refusal)

    def fork(self) -> Worker:
        ours, theirs = socket.socketpair()
        pid = 0
        with theirs, suppress(OSError):
            socket.send_fds(self.control, [b"+"], [theirs.fileno()])
            pid = int.from_bytes(self.control.recv(8, socket.MSG_WAITALL), "big")
        if not pid:
            ours.close()
            raise MarftError(
                "the process that hosts the environment has ended, perhaps for want of memory; start again"
            )
        return Worker(Connection(ours.detach()), pid)

    def close(self) -> None:
        self.control.close()
        self.process.wait()


class Pool(Host):
    """At most `workers` processes; states travel with the questions, so any of them may answer any.

    A worker that misses its deadline is killed with all that it started, and another takes its place.
    """

    def __init__(
        self, env: Environment[Any], name: str, settings: Mapping[str, Any], *, deadline: float, workers: int | None,
        lockstep: Lockstep,
    ) -> None:  # fmt: skip
        super().__init__(env)
        self.deadline, self.lockstep = deadline, lockstep
        self._nursery = Nursery(name, settings)
        self._free = workers or min(MOST_WORKERS, os.cpu_count() or 1)  # how many more may be at work
        self._idle: list[Worker] = []
        self._queue: deque[asyncio.Future[None]] = deque()
        self._closing = weakref.finalize(self, close, self._nursery, self._idle)

    async def ask(self, method: str, *arguments: Any, last: bool = False) -> Any:
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
        worker = self._idle.pop() if self._idle else self._nursery.fork()
        try:
            answer = await worker.answer(method, arguments, self.deadline)
        except BaseException as error:
            worker.kill()
            match error:
                case TimeoutError():
                    raise Fault("late", f"took more than {self.deadline:g} s (env.deadline)", "") from None
                case EOFError() | OSError():
                    raise Fault("raised", "ended its process", "") from None
                case Exception():  # pickle raises what it likes
                    raise Fault("raised", f"was given, or gave, what cannot be pickled: {error}", "") from error
            raise
        self._idle.append(worker)
        if isinstance(answer, Fault):
            raise answer
        return answer

    def close(self) -> None:
        self._closing()


def close(nursery: Nursery, idle: list[Worker]) -> None:
    """The end of the nursery is the end of all its workers, at work or not."""
    while idle:
        idle.pop().kill()
    nursery.close()
