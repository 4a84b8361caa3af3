"""The passes of one iteration: those of a few whole episodes, repeated until there are as many as the run has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from marft.config import Config
from marft.game.play import Agent
from marft.learners.local import LocalLearner
from marft.learners.microbatches import Microbatch, Sample, pack
from marft.models.team import TeamModel
from marft.rollouts.batching import build_batch
from marft.rollouts.credit import Credit
from marft.terminal.status import Status
from marft.training.schedule import plays
from marft.types import Episode

COPY = 0.125  # of a computed token's memory: about what a copied key takes


class Reading:
    """A pass, the tokens of its sequences, and those that it computes."""

    def __init__(self, one: Microbatch) -> None:
        self.one, self.team = one, one.team
        self.tokens, self.computed = sum(len(span.ids) for span in one.spans), one.tokens

    @property
    def weight(self) -> float:
        """Tells which pass takes the most memory: its sequences' keys are copied side by side, padded to the longest."""
        return self.computed + COPY * len(self.one.samples) * max(len(span.ids) for span in self.one.spans)


class Iteration:
    """Whole rounds of a schedule, so that everybody learns: `rounds` iterations, each with `plays` plays on average.

    A copy of an episode stands for one of another task: they have in common what all tasks have, and no more.
    """

    def __init__(
        self,
        config: Config,
        learner: LocalLearner,
        agents: Mapping[str, Agent],
        episodes: Sequence[Episode],
        status: Status | None = None,
    ) -> None:
        assert isinstance(config.credit, Credit)
        self.config, self.learner, self.status = config, learner, status or Status()
        copies = [divmod(i, len(episodes)) for i in range(config.train.tasks * config.train.samples)]
        copies = [(copy, e) for copy, e in copies if episodes[e].ended != "failed" and episodes[e].turns]
        self.batch = build_batch(
            [of_another_task(episodes[e], copy) for copy, e in copies],
            members=learner.members,
            agents=agents,
            credit=config.credit,
        )
        self.turns_K = torch.arange(len(self.batch.length_K))
        self.copy_K = torch.tensor([copy for copy, _ in copies])[self.batch.episode_K]
        mode, adapters = config.schedule.mode, list(dict.fromkeys(member.adapter for member in learner.members))
        self.adapters = adapters
        self.rounds = len(adapters) if mode == "alternate" else 1
        self.schedule = [s for i in range(self.rounds) for s in plays(mode, adapters, iteration=i, interval=1, seed=0)]
        self.plays = len(self.schedule) / self.rounds
        everyone = learner.samples(self.batch, self.turns_K, {*adapters, *learner.critics})
        self.alike = {
            name: in_common([one.span.ids for one in everyone if one.span.adapter == name])
            for name in {one.span.adapter for one in everyone}
        }

    def trained(self) -> Iterator[Reading]:
        """With gradient: minibatch by minibatch, in every step."""
        for steps in self.schedule:
            for number, step in enumerate(steps):
                learning = set(step) | (self.learner.critics if number == 0 else set())
                for turns_J in self.learner.minibatches(self.batch, torch.Generator().manual_seed(0)):
                    yield from self.read(turns_J, learning)

    def between(self) -> Iterator[Reading]:
        """Without gradient, after every step but a play's last: how far those who learnt have moved."""
        for step in (step for steps in self.schedule for step in steps[:-1]):
            yield from self.read(self.turns_K, step)

    def valued(self) -> Iterator[Reading]:
        """Without gradient, after every play: critics' values, and log-probs of ours or of the base where asked for."""
        kl, compares = self.config.algorithm.kl.weight > 0, self.config.engine.compares
        for _ in self.schedule:
            for readers in (self.learner.critics, *[self.adapters] * (kl + compares)):
                yield from self.read(self.turns_K, readers)

    def read(self, turns_J: torch.Tensor, readers: Collection[str]) -> Iterator[Reading]:
        """What these read of some turns, in the run's passes."""
        self.status.expect(len(turns_J))
        copy_J = self.copy_K[turns_J].tolist()
        work = self.learner.samples(self.batch, turns_J, readers)
        yield from map(Reading, pack([self.again(one, copy_J[one.turn]) for one in work], self.config.train.tokens))
        self.status.advance(len(turns_J))

    def again(self, work: Sample, copy: int) -> Sample:
        """With other tokens after those that all sequences of the adapter begin with."""
        ids, alike, words = work.span.ids, self.alike[work.span.adapter], work.team.config.vocab_size
        other = (*ids[:alike], *((token + copy) % words for token in ids[alike:])) if copy else ids
        return replace(work, span=replace(work.span, ids=other))


def of_another_task(episode: Episode, copy: int) -> Episode:
    return replace(episode, task=replace(episode.task, id=f"{episode.task.id} {copy}"))


def in_common(sequences: Sequence[tuple[int, ...]]) -> int:
    """How many first tokens all have in common."""
    first, last = min(sequences), max(sequences)  # all others lie between them
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def heaviest_of(phases: Iterable[Sequence[Reading]]) -> dict[TeamModel, Microbatch]:
    """Of each base, from the first phase that it has a pass in."""
    found: dict[TeamModel, Microbatch] = {}
    for readings in phases:
        for team in {each.team for each in readings} - found.keys():
            found[team] = max((each for each in readings if each.team is team), key=lambda each: each.weight).one
    return found
