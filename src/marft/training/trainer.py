"""The loop. Collect episodes, estimate advantages, update every agent, record, checkpoint; evaluate before and after."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

import torch

from marft.config import Config
from marft.envs import tasks_of
from marft.game.play import seed_of
from marft.runs.checkpoints import Checkpoints
from marft.runs.directory import RunDirectory
from marft.runs.tracking import Tracker, flatten
from marft.training.batch import Batch, build_batch
from marft.training.compose import CREDITS, Assembly, eval_settings
from marft.training.evaluation import evaluate
from marft.training.records import agent_metrics, episode_rows, failed_rows
from marft.training.saving import Position, read_checkpoint, write_checkpoint
from marft.types import Episode, MarftError, Task

MOST_FAILURES = 0.5  # of an iteration's episodes; past it the run stops


class Watcher(Protocol):
    """Who is told how the run goes: the terminal, or nobody."""

    def evaluated(self, when: str, row: dict[str, Any]) -> None: ...
    def iterated(self, row: dict[str, Any], of: int) -> None: ...


class Trainer:
    def __init__(
        self, config: Config, parts: Assembly, run: RunDirectory, trackers: Sequence[Tracker], watcher: Watcher
    ) -> None:
        self.config, self.parts, self.run, self.trackers, self.watcher = config, parts, run, trackers, watcher
        self.checkpoints = Checkpoints(run.path / "checkpoints", config.checkpoint.keep)
        self.position = Position()
        self.seconds: dict[str, float] = {}

    def train(self) -> dict[str, Any]:
        """All iterations that are still to do; the run's summary."""
        known = self.run.summary() or {}
        finished = known.get("iterations") == self.position.iteration == self.config.train.iterations
        if finished and self.evaluated("after", known):
            return known  # a finished run, resumed: nothing to do
        started = time.perf_counter()
        self.evaluate("before")
        if self.position.iteration == 0:
            self.save()
        while self.position.iteration < self.config.train.iterations:
            self.iterate()
            done = self.position.iteration
            if done % self.config.checkpoint.every == 0 or done == self.config.train.iterations:
                self.save()
        self.evaluate("after")
        return self.summarise(time.perf_counter() - started)

    def iterate(self) -> None:
        self.seconds = {}
        with self.timed("rollout"):
            episodes = self.collect()
        with self.timed("credit"):
            batch = self.prepare(episodes)
            values = self.parts.learner.values(batch)
            final_E = self.parts.learner.final_values(batch)
            estimate = self.parts.learner.algorithm.estimate(batch.experience(values, final_E))
        with self.timed("update"):
            statistics = self.parts.learner.update(
                batch,
                estimate,
                values,
                lr_factor=self.lr_factor(),
                policy=self.policy_learns(),
                generator=self.generator(),
            )
        tokens = {"rollout": int(batch.length_K.sum()), "update": self.trained(batch)}
        self.advance(tokens)
        row = {
            "iteration": self.position.iteration,
            **agent_metrics(episodes, batch, estimate, values, statistics, self.position.version - 1),
            "tokens": tokens,
        }
        with self.timed("eval"):
            if self.config.eval.every and self.position.iteration % self.config.eval.every == 0:
                row["eval"] = evaluate(self.parts.table, eval_settings(self.config), self.config.seed)
        self.record({**row, "seconds": self.seconds}, episodes, batch, estimate.advantages_N)

    def collect(self) -> list[Episode]:
        """One iteration's episodes: `samples` of each of the next `tasks` tasks."""
        pairs: list[tuple[Task, int]] = []
        drawn: Counter[str] = Counter()  # a task that comes twice in one iteration is sampled afresh
        for task in self.next_tasks():
            pairs += [(task, drawn[task.id] + i) for i in range(self.config.train.samples)]
            drawn[task.id] += self.config.train.samples
        seed = f"{self.config.seed}/train/{self.position.iteration}"
        episodes = asyncio.run(self.parts.table.episodes(pairs, seed))
        failed = [episode for episode in episodes if episode.ended == "failed"]
        if len(failed) > MOST_FAILURES * len(episodes):
            raise MarftError(
                f"{len(failed)} of {len(episodes)} episodes failed in iteration {self.position.iteration + 1}; the first: "
                f"{failed[0].error}. What was written is kept: mend it, then marft train --resume --run {self.run.path}"
            )
        if not any(episode.turns for episode in episodes if episode.ended != "failed"):
            raise MarftError("nobody acted in any episode; the workflow must call game.act")
        return episodes

    def next_tasks(self) -> list[Task]:
        tasks, start = tasks_of(self.parts.table.env, "train"), self.position.tasks_drawn
        epochs = {i // len(tasks) for i in range(start, start + self.config.train.tasks)}
        orders = {epoch: task_order(self.config.seed, epoch, len(tasks)) for epoch in epochs}
        drawn = range(start, start + self.config.train.tasks)
        return [tasks[orders[i // len(tasks)][i % len(tasks)]] for i in drawn]

    def prepare(self, episodes: Sequence[Episode]) -> Batch:
        agents = self.parts.table.team
        return build_batch(
            [episode for episode in episodes if episode.ended != "failed" and episode.turns],
            agents=list(agents),
            temperatures={name: agent.sampling.temperature for name, agent in agents.items()},
            credit=CREDITS[self.config.credit.name],
            encode_state=self.parts.engine.encode if self.config.has_critic else None,
        )

    def advance(self, tokens: Mapping[str, int]) -> None:
        self.parts.engine.version += 1
        p = self.position
        self.position = Position(
            iteration=p.iteration + 1,
            version=self.parts.engine.version,
            tasks_drawn=p.tasks_drawn + self.config.train.tasks,
            tokens_generated=p.tokens_generated + tokens["rollout"],
            tokens_trained=p.tokens_trained + tokens["update"],
        )

    def trained(self, batch: Batch) -> int:
        """Tokens that go through the base in an update: prompts and actions, of policies and critic, every epoch."""
        actions = int(batch.length_K.sum())
        policy = sum(len(turn.prompt_ids) for turn in batch.turns) + actions
        critic = sum(map(len, batch.states)) + (actions if self.parts.learner.algorithm.values_at == "token" else 0)
        return (policy * self.policy_learns() + critic * bool(batch.states)) * self.config.train.epochs

    def lr_factor(self) -> float:
        """Linear warm-up, then constant or linear decay to a tenth."""
        done, optimizer = self.position.iteration, self.config.optimizer
        rise = min(1.0, (done + 1) / (optimizer.warmup + 1))
        fall = 1 - 0.9 * done / self.config.train.iterations if optimizer.decay == "linear" else 1.0
        return rise * fall

    def policy_learns(self) -> bool:
        return self.position.iteration >= self.config.critic.warmup

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(seed_of(self.config.seed, "minibatches", self.position.iteration))

    def record(
        self, row: dict[str, Any], episodes: Sequence[Episode], batch: Batch, advantages_N: torch.Tensor
    ) -> None:
        count = self.config.track.episodes
        self.run.append_episodes(episode_rows(batch, advantages_N, row["iteration"], count))
        self.run.append_episodes(failed_rows(episodes, row["iteration"], count))
        self.run.append_metrics(row)
        for tracker in self.trackers:
            tracker.log(row["iteration"], flatten(row))
        self.watcher.iterated(row, self.config.train.iterations)

    def save(self) -> None:
        base, learner, position = self.config.model, self.parts.learner, self.position
        self.checkpoints.save(position.iteration, lambda folder: write_checkpoint(folder, learner, position, base))

    def resume(self, warn: Callable[[str], None], at: int | None) -> bool:
        """Go back to the newest checkpoint that is whole (or to `at`), and forget what came after it; False: none is."""
        self.checkpoints.recover()
        found = self.checkpoints.newest_valid(warn, at)
        if found is not None:
            self.position = read_checkpoint(self.checkpoints.path(found), self.parts.learner)
            self.parts.engine.version = self.position.version
        self.checkpoints.drop_after(self.position.iteration)
        self.run.truncate(self.position.iteration)
        summary = self.run.summary() or {}
        if summary.get("iterations", 0) > self.position.iteration:  # of the part that is forgotten
            self.run.write_summary({when: row for when, row in summary.items() if when == "before"})
        return found is not None

    def evaluate(self, when: str) -> None:
        """Before or after training; a figure that the summary already holds is not worked out again."""
        summary, done = self.run.summary() or {}, self.position.iteration
        if self.evaluated(when, summary) or (when == "before" and done > 0):
            return
        settings = eval_settings(self.config)
        row = {"iteration": done, "settings": asdict(settings)}
        row |= evaluate(self.parts.table, settings, self.config.seed)
        self.run.write_summary({**summary, when: row})
        self.watcher.evaluated(when, row)

    def evaluated(self, when: str, summary: Mapping[str, Any]) -> bool:
        """Whether there is nothing to evaluate, or the summary holds it already, of the same team in the same way."""
        row, settings = summary.get(when, {}), asdict(eval_settings(self.config))
        same = row.get("iteration") == self.position.iteration and row.get("settings") == settings
        return same or not self.config.eval.tasks

    def summarise(self, seconds: float) -> dict[str, Any]:
        summary = self.run.summary() or {}
        position = self.position
        summary |= {
            "iterations": position.iteration,
            "seconds": round(summary.get("seconds", 0.0) + seconds, 3),
            "tokens": {"generated": position.tokens_generated, "trained": position.tokens_trained},
        }
        self.run.write_summary(summary)
        return summary

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[phase] = round(time.perf_counter() - started, 4)


def task_order(seed: int, epoch: int, size: int) -> list[int]:
    """The shuffled order in which epoch `epoch` draws its tasks: every task once before any comes again."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(size, generator=generator).tolist()
