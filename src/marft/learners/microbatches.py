"""Many sequences, each read with its own adapter on its own base, packed into passes of a limited number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from marft.algorithms.batch import Batch
from marft.learners.group import Group
from marft.models.scoring import Span, action_span, hidden_states, lay_out, logprobs, passes
from marft.models.sharding import idle_pass
from marft.models.team import TeamModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sequence: who reads it on which base, and the turn it belongs to."""

    span: Span
    team: TeamModel
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Some sequences that go through one base at once, sorted: agents' adapters, critics, the base alone."""

    team: TeamModel
    samples: tuple[Sample, ...]

    @property
    def spans(self) -> list[Span]:
        """The samples' token sequences, in order."""
        return [sample.span for sample in self.samples]

    @property
    def turns(self) -> Tensor:
        """The samples' indices among the batch's turns."""
        return torch.tensor([sample.turn for sample in self.samples])

    @property
    def tokens(self) -> int:
        """That it computes: first tokens which sequences share count once."""
        return len(lay_out(self.team, self.spans).ids)

    def hidden(self) -> Tensor:
        """Last hidden states of all samples, from one forward pass."""
        return hidden_states(self.team, self.spans)

    def split(self) -> tuple[Microbatch, Microbatch]:
        """The agents' sequences, and the critics'."""
        first = sum(sample.span.adapter not in self.team.value_heads for sample in self.samples)
        parts = self.samples[:first], self.samples[first:]
        return Microbatch(team=self.team, samples=parts[0]), Microbatch(team=self.team, samples=parts[1])

    def critics(self) -> Iterator[tuple[str, slice]]:
        """Neighbours that the same critic reads: its name, and their rows among the asked positions."""
        start = 0
        for critic, some in groupby(self.spans, key=lambda span: span.adapter):
            assert critic is not None
            size = sum(span.asked for span in some)
            yield critic, slice(start, start + size)
            start += size


def pack_microbatches(samples: Sequence[Sample], tokens: int) -> Iterator[Microbatch]:
    """All sequences, one base after the other, in passes of at most `tokens` tokens."""
    for team in dict.fromkeys(sample.team for sample in samples):
        own = [sample for sample in samples if sample.team is team]
        for chunk in passes([sample.span for sample in own], [*team.adapters, None], tokens):
            yield Microbatch(team=team, samples=tuple(own[i] for i in chunk))


class Passes:
    """The passes of one rank over its own samples; where the bases are sharded, with idle ones up to what the rank with the
    most samples makes."""

    def __init__(self, teams: Sequence[TeamModel], group: Group, tokens: int) -> None:
        self.teams, self.group, self.tokens = teams, group, tokens

    def over(self, samples: Sequence[Sample]) -> Iterator[Microbatch]:
        """The samples' microbatches, to be computed one by one; further passes are made here."""
        packed: dict[TeamModel, list[Microbatch]] = {team: [] for team in self.teams}
        for micro in pack_microbatches(samples, self.tokens):
            packed[micro.team].append(micro)
        counts = self.group.passes([len(own) for own in packed.values()])
        for (team, own), count in zip(packed.items(), counts, strict=True):
            yield from own
            for _ in range(count - len(own)):
                idle_pass(team)


def critic_values(samples: Sequence[Sample], passes: Passes) -> dict[int, Tensor]:
    """The critics' values at the asked positions, by the samples' turns."""
    found: dict[int, Tensor] = {}
    with torch.no_grad():
        for micro in passes.over(samples):
            hidden = micro.hidden()
            values = torch.cat([micro.team.values(critic, hidden[rows]) for critic, rows in micro.critics()]).cpu()
            pieces = values.split([span.asked for span in micro.spans])
            for i, piece in zip(micro.turns.tolist(), pieces, strict=True):
                found[i] = piece
    return found


def token_logprobs(
    batch: Batch, adapters: Mapping[int, str | None], teams: Mapping[str, TeamModel], passes: Passes
) -> Tensor:
    """Log-probs of some turns' tokens under an adapter each (None: the base alone); 0 where a turn was not asked for.

    `teams` are the bases that members' adapters lie on.
    """
    samples = [
        Sample(
            span=action_span(adapter, batch.prompts[k], batch.completions[k]),
            team=teams[batch.member(k).adapter],
            turn=k,
        )
        for k, adapter in adapters.items()
    ]
    found_N = torch.zeros_like(batch.old_N)
    with torch.no_grad():
        for micro in passes.over(samples):
            rows, turn_N = batch.token_rows(micro.turns)
            chosen, temperature = batch.tokens_N[rows], batch.temperature_K[micro.turns][turn_N]
            device = micro.team.device
            found_N[rows] = logprobs(micro.team, micro.hidden(), chosen.to(device), temperature.to(device))[0].cpu()
    return found_N
