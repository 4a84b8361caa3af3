"""Where a trainer's batches come from: the next tasks in a fixed order, played by a fixed version of the policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Protocol, runtime_checkable

import torch

from marft.algorithms.batch import Batch, Member
from marft.config import Config
from marft.engines.base import Adapters
from marft.rollouts.batching import build_batch
from marft.rollouts.credit import Credit
from marft.rollouts.players import Assignment, Key, Players, Swaps
from marft.rollouts.runner import EpisodeRunner
from marft.types import Episode, MarftError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Episodes that were played, and the batch of those that are learnt from (E of the batch: `learnt`, in order)."""

    episodes: Sequence[Episode]
    batch: Batch
    tokens: int = 0  # generated for all of them
    incidents: Sequence[str] = ()  # what went wrong with players meanwhile, and was mended
    swaps: Mapping[Key, Swaps] = field(default_factory=dict)  # of every shard, where newer versions may enter

    @property
    def learnt(self) -> list[Episode]:
        """The episodes that are trained on."""
        return [episode for episode in self.episodes if is_learnt(episode)]


class EpisodeSource(Protocol):
    """Gives batches, and knows by itself how far it is."""

    def next_batch(self, iteration: int, play: int = 0) -> Rollout:
        """The next batch, for play `play` of an iteration."""

    def published(self, version: int) -> None:
        """The engines speak with this policy from now on."""

    def adapters(self, version: int) -> Adapters:
        """A copy of the adapters of the present version, or of one that plays to come still need, for players with copies."""

    def behind(self) -> Mapping[int, Adapters]:
        """The adapters of versions before the present one that plays to come still need."""

    def state_dict(self) -> dict[str, int]:
        """Where it stands, in plain numbers."""

    def load_state_dict(self, state: Mapping[str, int], behind: Mapping[int, Adapters] | None = None) -> None:
        """Go on from there; `behind` as it was."""


