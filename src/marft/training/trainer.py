"""The loop. Collect episodes, estimate advantages, update every agent, record, checkpoint; evaluate before and after."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch

from marft.algorithms.batch import Batch, TrainingBatch, check_estimate
from marft.algorithms.decoupled import Decoupled, Mismatch, decouple
from marft.algorithms.kl_penalty import kl_penalty
from marft.config import Config
from marft.envs.hosting import Host
from marft.game.play import seed_of
from marft.learners.base import RankLost, Steps, Update, UpdatePlan
from marft.rollouts.credit import Credit
from marft.rollouts.players import LocalPlayers, Players
from marft.rollouts.source import EpisodeSource, OrderedSource, Rollout, resume_remedy
from marft.runs.checkpoints import Checkpoints
from marft.runs.directory import RunDirectory
from marft.runs.file_schemas import When
from marft.runs.transcripts import make_transcript, worst_episodes
from marft.training.adaptation import after_update, scheduled_rate
from marft.training.beside import evaluate_beside
from marft.training.build import Assembly
from marft.training.checkpoint import Position, write_checkpoint
from marft.training.guard import Collapsed, Guard
from marft.training.interruption import Interruption
from marft.training.metrics import Play, episode_rows, failed_rows, iteration_row
from marft.training.resuming import SLOWER, recover_from, restart_ranks
from marft.training.schedule import schedule_plays
from marft.training.swap_log import logged_swaps, record_swaps
from marft.training.tracking import Tracker, flatten
from marft.training.watchers import Evaluator, Keep, Watcher
from marft.types import Episode

COUNTED = {"rollout": "episodes", "update": "minibatches", "eval": "episodes"}  # what a phase consists of


class Trainer:
    """One run, from where it stands to its end."""

    def __init__(
        self, config: Config, parts: Assembly, run: RunDirectory, evaluator: Evaluator, watcher: Watcher,
        *, players: Players | None = None, trackers: Sequence[Tracker] = (), interruption: Interruption | None = None,
    ) -> None:  # fmt: skip
        self.config, self.parts, self.run, self.trackers, self.watcher = config, parts, run, trackers, watcher
        self.learner, self.evaluator = parts.learner, evaluator
        assert isinstance(config.credit, Credit)
        self.players = players or LocalPlayers(config, parts.runner, parts)
        self.source: EpisodeSource = OrderedSource(
            config, parts.runner, self.players, parts.snapshot, self.learner.members, config.credit, resume_remedy(run.path),
            logged_swaps(config),
        )  # fmt: skip
        self.beside: list[int] = []  # iterations whose evaluations are under way
        self.checkpoints = Checkpoints(run.path / "checkpoints", config.checkpoint.keep)
        self.position = Position()
        self.guard = Guard(run, parts.vocabularies, watcher.warned, stops=config.train.on_collapse != "warn")
        self.seconds: dict[str, float] = {}
        self.interruption = interruption or Interruption()
        self.status, self.title = parts.runner.status, ""  # of the iteration
        self.restarted_at: int | None = None  # the checkpoint that a lost rank of the learner last led back to
        self.begun = False  # before that, the weights need not be those of the position

    def train(self) -> dict[str, Any]:
        """All iterations that are still to do; the run's summary."""
        known = self.run.summary() or {}
        if self.finished and known.get("iterations") == self.position.iteration and self.is_evaluated("after", known):
            return known  # a finished run, resumed: nothing to do
        started, self.begun = time.perf_counter(), True
        self.learner.start()
        self.evaluate("before")
        if self.position.iteration == 0:
            self.save()
        while not self.finished:
            try:
                self.iterate()
            except Collapsed as found:
                recover_from(self, found)
            except RankLost as lost:
                restart_ranks(self, lost)
            else:
                if self.finished or self.position.iteration % self.config.checkpoint.every == 0:
                    self.save()
            self.interruption.release()
        self.evaluate("after")
        summary = self.summarise(time.perf_counter() - started)
        self.run.append_event("finished", self.position.iteration)
        return summary

    @property
    def finished(self) -> bool:
        """Whether all iterations, or the whole budget of tokens, are done."""
        return self.progress >= 1

    @property
    def progress(self) -> float:
        """How much of the run is done, by iterations or by the budget of tokens, whichever is further."""
        train, position = self.config.train, self.position
        spent = position.tokens_generated / train.budget if train.budget else 0.0
        return max(position.iteration / train.iterations, spent)

    def iterate(self) -> None:
        """Play, estimate, update and publish, as often as the schedule says; then write down what came of it."""
        self.seconds = dict.fromkeys(("rollout", "credit", "update", "eval"), 0.0)
        before, progress = self.position, self.progress
        self.title = f"iteration {before.iteration + 1}"
        done: list[Play] = []
        for number, steps in enumerate(self.plays()):
            with self.time_phase("rollout"):
                rollout = self.source.next_batch(before.iteration, number)
                self.note_incidents(rollout.incidents, before.iteration + 1)
                record_swaps(self.run, rollout.swaps)
            with self.time_phase("credit"), self.require_finite(rollout):
                data, mismatch = self.estimate(rollout.batch)
            with self.time_phase("update"), self.require_finite(rollout, data):
                self.interruption.hold()  # from here to the end of the iteration the weights are not those of any position
                update = self.learner.update(data, self.plan(number, steps))
            learning, version = frozenset[str]().union(*steps), self.position.version
            done.append(
                Play(rollout=rollout, data=data, update=update, learning=learning, version=version, mismatch=mismatch)
            )
            self.advance(data, update, rollout.tokens)
            self.publish()
        self.position = replace(self.position, iteration=before.iteration + 1)
        self.report(done, before, progress)

    def report(self, done: Sequence[Play], before: Position, progress: float) -> None:
        """The iteration's row, for files, trackers, the terminal and the guard; evaluates where it is time to."""
        row = {
            "iteration": self.position.iteration,
            **iteration_row(done),
            "tokens": {
                "rollout": self.position.tokens_generated - before.tokens_generated,
                "update": self.position.tokens_trained - before.tokens_trained,
            },
        }
        with self.time_phase("eval"):
            if self.evaluator.is_beside:
                evaluate_beside(self, row)
            elif self.is_evaluation_due(self.position.iteration):
                row["eval"] = self.play_held_out("during")
        row["seconds"] = self.seconds
        self.record(row, done)
        self.watcher.iterated(row, progress, self.progress)
        self.guard.look(row)

    def is_evaluation_due(self, iteration: int) -> bool:
        """Whether the team is evaluated as this iteration leaves it."""
        tasks, every = self.config.eval.tasks, self.config.eval.every
        return tasks > 0 and every > 0 and iteration % every == 0

    def note_incidents(self, lines: Sequence[str], iteration: int) -> None:
        """Players that were lost and replaced, for the terminal and the record."""
        for line in lines:
            self.run.append_event("player", iteration, line=line)
            self.watcher.warned(line)

    def require_finite(self, rollout: Rollout, data: TrainingBatch | None = None) -> AbstractContextManager[None]:
        """A context that saves the batch and raises Collapsed where a value or a gradient is not finite."""
        return self.guard.require_finite(self.position.iteration + 1, self.parts.teams, rollout, data)

    def advance(self, data: TrainingBatch, update: Update, generated: int) -> None:
        """Where the run stands after an update."""
        adapted = after_update(self.position, self.config.algorithm.kl, data, update)
        generated, drawn = generated + self.position.tokens_generated, self.source.state_dict()["tasks_drawn"]
        self.position = replace(adapted, tokens_generated=generated, tasks_drawn=drawn)

    def publish(self) -> None:
        """The engines speak with the adapters as they are now."""
        self.parts.publish(self.position.version)
        self.source.published(self.position.version)

    def plays(self) -> tuple[Steps, ...]:
        """This iteration's plays and steps; while critics warm up, nobody else learns."""
        schedule, done = self.config.schedule, self.position.iteration - self.config.critic.warmup
        if done < 0:
            return ((frozenset(),),)
        seed = seed_of(self.config.seed, "order", self.position.iteration)
        adapters = list(dict.fromkeys(member.adapter for member in self.learner.members))
        return schedule_plays(schedule.mode, adapters, iteration=done, interval=schedule.interval or 1, seed=seed)

    def plan(self, number: int, steps: Steps) -> UpdatePlan:
        """Who learns how fast after play `number` of this iteration."""
        parts = ("minibatches", self.position.iteration, *([number] if number else []))
        kl = self.config.algorithm.kl
        return UpdatePlan(
            steps=steps,
            rates=self.rates(),
            seed=seed_of(self.config.seed, *parts),
            kl_weights={} if kl.where == "reward" else self.present_kl_weights(),
        )

    def present_kl_weights(self) -> dict[str, float]:
        """Each learning agent's weight of the KL to the base in this iteration."""
        weights, start = self.position.kl_weights, self.config.algorithm.kl.weight
        return {member.agent: weights.get(member.agent, start) for member in self.learner.members}

    def estimate(self, batch: Batch) -> tuple[TrainingBatch, Mismatch | None]:
        """What the episodes are worth, turn by turn and token by token; and how far the policy that spoke is off."""
        kl, compares, algorithm = self.config.algorithm.kl, self.config.compares, self.learner.algorithm
        penalised = bool(kl.weight) and kl.where == "reward"
        scores = self.learner.score(batch, reference=bool(kl.weight), proximal=compares or penalised)
        found: Decoupled | None = None
        if compares:
            assert scores.proximal_N is not None
            found = decouple(batch, scores.proximal_N, algorithm.ratio, self.config.correction)
        if penalised:
            assert scores.proximal_N is not None
            assert scores.reference_N is not None
            weight_A = torch.tensor(list(self.present_kl_weights().values()))
            version = self.position.version
            penalty = kl_penalty(batch, weight_A, scores.proximal_N, scores.reference_N, kl.estimator, version=version)
            scores = replace(scores, penalty_N=penalty.amount_N, noise=penalty.noise)
        baselines = [self.position.baselines.get(member.agent, math.nan) for member in self.learner.members]
        scores = replace(scores, baseline_A=torch.tensor(baselines))
        learnt = batch if found is None else found.batch
        estimate = algorithm.estimate(learnt, scores)
        check_estimate(estimate, learnt, scores, self.config.algorithm.name)
        estimate = estimate if found is None else found.weighted(estimate)
        data = TrainingBatch(batch=learnt, scores=scores, estimate=estimate)
        return data, None if found is None else found.mismatch

    def rates(self) -> dict[str, float]:
        """The factors of all learning rates in this iteration: what the trust region left of each, for one thing."""
        scheduled = scheduled_rate(self.config.optimizer, self.position.iteration, self.progress)
        common = scheduled * SLOWER**self.position.returns
        return {name: common * self.position.rates.get(name, 1.0) for name in self.learner.rates}

    def record(self, row: dict[str, Any], plays: Sequence[Play]) -> None:
        """Write the iteration's row and episodes to the run's files, and send them to all trackers."""
        count, rollout, data = self.config.track.episodes, plays[0].rollout, plays[0].data
        gold = self.parts.runner.host.gold
        self.run.append_episodes(episode_rows(rollout, data, row["iteration"], count, gold))
        self.run.append_episodes(failed_rows(rollout.episodes, row["iteration"], count, gold))
        self.run.append_metrics(row)
        shown = [make_transcript(episode, gold(episode.task)) for episode in rollout.episodes[:count]]
        for tracker in self.trackers:
            tracker.log(row["iteration"], flatten(row))
            if shown:
                tracker.show(row["iteration"], shown)

    def save(self) -> None:
        """Write a checkpoint of the present position."""
        parts, position = self.parts, self.position
        self.status.begin("saving a checkpoint", announce=False)
        self.checkpoints.save(
            position.iteration,
            lambda folder: write_checkpoint(folder, parts.teams, parts.learner, position, self.source.behind()),
        )

    def evaluate(self, when: When) -> None:
        """Before or after training; a figure that the summary already holds is not worked out again."""
        summary, done = self.run.summary() or {}, self.position.iteration
        if self.is_evaluated(when, summary) or (when == "before" and done > 0):
            return
        self.status.begin(f"evaluating {when} training", unit="episodes")
        row = {"iteration": done, "settings": self.evaluator.describe_settings()}
        row |= self.play_held_out(when)
        self.run.write_summary({**summary, when: row})
        for tracker in self.trackers:  # one curve with the evaluations during training
            tracker.log(done, flatten({"eval": {key: row[key] for key in row if key not in ("iteration", "settings")}}))
        self.watcher.evaluated(when, row)

    def play_held_out(self, when: When) -> dict[str, Any]:
        """The figures of an evaluation at this moment; its transcripts go into the run's folder."""
        iteration = self.position.iteration
        keep = self.keep_transcripts(when, iteration)
        if not self.config.only_learns:
            return self.evaluator.play(keep)
        self.evaluator.offer(iteration, self.position.version, self.parts.snapshot())
        return self.evaluator.take(iteration, keep)

    def keep_transcripts(self, when: When, iteration: int) -> Keep:
        """What writes the transcripts of an evaluation into the run's folder."""

        def keep(benchmark: str | None, episodes: Sequence[Episode], host: Host) -> None:
            worst = worst_episodes(episodes, self.config.track.held_out)
            kept = [make_transcript(episode, host.gold(episode.task)) for episode in worst]
            self.run.append_held_out(iteration, when, benchmark, kept)

        return keep

    def is_evaluated(self, when: str, summary: Mapping[str, Any]) -> bool:
        """Whether there is nothing to evaluate, or the summary holds it already, of the same team in the same way."""
        row, settings = summary.get(when, {}), self.evaluator.describe_settings()
        same = row.get("iteration") == self.position.iteration and row.get("settings") == settings
        return same or not self.config.eval.tasks

    def summarise(self, seconds: float) -> dict[str, Any]:
        """Add iterations, tokens and `seconds` of this process to `summary.json`; returns the summary."""
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
    def time_phase(self, phase: str) -> Iterator[None]:
        """A context whose duration is added to the seconds of `phase` in this iteration."""
        self.status.begin(f"{self.title}: {phase}", unit=COUNTED.get(phase, ""), announce=False)
        started = time.perf_counter()
        yield
        self.seconds[phase] = round(self.seconds[phase] + time.perf_counter() - started, 4)
