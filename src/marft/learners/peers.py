"""The other ranks of a learner, as processes: orders go to each by its pipe, and a thread hears what it answers.

Whoever ends, fails or falls silent takes all others along: nobody waits for a sum that cannot come.
"""

from __future__ import annotations

import io
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from marft.envs.processes import ChildProcess, read_frames, to_frame
from marft.learners.base import RankFailed, RankLost

BEAT_S = 1.0  # between two signs of life of a rank
SILENCE_S = 30.0  # without one, from which a rank counts as lost
START_S = 600.0  # in which a rank must have loaded its models


class Peer:
    """One other rank. It says in frames of JSON what came of each order; an empty frame is a sign of life."""

    def __init__(self, rank: int, module: str, on_failure: Callable[[RankLost | RankFailed], None]) -> None:
        self.rank, self._on_failure = rank, on_failure
        self.process = ChildProcess(module, quiet=True)
        self.heard = time.monotonic()
        self.answers: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()  # None: there are no more
        threading.Thread(target=self._listen, name=f"marft-rank-{rank}", daemon=True).start()

    @property
    def name(self) -> str:
        """As users are told of it."""
        return f"rank {self.rank} of the learner"

    def _listen(self) -> None:
        assert isinstance(self.process.stdout, io.FileIO)
        try:
            with io.BufferedReader(self.process.stdout) as pipe:
                for frame in read_frames(pipe):
                    self.heard = time.monotonic()
                    answer = json.loads(frame) if frame else {}
                    if "failed" in answer:
                        self._on_failure(RankFailed(f"{self.name} has failed: {answer['failed']}", answer["trace"]))
                    elif answer:
                        self.answers.put(answer)
        finally:
            self._on_failure(RankLost(f"{self.name} has ended{self._by_signal()}"))
            self.answers.put(None)

    def _by_signal(self) -> str:
        """Who is out of memory gets signal 9."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        code = self.process.returncode or 0
        return f" by signal {-code}" if code < 0 else ""


class Peers:
    """All other ranks of a learner."""

    def __init__(self, module: str, ranks: Sequence[int], abandon: Callable[[], None]) -> None:
        """`abandon` is called from a thread when one is lost."""
        self.lost: RankLost | RankFailed | None = None  # why, as soon as one is
        self._abandon, self._lock, self._closed = abandon, threading.Lock(), threading.Event()
        self._all: list[Peer] = []
        for rank in ranks:
            self._all.append(Peer(rank, module, self._fail))

    @property
    def pids(self) -> list[int]:
        """The ranks' process ids."""
        return [peer.process.pid for peer in self._all]

    def watch(self) -> None:
        """From now on a rank that gives no sign of life is lost."""
        for peer in self._all:
            peer.heard = time.monotonic()
        threading.Thread(target=self._watch, name="marft-ranks", daemon=True).start()

    def send(self, frames: Sequence[bytes], peer: int | None = None) -> None:
        """The same frames to all, or to one of them."""
        packed = b"".join(map(to_frame, frames))
        for each in self._all if peer is None else [self._all[peer]]:
            try:
                each.process.send(packed)
            except (OSError, ValueError):  # the latter: it has been ended meanwhile, and its pipe closed
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
                peer.process.end()

    def _fail(self, reason: RankLost | RankFailed) -> None:
        """The first failure is the reason; what follows from it is not."""
        with self._lock:
            if self.lost is not None or self._closed.is_set():
                return
            self.lost = reason
        self.close()
        self._abandon()

    def _watch(self) -> None:
        suspects: set[int] = set()
        while not self._closed.wait(BEAT_S):
            silent = {peer.rank for peer in self._all if time.monotonic() - peer.heard > SILENCE_S}
            for rank in sorted(silent & suspects):  # twice: it may be this process that was stopped for a while
                self._fail(RankLost(f"rank {rank} of the learner has given no sign of life for {SILENCE_S:.0f} s"))
            suspects = silent
