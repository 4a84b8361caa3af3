"""One packed pass over sequences of different adapters: hidden states where they are asked for, then log-probs or values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from marft.models.attention import Packed, Pick, ragged
from marft.models.team import TeamModel, segments

MOST_LOGITS = 1 << 26  # held at once: 256 MB in fp32


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
    """Hidden states [Σ asked, D] of spans, which must come sorted by adapter, in their order."""
    lengths = [len(span.ids) for span in spans]
    attend = Packed(lengths, team.device)
    adapters = [None if span.adapter is None else team.lora.index[span.adapter] for span in spans]
    ids = torch.tensor([[token for span in spans for token in span.ids]], device=team.device)
    hidden = team.hidden(ids, attend.position_ids, attend, segments(adapters, lengths))
    asked = torch.tensor([span.asked for span in spans])
    ends = torch.tensor(lengths).cumsum(0)
    row, offset = ragged(asked)
    picked: Tensor = Pick.apply(hidden[0], ((ends - asked)[row] + offset).to(team.device))
    return picked


def logprobs(
    team: TeamModel, hidden_ND: Tensor, tokens_N: Tensor, temperature_N: Tensor, *, entropy_trains: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of each token under the distribution it was sampled from, and the entropy there.

    Rows of vocabulary width are many times the rest of a pass: past MOST_LOGITS they are computed part by part, and once
    more for each part's gradient, instead of being held.
    """
    rows = max(1, MOST_LOGITS // team.config.vocab_size)
    if len(hidden_ND) <= rows:
        return logprobs_at_once(team, hidden_ND, tokens_N, temperature_N, entropy_trains)
    parts = [
        checkpoint(logprobs_at_once, team, *part, entropy_trains, use_reentrant=False)
        for part in zip(hidden_ND.split(rows), tokens_N.split(rows), temperature_N.split(rows), strict=True)
    ]
    found_N, entropy_N = (torch.cat(column) for column in zip(*parts, strict=True))
    return found_N, entropy_N


def logprobs_at_once(
    team: TeamModel, hidden_ND: Tensor, tokens_N: Tensor, temperature_N: Tensor, entropy_trains: bool
) -> tuple[Tensor, Tensor]:
    """The entropy keeps its graph only where it is trained: it would hold two more tensors of vocabulary width."""
    full_NV = (team.logits(hidden_ND) / temperature_N[:, None]).log_softmax(-1)
    with torch.set_grad_enabled(entropy_trains and torch.is_grad_enabled()):
        entropy_N = -(full_NV.exp() * full_NV).sum(-1)
    return full_NV.gather(1, tokens_N[:, None]).squeeze(1), entropy_N


def passes(spans: Sequence[Span], adapters: Sequence[str | None], budget: int) -> list[list[int]]:
    """Cut spans into passes of at most `budget` tokens: longest first, so that memory runs out at once or never, and
    of like length, so that little is padded; inside a pass sorted as `adapters` are."""
    by_length = sorted(range(len(spans)), key=lambda i: -len(spans[i].ids))
    cut: list[list[int]] = []
    used = budget
    for i in by_length:
        if used + len(spans[i].ids) > budget:
            cut.append([])
            used = 0
        cut[-1].append(i)
        used += len(spans[i].ids)
    rank = {adapter: r for r, adapter in enumerate(adapters)}
    return [sorted(chunk, key=lambda i: (rank[spans[i].adapter], i)) for chunk in cut]
