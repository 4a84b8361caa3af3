"""A worker as its supervisor sees it: told, listened to, and given up when it gives no sign of life."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from marft.channels import LOOK_S, Channel, Hear, Silence, Unreachable
from marft.distributed import messages
from marft.distributed.messages import Setup
from marft.engines.base import Adapters
from marft.rollouts.players import Assignment, Played
from marft.types import MarftError, Task

Newer = Callable[[int], Sequence[tuple[int, Adapters]]]  # the versions after one that may enter a play, in order


class WorkerLost(Exception):
    """It died, or gave no sign of life for too long; what it was doing can be done by another."""


class WorkerFault(MarftError):
    """Why a worker cannot go on, as it says itself: every other one would say the same."""


class RemoteWorker:
    """Spoken to by one thread; `connect` starts its process. `is_wanted` says whether its answers still are."""

    def __init__(
        self, setup: Setup, patience: float, is_wanted: Callable[[], bool], connect: Callable[[Hear], Channel]
    ) -> None:
        self.setup, self.patience, self.is_wanted = setup, patience, is_wanted
        self._adapters: Adapters = {}  # that it has
        self._silence = Silence()
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.channel = connect(self._said.put)

    def wait_until_ready(self) -> None:
        """Until its team is built."""
        self._tell(messages.pack_setup(self.setup))
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
        self.channel.end()

    def _tell(self, message: bytes) -> None:
        try:
            self.channel.send(message)
        except Unreachable as error:
            raise WorkerLost(str(error)) from error

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
            raise WorkerLost(self.channel.end_reason())
        self._silence.end()
        if message[:1] == messages.FAILED:
            failure = messages.unpack_failure(message[1:])
            if failure.ours:
                raise RuntimeError(f"a worker broke; its own trace:\n{failure.trace}")
            raise WorkerFault(failure.line, failure.trace)
        return message

    def _check_patience(self) -> None:
        if self._silence.exceeds(self.patience):
            raise WorkerLost(f"gave no sign of life for {self.patience:.0f} s (rollout.patience)")


class Launcher(Protocol):
    """Where workers run."""

    def launch(self, number: int, setup: Setup, is_wanted: Callable[[], bool]) -> RemoteWorker:
        """A worker that is being built; whoever launched it closes it."""
