"""A simulation of players and a learner, event by event: who plays which shard when, with which version, and who waits.

Two queues. `in-order` is marft's: iteration j is played by version max(0, j − lag), its shards may begin once that version
exists, and batches are learnt from in order. `ready-first` is that of other systems: as many shards may be under way, each
is played by the newest version there is, and whichever are ready first make the next batch.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

HOUR = 3600.0

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Queue = Literal["in-order", "ready-first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a run consists of: seconds of every shard on one player, and of every update."""

    play_IS: Floats  # iteration, shard
    learn_I: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Who does it. A player plays one shard at a time; the learner, however many GPUs it has, is one."""

    players: int
    lag: int = 0
    queue: Queue = "in-order"
    publish: float = 0.0  # seconds that sending a version to a player takes
    tree: bool = False  # whoever has a version sends it on; else the learner sends it to one player after the other
    failures: float = 0.0  # of a player, in an hour that it plays
    restart: float = 0.0  # seconds until another player takes its place


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happened. Shards are numbered through all iterations."""

    end_I: Floats  # when each update was done
    taken_N: Counts  # the iteration that learnt from a shard
    version_N: Counts  # the version that played it
    learner_idle: float  # share of the time
    player_idle: float  # waiting for work or for adapters
    lost: float  # share of the players' time: plays that were broken off, and restarts
    replays: int

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return float(self.end_I[-1])

    @property
    def worst_lag(self) -> int:
        """The most updates by which what was learnt from was behind."""
        return int((self.taken_N - self.version_N).max())


class Simulation:
    """The state between two events; times are seconds."""

    def __init__(self, work: Work, cluster: Cluster, seed: int) -> None:
        self.work, self.cluster, self.rng = work, cluster, np.random.default_rng(seed)
        self.iterations, self.shards = work.play_IS.shape
        self.seconds_N: list[float] = work.play_IS.ravel().tolist()
        self.taken_N = np.full(len(self.seconds_N), -1)
        self.version_N = np.full(len(self.seconds_N), -1)
        self.events: list[tuple[float, int, str, int, int]] = []  # time, order, kind, player, shard
        self.order = 0
        # shards: offered are those below that number, planned may begin, done are played and not learnt from
        self.offered, self.planned, self.done = 0, list[int](), list[int]()
        self.missing_I = [self.shards] * self.iterations
        # players who have nothing to do, and the version that each one holds
        self.idle, self.held = list(range(cluster.players)), [-1] * cluster.players
        self.published = [0.0]  # when each version was there
        self.link = 0.0  # when the learner has sent what it was asked for
        self.learning, self.end_I = False, list[float]()
        self.playing = self.lost = 0.0
        self.replays = 0

    def run(self) -> Outcome:
        """Until the last update."""
        happens = {"played": self._played, "broken": self._broken, "back": self._back, "learnt": self._learnt}
        self._offer(0.0)
        while len(self.end_I) < self.iterations:
            now, _, kind, player, shard = heapq.heappop(self.events)
            happens[kind](now, player, shard)
        return self._outcome()

    # --- events -------------------------------------------------------------------------------------------------------
    def _played(self, now: float, player: int, shard: int) -> None:
        self.done.append(shard)
        self.missing_I[shard // self.shards] -= 1
        heapq.heappush(self.idle, player)
        self._learn(now)
        self._begin(now)

    def _broken(self, now: float, player: int, shard: int) -> None:
        """A player is lost: its shard goes back to whoever is free."""
        self.replays += 1
        self.held[player] = -1
        heapq.heappush(self.planned, shard)
        self._at(now + self.cluster.restart, "back", player)
        self._begin(now)

    def _back(self, now: float, player: int, _: int) -> None:
        heapq.heappush(self.idle, player)
        self._begin(now)

    def _learnt(self, now: float, _: int, __: int) -> None:
        self.learning = False
        self.end_I.append(now)
        self.published.append(now)
        self._offer(now)
        self._learn(now)

    # --- what follows from them ---------------------------------------------------------------------------------------
    def _offer(self, now: float) -> None:
        """The shards that the newest version lets begin."""
        allowed = min((len(self.published) + self.cluster.lag) * self.shards, len(self.seconds_N))
        for shard in range(self.offered, allowed):
            heapq.heappush(self.planned, shard)
        self.offered = max(self.offered, allowed)
        self._begin(now)

    def _begin(self, now: float) -> None:
        """Give shards to players, as long as there are both."""
        while self.planned and self.idle:
            shard, player = heapq.heappop(self.planned), heapq.heappop(self.idle)
            newest = len(self.published) - 1
            in_order = max(0, shard // self.shards - self.cluster.lag)
            version = in_order if self.cluster.queue == "in-order" else newest
            self.version_N[shard] = version
            start = now if self.held[player] == version else self._received(now, version)
            self.held[player] = version
            self._play(start, player, shard)

    def _received(self, now: float, version: int) -> float:
        """When a player that asks now has a version."""
        if self.cluster.tree:
            steps = math.ceil(math.log2(self.cluster.players + 1))
            return max(now, self.published[version] + steps * self.cluster.publish)
        self.link = max(self.link, now) + self.cluster.publish
        return self.link

    def _play(self, start: float, player: int, shard: int) -> None:
        seconds, rate = self.seconds_N[shard], self.cluster.failures / HOUR
        until_failure = self.rng.exponential(1 / rate) if rate else math.inf
        if until_failure < seconds:
            self.lost += until_failure + self.cluster.restart
            self._at(start + until_failure, "broken", player, shard)
        else:
            self.playing += seconds
            self._at(start + seconds, "played", player, shard)

    def _learn(self, now: float) -> None:
        """Begin the next update, if its batch is there."""
        iteration = len(self.end_I)
        if self.learning or iteration == self.iterations:
            return
        if self.cluster.queue == "in-order":
            if self.missing_I[iteration]:
                return
            batch = [shard for shard in self.done if shard // self.shards == iteration]
        else:
            if len(self.done) < self.shards:
                return
            batch = self.done[: self.shards]
        self.taken_N[batch] = iteration
        taken = set(batch)
        self.done = [shard for shard in self.done if shard not in taken]
        self.learning = True
        self._at(now + float(self.work.learn_I[iteration]), "learnt")

    def _at(self, time: float, kind: str, player: int = -1, shard: int = -1) -> None:
        self.order += 1
        heapq.heappush(self.events, (time, self.order, kind, player, shard))

    def _outcome(self) -> Outcome:
        seconds = self.end_I[-1]
        of_players = self.cluster.players * seconds
        return Outcome(
            end_I=np.array(self.end_I),
            taken_N=self.taken_N,
            version_N=self.version_N,
            learner_idle=1 - float(self.work.learn_I.sum()) / seconds,
            player_idle=max(0.0, 1 - (self.playing + self.lost) / of_players),
            lost=min(1.0, self.lost / of_players),
            replays=self.replays,
        )


def simulate(work: Work, cluster: Cluster, seed: int = 0) -> Outcome:
    """One run."""
    return Simulation(work, cluster, seed).run()
