"""Where a trainer's episodes come from: the next tasks, played by the team, with the play-outs that the credit asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Protocol, runtime_checkable

import torch

from marft.config import Config
from marft.rollouts.counterfactuals import with_differences, with_forks
from marft.rollouts.event_loop import run_async
from marft.rollouts.team import Start, Table
from marft.training.checkpoint import Position
from marft.types import Episode, MarftError, Task


class Source:
    """Plays on demand. What it plays depends on the run's position alone, so a resumed run plays the same."""

    def __init__(self, config: Config, table: Table, run: Path) -> None:
        self.config, self.table, self.run = config, table, run

    def collect(self, position: Position, number: int) -> list[Episode]:
        """Play `number` of an iteration: `samples` episodes of each of the next `tasks` tasks."""
        starts: list[Start] = []
        drawn: Counter[str] = Counter()  # a task that comes twice in one play is sampled afresh
        for task in self.next_tasks(position.tasks_drawn):
            starts += [Start(task=task, sample=drawn[task.id] + i) for i in range(self.config.train.samples)]
            drawn[task.id] += self.config.train.samples
        seed = f"{self.config.seed}/train/{position.iteration}" + (f"/{number}" if number else "")
        episodes = without_late_groups(run_async(self.play(starts, seed)))
        self.check(episodes, position.iteration + 1)
        return episodes

    async def play(self, starts: Sequence[Start], seed: str) -> list[Episode]:
        credit, learns = self.config.credit, set(self.config.team.trained)
        if credit.name == "tree":
            return await with_forks(self.table, starts, seed, samples=self.config.train.samples, learns=learns)
        episodes = await self.table.episodes(starts, seed)
        if credit.name == "difference":
            return await with_differences(self.table, episodes, seed, learns=learns, baseline=credit.baseline)
        return episodes

    def next_tasks(self, start: int) -> list[Task]:
        """The next ones in this run's order; those after them may be prepared meanwhile."""
        tasks, count = self.table.host.tasks("train"), self.config.train.tasks
        chosen = [tasks[i] for i in self.indices(start, count, len(tasks))]
        if isinstance(tasks, Prepares):
            tasks.prefetch(self.indices(start + count, count, len(tasks)))
        return chosen

    def indices(self, start: int, count: int, size: int) -> list[int]:
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
                f"{remedy(self.run)}",
                trace=next((episode.trace for episode in failed if episode.trace), ""),
            )
        if not any(turn.agent in self.config.team.trained for episode in played for turn in episode.turns):
            raise MarftError("nobody who learns acted in any episode; the workflow must call game.act")
        credit = self.config.credit.name
        if credit in ("per_step", "per_player") and not any(episode.reward.turns for episode in played):
            raise MarftError(
                f"credit: {credit} needs rewards of single turns (Reward.turns), and this environment gives none; "
                "use credit=equal"
            )


def remedy(run: Path) -> str:
    """What to do when a run has stopped because its episodes failed."""
    return f"What was written is kept: mend it, then marft train --resume --run {quote(str(run))}"


@runtime_checkable
class Prepares(Protocol):
    """Tasks that take long to make, and may be made before they are asked for."""

    def prefetch(self, indices: Sequence[int]) -> None: ...


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
