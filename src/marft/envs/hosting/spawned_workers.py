"""Workers that are programs of their own, each of which builds the environment: for systems that do not fork safely.

They need pipes and threads and nothing else, so they run on macOS and Windows; each takes the time of an import to start.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from marft.envs.processes import ChildProcess, read_frames, to_frame
from marft.types import MarftError


class SpawnedWorker:
    """One process that answers one question at a time. A thread waits for its answers, which works on every platform."""

    def __init__(self, env_message: bytes) -> None:
        self.process = ChildProcess("marft.envs.hosting.worker", variables={"OMP_NUM_THREADS": "1"})
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # None: it has ended
        self._wake: Callable[[], object] = lambda: None
        threading.Thread(target=self._listen, daemon=True).start()
        with suppress(OSError):  # if it has ended, `build_error` says so
            self.process.send(to_frame(env_message))

    def build_error(self) -> str | None:
        """Waits until the environment is built; why it could not be."""
        answer = self._answers.get()
        return "its process ended while it was being built" if answer is None else pickle.loads(answer)

    async def answer(self, question: bytes, deadline: float) -> bytes:
        """The reply to a question, packed as it came; TimeoutError after `deadline` seconds."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(arrived.set)
        try:
            self.process.send(to_frame(question))
            await asyncio.wait_for(arrived.wait(), deadline)
        except TimeoutError:
            if self._answers.empty():  # it may have come while this process was busy
                raise
        finally:
            self._wake = lambda: None
        if (answer := self._answers.get()) is None:
            raise EOFError
        return answer

    def kill(self) -> None:
        """It and all that it started."""
        self.process.end()

    def _listen(self) -> None:
        assert isinstance(self.process.stdout, io.FileIO)
        with io.BufferedReader(self.process.stdout) as pipe:
            for answer in chain(read_frames(pipe), [None]):
                self._answers.put(answer)
                with suppress(RuntimeError):  # the event loop has just been closed
                    self._wake()


class Spawner:
    """Starts workers. The first is started at once, to see whether the environment can be built."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.env_message = pickle.dumps((name, dict(settings), sys.path))
        self.workers = [first := SpawnedWorker(self.env_message)]
        if (build_error := first.build_error()) is not None:
            self.close()
            raise MarftError(build_error)
        self._first: SpawnedWorker | None = first

    async def start(self) -> SpawnedWorker:
        """A worker more, ready for its first question."""
        if (first := self._first) is not None:
            self._first = None
            return first
        worker = SpawnedWorker(self.env_message)
        self.workers = [one for one in self.workers if one.process.poll() is None] + [worker]
        try:
            build_error = await asyncio.to_thread(worker.build_error)
        except asyncio.CancelledError:
            worker.kill()
            raise
        if build_error is not None:
            worker.kill()
            raise MarftError(
                f"one more process for the environment could not be started: {build_error}; lower env.workers"
            )
        return worker

    def close(self) -> None:
        """The end of all workers, at work or not."""
        for worker in self.workers:
            worker.kill()
