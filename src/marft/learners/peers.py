"""The other ranks of a learner: orders go to each by its channel, and a thread hears what it answers.

Whoever ends, fails or falls silent takes all others along: nobody waits for a sum that cannot come.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeVar

from marft.channels import ALIVE, BEAT_S, LOOK_S, LOOPBACK, Channel, Hear, PipeChannel, Silence, Unreachable
from marft.learners.base import RankFailed, RankLost
from marft.types import MarftError

SILENCE_S = 30.0  # without a sign of life, from which a rank counts as lost
START_S = 600.0  # in which a rank must have loaded its models

T = TypeVar("T")


class RankLauncher(Protocol):
    """Where the other ranks run."""

    @property
    def host(self) -> str:
        """The address at which they find this process."""

    def launch_rank(self, rank: int, hear: Hear) -> Channel:
        """A rank that has nothing yet; whoever launched it ends it."""


class ChildRanks:
    """The other ranks are processes on this machine that run a module."""

    host = LOOPBACK

    def __init__(self, module: str) -> None:
        self.module = module

    def launch_rank(self, rank: int, hear: Hear) -> PipeChannel:
        """A process of its own."""
        return PipeChannel(self.module, hear, SILENCE_S, quiet=True)


class Peer:
    """One other rank. It says in JSON what came of each order."""

    def __init__(self, rank: int, launcher: RankLauncher, on_failure: Callable[[RankLost | RankFailed], None]) -> None:
        self.rank, self._on_failure = rank, on_failure
        self.silence = Silence()
        self.answers: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()  # None: there are no more
        self._launched = threading.Event()
        self.channel = launcher.launch_rank(rank, self._hear)
        self._launched.set()

    @property
    def name(self) -> str:
        """As users are told of it."""
        return f"rank {self.rank} of the learner"

    def _hear(self, message: bytes | None) -> None:
        """In the channel's thread."""
        if message is None:
            self._launched.wait()
            self._on_failure(self._end())
            self.answers.put(None)
            return
        self.silence.end()
        if message == ALIVE:
            return
        answer = json.loads(message)
        if "failed" in answer:
            self._on_failure(RankFailed(f"{self.name} has failed: {answer['failed']}", answer["trace"]))
        else:
            self.answers.put(answer)

    def _end(self) -> RankLost | RankFailed:
        try:
            return RankLost(f"{self.name} has {self.channel.end_reason()}")
        except MarftError as error:  # another one would end so too
            return RankFailed(f"{self.name} has failed: {error}", error.trace)


class Peers:
    """All other ranks of a learner."""

    def __init__(self, launcher: RankLauncher, ranks: Sequence[int], abandon: Callable[[], None]) -> None:
        """`abandon` is called from a thread when one is lost."""
        self.lost: RankLost | RankFailed | None = None  # why, as soon as one is
        self._abandon, self._lock, self._closed = abandon, threading.Lock(), threading.Event()
        self._all: list[Peer] = []
        try:
            for rank in ranks:
                self._all.append(Peer(rank, launcher, self._fail))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """The ranks' process ids."""
        return [peer.channel.pid for peer in self._all]

    @property
    def hosts(self) -> list[str]:
        """The addresses at which the ranks find one another."""
        return [peer.channel.host for peer in self._all]

    def watch(self) -> None:
        """From now on a rank that gives no sign of life is lost."""
        for peer in self._all:
            peer.silence.end()
        threading.Thread(target=self._watch, name="marft-ranks", daemon=True).start()

    def send(self, frames: Sequence[bytes], peer: int | None = None) -> None:
        """The same frames to all, or to one of them."""
        for each in self._all if peer is None else [self._all[peer]]:
            try:
                for frame in frames:
                    each.channel.send(frame)
            except Unreachable:
                raise self.reason() from None

    def answers(self, seconds: float) -> list[Mapping[str, Any]]:
        """What each answers to the last order; raises RankLost or RankFailed where one does not, in so many seconds in all."""
        deadline = time.monotonic() + seconds
        found: list[Mapping[str, Any]] = []
        for peer in self._all:
            try:
                answer = peer.answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._fail(RankLost(f"{peer.name} has not answered for {seconds:.0f} s"))
                answer = None
            if answer is None:
                raise self.reason()
            found.append(answer)
        return found

    def unless_lost(self, work: Callable[[], T]) -> T:
        """What this work gives, in which this process waits for the others; given up as soon as one of them is gone."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, name="marft-joining", daemon=True).start()
        while not wait([done], LOOK_S).done:
            if self.lost is not None:
                raise self.lost
        return done.result()

    def reason(self, seconds: float = 10.0) -> RankLost | RankFailed:
        """Why the others are gone; the threads may hear of it a moment later."""
        deadline = time.monotonic() + seconds
        while self.lost is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.lost or RankLost("the ranks of the learner have lost their connection")

    def close(self) -> None:
        """End all of them; once more is no harm."""
        with self._lock:
            self._closed.set()
            for peer in self._all:
                peer.channel.end()

    def _fail(self, reason: RankLost | RankFailed) -> None:
        """The first failure is the reason; what follows from it is not."""
        with self._lock:
            if self.lost is not None or self._closed.is_set():
                return
            self.lost = reason
        self.close()
        self._abandon()

    def _watch(self) -> None:
        while not self._closed.wait(BEAT_S):
            for peer in self._all:
                if peer.silence.exceeds(SILENCE_S):
                    self._fail(RankLost(f"{peer.name} has given no sign of life for {SILENCE_S:.0f} s"))
