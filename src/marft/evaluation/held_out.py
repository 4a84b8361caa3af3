"""Evaluation in the course of training: one episode a task, on the run's own held-out tasks and on its benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from statistics import fmean
from typing import Any

from marft.config import Config
from marft.engines.base import Adapters
from marft.envs.hosting import Host
from marft.evaluation.benchmarks import (
    EvalSettings,
    eval_settings,
    first_tasks,
    open_benchmark,
    read_held_out_tasks,
    with_eval_sampling,
)
from marft.evaluation.failures import Failures, Tolerance
from marft.evaluation.intervals import wilson_interval
from marft.game.lockstep import Lockstep
from marft.rollouts.call_counts import call_figures
from marft.rollouts.event_loop import run_async
from marft.rollouts.players import Assignment, Key, Players
from marft.rollouts.runner import EpisodeRunner, Start
from marft.rollouts.source import split_evenly
from marft.training.build import Assembly
from marft.training.metrics import mean_parts
from marft.training.watchers import Keep
from marft.types import Episode, Task

DEFAULT_TOLERANCE = Tolerance()


class HeldOut:
    """A run's evaluations of its own team, before, during and after training; with `players`, those during training are
    theirs to play, beside it."""

    def __init__(self, config: Config, parts: Assembly, remedy: str, players: Players | None = None) -> None:
        self.config, self.parts, self.settings, self.players = config, parts, eval_settings(config), players
        self.tolerance = Tolerance(share=config.train.failures, remedy=remedy)
        self._offered: dict[int, list[list[Key]]] = {}  # by iteration, of each environment

    @property
    def is_beside(self) -> bool:
        """Whether evaluations can be offered."""
        return self.players is not None

    def describe_settings(self) -> dict[str, Any]:
        """How tasks are played, in plain data: figures of other settings are other figures."""
        return asdict(self.settings)

    def play(self, keep: Keep) -> dict[str, Any]:
        """The figures of the team as it is now."""
        return evaluate_held_out(
            self.parts.runner, self.settings, self.config.seed, self.parts.lockstep, tolerance=self.tolerance, keep=keep
        )

    def offer(self, iteration: int, version: int, adapters: Adapters) -> None:
        """The players' to play, with these adapters; returns at once."""
        names = enumerate((None, *self.settings.benchmarks))
        self._offered[iteration] = [self._offer_tasks(iteration, play, name, version, adapters) for play, name in names]

    def take(self, iteration: int, keep: Keep) -> dict[str, Any]:
        """The figures of what was offered, which are those that `play` would have given then; waits for them."""
        own, *others = self._offered.pop(iteration)
        row = judge_episodes(self._take_episodes(own), self.parts.runner.host, None, self.tolerance, keep)
        for (name, env), keys in zip(self.settings.benchmarks.items(), others, strict=True):
            episodes = self._take_episodes(keys)
            with open_benchmark(self.parts.runner, name, env, self.parts.lockstep) as other:
                found = judge_episodes(episodes, other.host, name, self.tolerance, keep)
            row.setdefault("benchmarks", {})[name] = found
        return row

    def _offer_tasks(self, iteration: int, play: int, name: str | None, version: int, adapters: Adapters) -> list[Key]:
        """In shards of as many episodes as those of training, so that training waits for none of them for long."""
        assert self.players is not None
        tasks, train = self._tasks[name], self.config.train
        size = max(1, train.tasks * train.samples // self.config.shards)
        keys = []
        for shard, part in enumerate(split_evenly(len(tasks), -(-len(tasks) // size))):
            indices = tuple(range(len(tasks))[part])
            assignment = Assignment(
                key=Key(True, iteration, play, shard), version=version, seed=f"{self.config.seed}/eval", tasks=indices,
                first_samples=(0,) * len(indices), samples=1, benchmark=name,
            )  # fmt: skip
            self.players.offer(assignment, adapters, tasks[part])
            keys.append(assignment.key)
        return keys

    def _take_episodes(self, keys: Sequence[Key]) -> list[Episode]:
        assert self.players is not None
        return [episode for key in keys for episode in self.players.take(key).episodes]

    @cached_property
    def _tasks(self) -> dict[str | None, list[Task]]:
        """By benchmark; None: the run's own."""
        found: dict[str | None, Sequence[Task]] = {None: self.parts.runner.host.tasks("test")}
        found |= {name: read_held_out_tasks(name, env) for name, env in self.settings.benchmarks.items()}
        return {name: first_tasks(tasks, self.settings.tasks) for name, tasks in found.items()}


def evaluate_held_out(
    runner: EpisodeRunner, settings: EvalSettings, seed: int, lockstep: Lockstep, *, tolerance: Tolerance = DEFAULT_TOLERANCE,
    keep: Keep = lambda name, episodes, host: None,
) -> dict[str, Any]:  # fmt: skip
    """Mean reward and accuracy on the first held-out tasks. The same seed asks the same questions with the same seeds.

    The figures are those of the run's own tasks; those of each benchmark stand below `benchmarks`. `lockstep` is what the
    team's engines wait for. Whatever was played is given to `keep`, also where so much of it failed that it ends here.
    """
    row = play_once_each(runner, settings, seed, None, tolerance, keep)
    for name, env in settings.benchmarks.items():
        with open_benchmark(runner, name, env, lockstep) as other:
            found = play_once_each(other, settings, seed, name, tolerance, keep)
            row.setdefault("benchmarks", {})[name] = found
    return row


def play_once_each(
    runner: EpisodeRunner, settings: EvalSettings, seed: int, benchmark: str | None, tolerance: Tolerance, keep: Keep
) -> dict[str, Any]:
    """Play one episode on each held-out task of one environment; returns the figures of `summarise_episodes`."""
    starts = [Start(task=task, sample=0) for task in first_tasks(runner.host.tasks("test"), settings.tasks)]
    episodes = run_async(with_eval_sampling(runner, settings).episodes(starts, f"{seed}/eval"))
    return judge_episodes(episodes, runner.host, benchmark, tolerance, keep)


def judge_episodes(
    episodes: Sequence[Episode], host: Host, benchmark: str | None, tolerance: Tolerance, keep: Keep
) -> dict[str, Any]:
    """The figures of what was played in one environment, unless too much of it failed."""
    keep(benchmark, episodes, host)
    of = "" if benchmark is None else f" of benchmark {benchmark}"
    tolerance.judge(Failures().plus_episodes(episodes), f"held-out episodes{of}")
    return summarise_episodes(episodes)


def summarise_episodes(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Figures of one evaluation; failed episodes count as wrong and are counted."""
    graded = [e for e in episodes if e.reward.correct is not None or e.ended == "failed"]
    lengths: dict[str, list[int]] = {}
    for episode in episodes:
        for turn in episode.turns:
            lengths.setdefault(turn.agent, []).append(len(turn.completion.token_ids))
    row: dict[str, Any] = {
        "tasks": len(episodes),
        "reward": fmean(episode.reward.team for episode in episodes),
        "failed": sum(e.ended == "failed" for e in episodes),
        "tokens": {agent: sum(n) / len(n) for agent, n in lengths.items()},
        "tokens_per_task": sum(map(sum, lengths.values())) / len(episodes),
    }
    if parts := mean_parts(episodes):
        row["reward_parts"] = parts
    if calls := call_figures(episodes):
        row["calls"] = calls
    if row["failed"]:
        row["first_error"] = next(e.error for e in episodes if e.ended == "failed")
    if any(e.reward.correct is not None for e in episodes):
        right = sum(bool(e.reward.correct) for e in graded)
        row["accuracy"] = right / len(graded)
        row["accuracy_ci95"] = list(wilson_interval(right, len(graded)))
    return row
