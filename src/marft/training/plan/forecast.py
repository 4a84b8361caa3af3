"""From probes to the figures of a plan: memory, tokens and seconds, as expected and at most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from marft.config import Config
from marft.models.team import TeamModel
from marft.training.batch import Batch
from marft.training.compose import Assembly
from marft.training.learner import Learner
from marft.training.plan.holding import activations, memory
from marft.training.plan.memory import Memory, device_memory
from marft.training.plan.passing import Speed, largest_that_fits
from marft.training.plan.reading import (
    Load,
    Reading,
    batch_of,
    iteration_plays,
    loads,
    most_said,
    read_for_credit,
    read_for_update,
)
from marft.training.plan.rollouts import Pace, Played, Rollouts
from marft.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    expected: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Tokens and seconds are of one iteration, but the evaluation's, which are of one evaluation."""

    memory: Memory
    device_memory: int
    peak: int | None  # bytes that a real pass added, where the device counts them
    pass_tokens: int
    fitting_tokens: int  # of the largest pass that was tried and did not run out of memory
    generated: Range
    trained: Range
    computed: Range  # of those trained, with what sequences share once
    seconds: Mapping[str, Range]  # rollout, credit, update, evaluation
    iterations: int
    evaluations: int
    probed: int  # episodes played whole

    @property
    def iteration(self) -> Range:
        parts = [self.seconds[phase] for phase in ("rollout", "credit", "update")]
        return Range(expected=sum(part.expected for part in parts), most=sum(part.most for part in parts))

    @property
    def run(self) -> Range:
        one, evaluation = self.iteration, self.seconds["evaluation"]
        return Range(
            expected=self.iterations * one.expected + self.evaluations * evaluation.expected,
            most=self.iterations * one.most + self.evaluations * evaluation.most,
        )


def foresee(config: Config, parts: Assembly) -> Forecast:
    """The parts come without recomputation: what a single layer keeps is found before it is switched on."""
    learner, rollouts = parts.learner, Rollouts(config, parts)
    (pace, wide), whole = rollouts.wide(), rollouts.whole()
    batches = [batch_of(config, learner, played.episodes) for played in (whole, wide)]
    scales = [config.train.tasks * config.train.samples / len(played.episodes) for played in (whole, wide)]

    def read(way: Callable[[Config, Learner, Batch], Iterator[Reading]]) -> list[Load]:
        whole, wide = (list(way(config, learner, batch)) for batch in batches)
        return loads(whole, scales[0], wide, scales[1])

    updates, credits = read(read_for_update), read(read_for_credit)
    one_pass = {load.team: pass_of(config, load) for load in updates}
    activation = {load.team: activations(config, load) for load in updates}
    speed = {load.team: largest_that_fits(load.example, one_pass[load.team]) for load in updates}
    small = [each.tokens for team, each in speed.items() if each.tokens < one_pass[team]]
    generated = generation(config, whole, scales[0], iteration_plays(config, learner))
    return Forecast(
        memory=memory(config, parts, whole, one_pass, activation),
        device_memory=device_memory(parts.teams[0].device),
        peak=max((s.peak for s in speed.values() if s.peak is not None), default=None),
        pass_tokens=max(one_pass.values()),
        fitting_tokens=min(small, default=max(one_pass.values())),
        generated=generated,
        trained=Range(expected=sum(r.tokens for r in updates), most=sum(r.tokens + r.more for r in updates)),
        computed=Range(expected=sum(r.computed for r in updates), most=sum(r.computed + r.more for r in updates)),
        seconds=seconds(config, pace, generated, updates, credits, speed),
        iterations=iterations(config, generated.expected),
        evaluations=evaluations(config),
        probed=len(whole.episodes),
    )


# --- tokens ----------------------------------------------------------------------------------------------------------
def generation(config: Config, whole: Played, scale: float, plays: int) -> Range:
    most = max(most_generated(config, episode) for episode in whole.episodes)
    return Range(expected=plays * scale * whole.tokens, most=plays * scale * len(whole.episodes) * most)


def most_generated(config: Config, episode: Episode) -> int:
    """By an episode of as many turns, with the play-outs that its credit asks for."""
    limits = [most_said(config, turn) for turn in episode.turns]
    total = sum(limits)
    if config.credit.name == "difference":
        again = 1 if config.credit.baseline == "blank" else 0  # a blanked turn is not said again, the base's is
        learns = [k for k, turn in enumerate(episode.turns) if turn.agent in config.team.trained]
        total += sum(sum(limits[k + again :]) for k in learns)
    return total


def pass_of(config: Config, load: Load) -> int:
    """Tokens of the largest pass: train.tokens, or a whole minibatch where that has fewer."""
    return min(config.train.tokens, math.ceil((load.computed + load.more) / load.steps))


def iterations(config: Config, generated: float) -> int:
    if config.train.budget is None:
        return config.train.iterations
    return min(config.train.iterations, math.ceil(config.train.budget / max(generated, 1.0)))


def evaluations(config: Config) -> int:
    if not config.eval.tasks:
        return 0
    return 2 + (config.train.iterations // config.eval.every if config.eval.every else 0)


# --- seconds ---------------------------------------------------------------------------------------------------------
def seconds(
    config: Config,
    pace: Pace,
    generated: Range,
    updates: Sequence[Load],
    credits: Sequence[Load],
    speed: Mapping[TeamModel, Speed],
) -> dict[str, Range]:
    episodes = config.train.tasks * config.train.samples
    share = config.eval.tasks / episodes  # of an iteration's tokens, in one evaluation
    return {
        "rollout": Range(
            expected=pace.seconds(episodes, generated.expected), most=pace.seconds(episodes, generated.most)
        ),
        "credit": reading_seconds(credits, {team: each.scoring for team, each in speed.items()}),
        "update": reading_seconds(updates, {team: each.training for team, each in speed.items()}),
        "evaluation": Range(
            expected=pace.seconds(config.eval.tasks, share * generated.expected),
            most=pace.seconds(config.eval.tasks, share * generated.most),
        ),
    }


def reading_seconds(loads: Sequence[Load], token: Mapping[TeamModel, float]) -> Range:
    return Range(
        expected=sum(load.computed * token[load.team] for load in loads),
        most=sum((load.computed + load.more) * token[load.team] for load in loads),
    )