class OrderedSource:
    """Iteration j is played by version max(0, j − lag) of the policy, and batches are given in order: however fast, slow or
    dead the players are, a run consists of the same episodes.

    A play is cut into shards of whole tasks, which several players may play at once. What is in flight when a run ends is
    played again when it goes on. With `rollout.swap: token` that version only begins a play; `swaps` says then, for a run
    that is repeated, where newer ones enter.
    """

    def __init__(
        self, config: Config, runner: EpisodeRunner, players: Players, snapshot: Callable[[], Adapters],
        members: Sequence[Member], credit: Credit, remedy: str, swaps: Mapping[Key, Swaps] | None = None,
    ) -> None:  # fmt: skip
        self.config, self.runner, self.players, self.snapshot = config, runner, players, snapshot
        self.members, self.credit, self.remedy, self.swaps = members, credit, remedy, swaps
        self.version = self.tasks_drawn = self._tasks_planned = 0
        self._versions: dict[int, Adapters] = {}
        self._planned: dict[tuple[int, int], list[Key]] = {}

    def next_batch(self, iteration: int, play: int = 0) -> Rollout:
        """`samples` episodes of each of the next `tasks` tasks; iteration and play decide what is drawn in them."""
        self._plan(iteration, play)
        self._plan_ahead(iteration)
        parts = {key: self.players.take(key) for key in self._planned.pop((iteration, play))}
        episodes = without_late_groups([episode for part in parts.values() for episode in part.episodes])
        self.check(episodes, iteration + 1)
        learnt = [episode for episode in episodes if is_learnt(episode)]
        batch = build_batch(learnt, members=self.members, agents=self.runner.team, credit=self.credit)
        self.tasks_drawn += self.config.train.tasks
        return Rollout(
            episodes=episodes,
            batch=batch,
            tokens=sum(part.tokens for part in parts.values()),
            incidents=self.players.incidents(),
            swaps={key: part.swaps for key, part in parts.items() if self.config.rollout.swap == "token"},
        )

    def published(self, version: int) -> None:
        """Plays that waited for this version begin."""
        self.version = version
        if self.players.copies:
            self._versions[version] = self.snapshot()
            lag = self.config.train.lag
            self._versions = {v: adapters for v, adapters in self._versions.items() if v >= version - lag}
        self.players.published(version, self._versions.get(version, {}))
        if self.players.copies and self._planned:  # else nobody has asked yet, and the run may be at its end
            self._plan_ahead(version)

    def adapters(self, version: int) -> Adapters:
        """Those of the present version or one of the `lag` before it, once it was published."""
        return self._versions[version]

    def behind(self) -> Mapping[int, Adapters]:
        """The `lag` versions before the present one."""
        first = self.version - self.config.train.lag
        return {v: adapters for v, adapters in self._versions.items() if first <= v < self.version}

    def state_dict(self) -> dict[str, int]:
        """How many tasks were drawn for batches that were given: with the seed, all that the order depends on."""
        return {"tasks_drawn": self.tasks_drawn}

    def load_state_dict(self, state: Mapping[str, int], behind: Mapping[int, Adapters] | None = None) -> None:
        """Go on after the tasks that were drawn; whatever is under way is forgotten."""
        self.players.forget()
        self._planned.clear()
        self._versions = dict(behind or {})
        self.tasks_drawn = self._tasks_planned = state["tasks_drawn"]

    def _plan_ahead(self, iteration: int) -> None:
        """The plays that may begin while this iteration is learnt from."""
        for ahead in range(iteration + 1, min(iteration + self.config.train.lag + 1, self.config.train.iterations)):
            self._plan(ahead, 0)

    def _plan(self, iteration: int, play: int) -> None:
        """Cut the play's tasks into shards and offer them to the players, unless that has been done."""
        if (iteration, play) in self._planned:
            return
        lag, samples, drawn = self.config.train.lag, self.config.train.samples, self._draw()
        version = max(0, iteration - lag) if lag else self.version
        if self.players.copies and version not in self._versions:
            assert version == self.version, f"version {version} is gone, the present one is {self.version}"
            self._versions[version] = self.snapshot()
        seed = f"{self.config.seed}/train/{iteration}" + (f"/{play}" if play else "")
        shards = [drawn[i] for i in split_evenly(len(drawn), self.config.shards)]
        self._planned[iteration, play] = [Key(False, iteration, play, shard) for shard in range(len(shards))]
        tasks = self.runner.host.tasks("train")
        for key, shard in zip(self._planned[iteration, play], shards, strict=True):
            indices, firsts = zip(*shard, strict=True)
            assignment = Assignment(
                key=key, version=version, seed=seed, tasks=indices, first_samples=firsts, samples=samples,
                swaps=None if self.swaps is None else self.swaps.get(key, ()),
            )  # fmt: skip
            self.players.offer(assignment, self._versions.get(version, {}), [tasks[i] for i in indices])

    def _draw(self) -> list[tuple[int, int]]:
        """The next tasks in this run's order, and the number of each one's first episode in the batch; those after them may
        be prepared meanwhile."""
        tasks, start, count = self.runner.host.tasks("train"), self._tasks_planned, self.config.train.tasks
        self._tasks_planned += count
        seen: Counter[str] = Counter()  # a task that comes twice in one batch is sampled afresh
        drawn: list[tuple[int, int]] = []
        for i in self.indices(start, count, len(tasks)):
            drawn.append((i, seen[tasks[i].id]))
            seen[tasks[i].id] += self.config.train.samples
        if isinstance(tasks, Prefetching):
            tasks.prefetch(self.indices(start + count, count, len(tasks)))
        return drawn

    def indices(self, start: int, count: int, size: int) -> list[int]:
        """Which tasks are drawn from number `start` on."""
        drawn = range(start, start + count)
        orders = {epoch: task_order(self.config.seed, epoch, size) for epoch in {i // size for i in drawn}}
        return [orders[i // size][i % size] for i in drawn]

    def check(self, episodes: Sequence[Episode], iteration: int) -> None:
        """Whether there is something to learn from."""
        failed = [e for e in episodes if e.ended == "failed" and e.fault != "discarded"]
        played = [episode for episode in episodes if episode.ended != "failed"]
        if len(failed) > self.config.train.failures * len(episodes) or not played:
            raise MarftError(
                f"{len(failed)} of {len(episodes)} episodes failed in iteration {iteration}; the first: {failed[0].error}. "
                f"{self.remedy}",
                trace=next((episode.trace for episode in failed if episode.trace), ""),
            )
        if not any(turn.agent in self.config.team.trained for episode in played for turn in episode.turns):
            raise MarftError("nobody who learns acted in any episode; the workflow must call game.act")
        self.credit.check(played)


def is_learnt(episode: Episode) -> bool:
    """Whether an episode is trained on: one that failed is not."""
    return episode.ended != "failed" and bool(episode.turns)


def resume_remedy(run: Path) -> str:
    """What to do when a run has stopped because its episodes failed."""
    return f"What was written is kept: mend it, then marft train --resume --run {quote(str(run))}"


@runtime_checkable
class Prefetching(Protocol):
    """Tasks that take long to make, and may be made before they are asked for."""

    def prefetch(self, indices: Sequence[int]) -> None:
        """Begin to make the tasks at these indices; returns at once."""


def without_late_groups(episodes: Sequence[Episode]) -> list[Episode]:
    """Where one episode was cut at its deadline, all of its task are given up: of those that are left, the slow would be
    missing, and slow is not the same as bad."""
    late = {episode.task.id for episode in episodes if episode.fault == "late"}
    return [
        replace(episode, ended="failed", fault="discarded", error="discarded: another episode of its task was too late")
        if episode.task.id in late and episode.ended != "failed"
        else episode
        for episode in episodes
    ]


def task_order(seed: int, epoch: int, size: int) -> list[int]:
    """The shuffled order in which epoch `epoch` draws its tasks: every task once before any comes again."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(size, generator=generator).tolist()


def split_evenly(count: int, parts: int) -> list[slice]:
    """At most `parts` slices of `count` things, in order, whose sizes differ by one at most."""
    parts = min(parts, count)
    bounds = [count * i // parts for i in range(parts + 1)]
    return [slice(low, high) for low, high in pairwise(bounds)]
