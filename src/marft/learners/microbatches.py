"""Passes over many sequences, each read with its own adapter on its own base: values and log-probs without gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from marft.models.attention import ragged
from marft.models.scoring import Span, action_span, hidden_states, lay_out, logprobs, passes
from marft.models.team import TeamModel
from marft.rollouts.batching import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One sequence: who reads it on which base, and the turn it belongs to."""

    span: Span
    team: TeamModel
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Some sequences that go through one base at once, sorted: agents' adapters, critics, the base alone."""

    team: TeamModel
    work: tuple[Work, ...]

    @property
    def spans(self) -> list[Span]:
        return [one.span for one in self.work]

    @property
    def turns(self) -> Tensor:
        return torch.tensor([one.turn for one in self.work])

    @property
    def tokens(self) -> int:
        """That it computes: first tokens which sequences share count once."""
        return len(lay_out(self.team, self.spans).ids)

    def hidden(self) -> Tensor:
        return hidden_states(self.team, self.spans)

    def split(self) -> tuple[Pass, Pass]:
        """The agents' sequences, and the critics'."""
        first = sum(one.span.adapter not in self.team.value_heads for one in self.work)
        return Pass(team=self.team, work=self.work[:first]), Pass(team=self.team, work=self.work[first:])


def cut(work: Sequence[Work], tokens: int) -> Iterator[Pass]:
    """All sequences, one base after the other, in passes of at most `tokens` tokens."""
    for team in dict.fromkeys(one.team for one in work):
        own = [one for one in work if one.team is team]
        for chunk in passes([one.span for one in own], [*team.adapters, None], tokens):
            yield Pass(team=team, work=tuple(own[i] for i in chunk))


def judge(work: Sequence[Work], tokens: int) -> list[Tensor]:
    """The critics' values at the asked positions; work[i].turn must be i."""
    found: list[Tensor] = [torch.empty(0)] * len(work)
    with torch.no_grad():
        for one in cut(work, tokens):
            hidden = one.hidden()
            values = torch.cat([one.team.values(critic, hidden[rows]) for critic, rows in runs(one.spans)]).cpu()
            for i, piece in zip(one.turns.tolist(), values.split([span.asked for span in one.spans]), strict=True):
                found[i] = piece
    return found


def score(batch: Batch, adapters: Mapping[int, str | None], tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Log-probs of some turns' tokens under an adapter each, pass by pass: their flat rows, and the log-probs."""
    work = [
        Work(
            span=action_span(adapter, batch.turns[k].prompt_ids, batch.turns[k].completion.token_ids),
            team=batch.member(k).team,
            turn=k,
        )
        for k, adapter in adapters.items()
    ]
    with torch.no_grad():
        for one in cut(work, tokens):
            rows, turn_N = token_rows(batch, one.turns)
            chosen, temperature = batch.tokens_N[rows], batch.temperature_K[one.turns][turn_N]
            device = one.team.device
            new, _ = logprobs(one.team, one.hidden(), chosen.to(device), temperature.to(device))
            yield rows, new.cpu()


def scored(batch: Batch, adapters: Mapping[int, str | None], tokens: int) -> Tensor:
    """The same as one tensor over all tokens, 0 where a turn was not asked for."""
    found_N = torch.zeros_like(batch.old_N)
    for rows, new in score(batch, adapters, tokens):
        found_N[rows] = new
    return found_N


def runs(spans: Sequence[Span]) -> Iterator[tuple[str, slice]]:
    """Neighbours that the same critic reads: its name, and their rows among the asked positions."""
    start = 0
    for critic, some in groupby(spans, key=lambda span: span.adapter):
        assert critic is not None
        size = sum(span.asked for span in some)
        yield critic, slice(start, start + size)
        start += size


def token_rows(batch: Batch, turns_J: Tensor) -> tuple[Tensor, Tensor]:
    """The flat rows of the tokens of some turns, in their order, and which of those turns each belongs to."""
    turn, offset = ragged(batch.length_K[turns_J])
    return batch.starts_K[turns_J][turn] + offset, turn
