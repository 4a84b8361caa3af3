"""A worker as its supervisor sees it: a process that is told, listened to, and given up when it gives no sign of life."""

from __future__ import annotations

import io
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from marft.distributed import messages
from marft.distributed.messages import Setup
from marft.engines.base import Adapters
from marft.envs.processes import ChildProcess, read_frames, to_frame
from marft.rollouts.players import Assignment, Played
from marft.types import MarftError, Task

LOOK_S = 0.2  # between two looks whether anybody still wants an answer


Newer = Callable[[int], Sequence[tuple[int, Adapters]]]  # the versions after one that may enter a play, in order


class WorkerLost(Exception):
    """It died, or gave no sign of life for too long; what it was doing can be done by another."""


class WorkerProcess:
    """Spoken to by one thread. `is_wanted` says whether its answers still are."""

    def __init__(self, setup: Setup, patience: float, is_wanted: Callable[[], bool]) -> None:
        self.patience, self.is_wanted = patience, is_wanted
        self._adapters: Adapters = {}  # that it has
        self._heard = time.monotonic()
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        variables = {} if setup.threads is None else {"OMP_NUM_THREADS": str(setup.threads)}
        self.process = ChildProcess("marft.distributed.worker", variables=variables)
        threading.Thread(target=self._listen, daemon=True).start()
        self._tell(messages.pack_setup(setup))

    def wait_until_ready(self) -> None:
        """Until its team is built."""
        self._next_message(messages.READY)

    def play(self, assignment: Assignment, adapters: Adapters, tasks: Sequence[Task], newer: Newer) -> Played:
        """What came of an assignment; these adapters are sent where it does not have them yet, and newer ones meanwhile."""
        if adapters is not self._adapters:
            self._send(assignment.version, adapters)
        self._tell(messages.pack_assignment(assignment))
        sent = assignment.version

        def send_newer() -> None:
            nonlocal sent
            for version, later in newer(sent):
                self._send(version, later)
                sent = version

        return messages.unpack_played(self._next_message(messages.PLAYED, send_newer), tasks)

    def _send(self, version: int, adapters: Adapters) -> None:
        self._tell(messages.pack_adapters(version, adapters))
        self._adapters = adapters

    def check(self) -> None:
        """Raise WorkerLost where an idle worker has gone."""
        with suppress(queue.Empty):
            while True:
                self._hear(self._said.get_nowait())
        self._check_patience()

    def close(self) -> None:
        """It ends at once, with all that it started."""
        self.process.end()

    def _listen(self) -> None:
        assert isinstance(self.process.stdout, io.FileIO)
        with io.BufferedReader(self.process.stdout) as pipe, suppress(ValueError, OSError):
            for message in read_frames(pipe):
                self._said.put(message)
        self._said.put(None)

    def _tell(self, message: bytes) -> None:
        """A process that reads nothing would keep us for ever: then it is killed, and the pipe breaks."""
        killing = threading.Timer(self.patience, self.process.kill)
        killing.start()
        try:
            self.process.send(to_frame(message))
        except OSError as error:
            raise WorkerLost("ended while it was spoken to") from error
        finally:
            killing.cancel()

    def _next_message(self, kind: bytes, meanwhile: Callable[[], None] = lambda: None) -> bytes:
        """The body of the next message of that kind."""
        while self.is_wanted():
            meanwhile()
            try:
                message = self._hear(self._said.get(timeout=LOOK_S))
            except queue.Empty:
                self._check_patience()
                continue
            if message[:1] == kind:
                return message[1:]
        raise WorkerLost("is not wanted any more")

    def _hear(self, message: bytes | None) -> bytes:
        if message is None:
            raise WorkerLost(f"ended by itself (exit code {self.process.wait()})")
        self._heard = time.monotonic()
        if message[:1] == messages.FAILED:
            failure = messages.unpack_failure(message[1:])
            if failure.ours:
                raise RuntimeError(f"a worker broke; its own trace:\n{failure.trace}")
            raise MarftError(f"a worker says: {failure.line}", trace=failure.trace)
        return message

    def _check_patience(self) -> None:
        if (silent := time.monotonic() - self._heard) > self.patience:
            raise WorkerLost(f"gave no sign of life for {silent:.0f} s (rollout.patience)")
