"""Worker processes as the trainer sees them: forked from one that has built the environment, or programs of their own.

Forked ones start in milliseconds. The others need pipes and threads and nothing else, so they run on macOS and Windows; each
takes the time of an import to start, and builds the environment anew.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import queue
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from marft.game.validation import EnvironmentFault
from marft.processes import ChildProcess, kill_tree, read_frames, to_frame
from marft.types import MarftError
from marft.untrusted_values import described

VARIABLES = {"OMP_NUM_THREADS": "1"}


class Worker(ABC):
    """A process that answers one question at a time.

    A thread of ours pickles each question, sends it and waits for the answer. So neither a task's own code nor a process that
    reads nothing can hold the event loop up; and threads, unlike other ways to wait, work on every platform.
    """

    def __init__(self, pipe: BinaryIO, send: Callable[[bytes], object], opening: object) -> None:
        self._send = send
        self._questions: queue.SimpleQueue[Any] = queue.SimpleQueue()  # None: there will be no more
        self._answers: queue.SimpleQueue[bytes | EnvironmentFault | None] = queue.SimpleQueue()  # None: it has ended
        self._wake: Callable[[], object] = lambda: None
        self._questions.put(opening)
        threading.Thread(target=self._converse, args=(pipe,), daemon=True).start()

    @abstractmethod
    async def ready(self) -> None:
        """Waits until it can be asked; MarftError where it never can."""

    async def answer(self, question: object, deadline: float) -> bytes:
        """The packed answer to a question; TimeoutError when it is late, EOFError if the process has ended."""
        self._questions.put(question)
        match await self._next_answer(deadline):
            case bytes(answer):
                return answer
            case EnvironmentFault() as fault:
                raise fault
        raise EOFError

    def kill(self) -> None:
        """Ends it and all that it started; this may take a second."""
        self._questions.put(None)

    async def _next_answer(self, deadline: float | None) -> bytes | EnvironmentFault | None:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(arrived.set)
        try:
            if self._answers.empty():
                await asyncio.wait_for(arrived.wait(), deadline)
        except TimeoutError:
            if self._answers.empty():  # it may have come while this process was busy
                raise
        finally:
            self._wake = lambda: None
        return self._answers.get()

    def _converse(self, pipe: BinaryIO) -> None:
        with pipe:
            answers = read_frames(pipe)
            while (question := self._questions.get()) is not None:
                self._answers.put(self._exchange(question, answers))
                with suppress(RuntimeError):  # the event loop has just been closed
                    self._wake()

    def _exchange(self, question: object, answers: Iterator[bytes]) -> bytes | EnvironmentFault | None:
        try:
            data = pickle.dumps(question)
        except BaseException as error:  # of the user's code, in a task's `data`: anything may come
            return EnvironmentFault(f"was given what cannot be pickled: {described(error)}")
        try:
            self._send(to_frame(data))
            return next(answers, None)
        except OSError:
            return None


class ForkedWorker(Worker):
    """Says its process id first."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.pid = connection, 0
        super().__init__(connection.makefile("rb"), connection.sendall, opening="who are you?")

    async def ready(self) -> None:
        """Once it has said who it is."""
        if not self.pid and isinstance(answer := await self._next_answer(None), bytes):
            self.pid = int.from_bytes(answer, "big")
        if not self.pid:
            raise MarftError(
                "the process that hosts the environment has ended, perhaps for want of memory; start again"
            )

    def kill(self) -> None:
        """One that has not said who it is ends with its connection."""
        super().kill()
        if self.pid:
            kill_tree(self.pid)
        with suppress(OSError):  # it has hung up
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class ForkServer:
    """The process that workers are forked from."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            self.process = ChildProcess(
                "marft.envs.hosting.fork_server", str(theirs.fileno()), variables=VARIABLES, pipes=False,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip
        answer = None
        with suppress(OSError), self.control.makefile("rb") as pipe:
            self.control.sendall(to_frame(pickle.dumps((name, dict(settings), sys.path))))
            answer = next(read_frames(pipe), None)
        if error := build_error(answer):
            self.close()
            raise MarftError(error)

    def start(self) -> ForkedWorker:
        """A worker more."""
        ours, theirs = socket.socketpair()
        with theirs, suppress(OSError):  # where the server has ended, so has the worker
            socket.send_fds(self.control, [b"+"], [theirs.fileno()])
        return ForkedWorker(ours)

    def close(self) -> None:
        """Its end is the end of all its workers, at work or not."""
        self.control.close()
        self.process.end()


class SpawnedWorker(Worker):
    """Builds the environment first."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.process, self.built = ChildProcess("marft.envs.hosting.worker_process", variables=VARIABLES), False
        assert isinstance(self.process.stdout, io.FileIO)
        pipe = io.BufferedReader(self.process.stdout)
        super().__init__(pipe, self.process.send, opening=(name, dict(settings), sys.path))

    async def ready(self) -> None:
        """Once it has built the environment."""
        if not self.built and (error := build_error(await self._next_answer(None))):
            raise MarftError(f"one more process for the environment could not be started: {error}; lower env.workers")
        self.built = True

    def wait_until_built(self) -> None:
        """The same for whoever has no event loop, of the first process there is."""
        if error := build_error(self._answers.get()):
            raise MarftError(error)
        self.built = True

    def kill(self) -> None:
        """With all that it started."""
        super().kill()
        self.process.end()


class Spawner:
    """Starts workers. The first is started at once, to see whether the environment can be built."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.name, self.settings = name, settings
        self.workers = [first := SpawnedWorker(name, settings)]
        try:
            first.wait_until_built()
        except MarftError:
            self.close()
            raise
        self._first: SpawnedWorker | None = first

    def start(self) -> SpawnedWorker:
        """A worker more."""
        if (first := self._first) is not None:
            self._first = None
            return first
        worker = SpawnedWorker(self.name, self.settings)
        self.workers = [one for one in self.workers if one.process.poll() is None] + [worker]
        return worker

    def close(self) -> None:
        """The end of all workers, at work or not."""
        for worker in self.workers:
            worker.kill()


def build_error(answer: object) -> str:
    """Why a process has not built the environment, by the answer it gave; empty where it has."""
    return answer.decode() if isinstance(answer, bytes) else "its process ended while it was being built"
