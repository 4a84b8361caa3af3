"""What an iteration reads in its passes, counted on a few episodes that were played whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from marft.config import Config
from marft.models.team import TeamModel
from marft.training.batch import Batch, build_batch
from marft.training.choose import make_credit
from marft.training.learner import Learner
from marft.training.passes import Pass, Work, cut
from marft.training.schedule import plays
from marft.types import Episode, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Of some sequences on one base: their tokens, those of them that are computed, and those that they would have more if
    everybody said the most."""

    team: TeamModel
    tokens: int
    computed: int
    more: int
    example: Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one base reads in an iteration, in so many steps, and a pass like those it does."""

    team: TeamModel
    tokens: float
    computed: float
    more: float
    steps: int
    example: Pass


def loads(whole: Sequence[Reading], scale: float, wide: Sequence[Reading], wide_scale: float) -> list[Load]:
    """Whole episodes show how long sequences are; many of them, though cut short, how much they have in common."""
    found: list[Load] = []
    for team in dict.fromkeys(reading.team for reading in whole):
        own = [reading for reading in whole if reading.team is team]
        tokens = scale * sum(reading.tokens for reading in own)
        spared = wide_scale * sum(reading.tokens - reading.computed for reading in wide if reading.team is team)
        found.append(
            Load(
                team=team,
                tokens=tokens,
                computed=max(tokens - spared, 0.0),
                more=scale * sum(reading.more for reading in own),
                steps=len(own),
                example=own[0].example,
            )
        )
    return found


def batch_of(config: Config, learner: Learner, episodes: tuple[Episode, ...]) -> Batch:
    return build_batch(
        [episode for episode in episodes if episode.ended != "failed" and episode.turns],
        members=learner.members,
        credit=make_credit(config.credit),
        by_branch=config.credit.name == "tree",
    )


def iteration_plays(config: Config, learner: Learner) -> int:
    return len(plays(config.schedule.mode, learner.adapters, iteration=0, interval=1, seed=0))


def read_for_update(config: Config, learner: Learner, batch: Batch) -> Iterator[Reading]:
    """Minibatch by minibatch, in every step of an iteration."""
    found = plays(config.schedule.mode, learner.adapters, iteration=0, interval=1, seed=0)
    for steps in found:
        for number, step in enumerate(steps):
            learning = set(step) | (learner.critics if number == 0 else set())
            for turns_J in learner.minibatches(batch, torch.Generator().manual_seed(0)):
                turns = turns_J.tolist()
                work = learner.work(batch, turns_J, learning)
                yield from readings(config, batch, work, [turns[one.turn] for one in work])


def read_for_credit(config: Config, learner: Learner, batch: Batch) -> Iterator[Reading]:
    """Critics' values, and log-probs of the untrained base or of ours where somebody asks for them."""
    every = range(len(batch.turns))
    if learner.critics:
        yield from readings(config, batch, [learner.judging(batch, k, k) for k in every], list(every))
    scored = learner.work(batch, torch.tensor(list(every)), learner.adapters)
    for asked in (config.algorithm.kl.weight, config.engine.compares):
        if asked:
            yield from readings(config, batch, scored, list(every))


def readings(config: Config, batch: Batch, work: list[Work], turns: list[int]) -> Iterator[Reading]:
    """One a base; `turns` are the batch's turns that the work belongs to."""
    slack = {id(one): missing(config, batch, k, one) for one, k in zip(work, turns, strict=True)}
    for one in cut(work, 1 << 40):
        yield Reading(
            team=one.team,
            tokens=sum(len(span.ids) for span in one.spans),
            computed=sum(part.tokens for part in cut(one.work, config.train.tokens)),
            more=sum(slack[id(each)] for each in one.work),
            example=one,
        )


def missing(config: Config, batch: Batch, k: int, work: Work) -> int:
    """Tokens that turn k and those before it could still have said, as far as the model can read them."""
    turn, episode = batch.turns[k], batch.episodes[int(batch.episode_K[k])]
    unsaid = sum(most_said(config, each) - len(each.completion.token_ids) for each in episode.turns[: turn.index + 1])
    return max(0, min(unsaid, work.team.longest - len(work.span.ids)))


def most_said(config: Config, turn: Turn) -> int:
    """Tokens of ours that a turn may have; what is not ours costs us nothing to say."""
    agent = config.team.agents.get(turn.agent)
    ours = agent is not None and agent.kind in ("trained", "frozen")
    return agent.max_tokens if ours and agent is not None else len(turn.completion.token_ids)
