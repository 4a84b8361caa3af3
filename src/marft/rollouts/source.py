"""Where a trainer's batches come from: the next tasks, played by the team, with the play-outs that the credit asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Protocol, runtime_checkable

import torch

from marft.algorithms.batch import Batch, Member
from marft.config import Config
from marft.rollouts.batching import build_batch
from marft.rollouts.credit import Credit
from marft.rollouts.event_loop import run_async
from marft.rollouts.runner import EpisodeRunner, Start
from marft.types import Episode, MarftError, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Episodes that were played, and the batch of those that are learnt from (E of the batch: `learnt`, in order)."""

    episodes: Sequence[Episode]
    batch: Batch

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

    def state_dict(self) -> dict[str, int]:
        """Where it stands, in plain numbers."""

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from there."""


class SynchronousSource:
    """Plays on demand, all episodes of a batch at once, with the policy as it is."""

    def __init__(
        self, config: Config, runner: EpisodeRunner, members: Sequence[Member], credit: Credit, remedy: str
    ) -> None:
        self.config, self.runner, self.members, self.credit, self.remedy = config, runner, members, credit, remedy
        self.tasks_drawn = 0

    def next_batch(self, iteration: int, play: int = 0) -> Rollout:
        """`samples` episodes of each of the next `tasks` tasks; iteration and play decide what is drawn in them."""
        starts: list[Start] = []
        drawn: Counter[str] = Counter()  # a task that comes twice in one batch is sampled afresh
        for task in self.next_tasks():
            starts += [Start(task=task, sample=drawn[task.id] + i) for i in range(self.config.train.samples)]
            drawn[task.id] += self.config.train.samples
        learns, samples = set(self.config.team.trained), self.config.train.samples
        seed = f"{self.config.seed}/train/{iteration}" + (f"/{play}" if play else "")
        playing = self.credit.play(self.runner, starts, seed, samples=samples, learns=learns)
        episodes = without_late_groups(run_async(playing))
        self.check(episodes, iteration + 1)
        learnt = [episode for episode in episodes if is_learnt(episode)]
        batch = build_batch(learnt, members=self.members, agents=self.runner.team, credit=self.credit)
        self.tasks_drawn += self.config.train.tasks
        return Rollout(episodes=episodes, batch=batch)

    def published(self, version: int) -> None:
        """Nothing is under way meanwhile."""

    def state_dict(self) -> dict[str, int]:
        """How many tasks were drawn so far: with the seed, all that the order depends on."""
        return {"tasks_drawn": self.tasks_drawn}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on after the tasks that were drawn."""
        self.tasks_drawn = state["tasks_drawn"]

    def next_tasks(self) -> list[Task]:
        """The next ones in this run's order; those after them may be prepared meanwhile."""
        tasks, start, count = self.runner.host.tasks("train"), self.tasks_drawn, self.config.train.tasks
        chosen = [tasks[i] for i in self.indices(start, count, len(tasks))]
        if isinstance(tasks, Prefetching):
            tasks.prefetch(self.indices(start + count, count, len(tasks)))
        return chosen

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
