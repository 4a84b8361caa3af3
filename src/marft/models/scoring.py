"""One packed pass over sequences of different adapters: hidden states where they are asked for, then log-probs or values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marft.models.attention import PackedAttention, SelectRows, ragged
from marft.models.gradient_scale import scale_gradients
from marft.models.layout import Layout, shared_prefix_lengths, sharing_order
from marft.models.logprobs import TokenLogProbs
from marft.models.prefix_attention import PrefixAttention, RowCopies
from marft.models.team import TeamModel

WORTH = 0.25  # of a sequence's tokens must stand in the row already: copying keys and values for less is no gain
MOST_KEYS = 4  # keys that a pass may copy for each token of its budget: they take memory too


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens to read with one adapter (None: the base alone), and how many of the last positions are asked for."""

    adapter: str | None
    ids: tuple[int, ...]
    asked: int


def action_span(adapter: str | None, prompt_ids: tuple[int, ...], action_ids: tuple[int, ...]) -> Span:
    """The positions that predict each token of an action, its end-of-turn included: the token itself is never needed
    as input at the last one."""
    return Span(adapter=adapter, ids=prompt_ids + action_ids[:-1], asked=len(action_ids))


def hidden_states(team: TeamModel, spans: Sequence[Span]) -> Tensor:
    """Hidden states [Σ asked, D] of spans, which must come sorted by adapter, in their order.

    First tokens that a span has in common with the one before it are computed once, where that is worth it.
    """
    layout = lay_out(team, spans)
    attend = (
        PrefixAttention(layout, team.device) if layout.shares else PackedAttention(layout.lengths.tolist(), team.device)
    )
    routing = team.routing([adapter_number(team, span) for span in spans], layout.sizes.tolist())
    hidden = team(layout.ids[None].to(team.device), attend.position_ids, attend, routing)[0]
    asked = torch.tensor([span.asked for span in spans])
    row, offset = ragged(asked)
    where = layout.origin[(layout.lengths.cumsum(0) - asked)[row] + offset]
    if layout.shares:  # spans that end alike ask for the same states
        return scale_gradients(RowCopies(where, len(hidden), team.device)(hidden), routing)
    return scale_gradients(SelectRows.apply(hidden, where.to(team.device)), routing)


def lay_out(team: TeamModel, spans: Sequence[Span]) -> Layout:
    """The row of tokens that a pass over these spans computes."""
    return Layout.of([(adapter_number(team, span), span.ids) for span in spans], worth=WORTH)


def adapter_number(team: TeamModel, span: Span) -> int | None:
    """The place of a span's adapter in the team; None for the base alone."""
    return None if span.adapter is None else team.lora.index[span.adapter]


def logprobs(
    team: TeamModel, hidden_ND: Tensor, tokens_N: Tensor, temperature_N: Tensor, *, entropy_trains: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of each token under the distribution it was sampled from, and the entropy there."""
    found: tuple[Tensor, Tensor] = TokenLogProbs.apply(hidden_ND, tokens_N, temperature_N, team, entropy_trains)
    return found


def passes(spans: Sequence[Span], adapters: Sequence[str | None], budget: int) -> list[list[int]]:
    """Cut spans into passes of at most `budget` distinct tokens: longest first, so that memory runs out at once or never,
    and of like length, so that little is padded. Families, which begin with the same tokens, stay together. Inside a
    pass spans are sorted as `adapters` are, and then so that they share the most."""
    rank = {adapter: r for r, adapter in enumerate(adapters)}
    sequences = [(rank[span.adapter], span.ids) for span in spans]
    cut: list[list[int]] = []
    used = keys = 0
    for family in prefix_groups(sequences):
        for i, common in family:
            length = len(spans[i].ids)
            new = length - common
            if not cut or used + new > budget or keys + length > MOST_KEYS * budget:
                cut.append([])
                used, keys, new = 0, 0, length
            cut[-1].append(i)
            used, keys = used + new, keys + length
    cut.sort(key=lambda chunk: -max(len(spans[i].ids) for i in chunk))
    return [[chunk[i] for i in sharing_order([sequences[i] for i in chunk])] for chunk in cut]


def prefix_groups(sequences: Sequence[tuple[int, tuple[int, ...]]]) -> list[list[tuple[int, int]]]:
    """Sequences with their neighbours that begin alike: each one's number, and how many tokens it shares with the one
    before. The family with the longest sequence comes first."""
    order = sharing_order(sequences)
    common = shared_prefix_lengths([sequences[i] for i in order]).tolist() if order else []
    found: list[list[tuple[int, int]]] = []
    for i, shared in zip(order, common, strict=True):
        if not found or shared < max(1, WORTH * len(sequences[i][1])):
            found.append([(i, 0)])
        else:
            found[-1].append((i, shared))
    return sorted(found, key=lambda family: -max(len(sequences[i][1]) for i, _ in family))
