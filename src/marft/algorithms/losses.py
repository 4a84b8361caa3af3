"""Losses of single tokens or turns, and the weights with which they add up.

A loss of a batch is Σ weight · loss over its entries. Weights are worked out for a whole minibatch before it is cut
into passes, so how it is cut changes nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token", "turn"]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """−min(ρA, clip(ρ, 1−ε_low, 1+ε_high)A): PPO's pessimistic bound (arXiv 1707.06347), per entry."""
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def is_clipped(ratio: Tensor, advantages: Tensor, *, low: float, high: float) -> Tensor:
    """Where the surrogate's gradient is cut off."""
    return ((ratio > 1 + high) & (advantages > 0)) | ((ratio < 1 - low) & (advantages < 0))


def token_surrogate(
    logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, weight_N: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Token-level policy loss with ρ_t = exp(ℓ_t − ℓ_t^old): its weighted sum, and where it was clipped."""
    ratio = (logprobs_N - old_N).exp()
    loss = clipped_surrogate(ratio, advantages_N, low=low, high=high)
    return (loss * weight_N).sum(), is_clipped(ratio, advantages_N, low=low, high=high)


def sum_by_turn(per_token_N: Tensor, turn_N: Tensor, turns: int) -> Tensor:
    """Σ over the tokens of each turn: [N] → [K]."""
    return torch.zeros(turns, dtype=per_token_N.dtype, device=per_token_N.device).index_add(0, turn_N, per_token_N)


def action_ratio(log_ratio_N: Tensor, turn_N: Tensor, divisor_K: Tensor) -> Tensor:
    """ρ_k = exp(Σ_t (ℓ_t − ℓ_t^old) / n_k), n_k = 1 (sum), tokens or words of the turn: action normalisation."""
    return (sum_by_turn(log_ratio_N, turn_N, len(divisor_K)) / divisor_K).exp()


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """KL(π || π_ref) estimated per token as e^d − d − 1, d = ℓ_ref − ℓ: unbiased and never negative."""
    d = reference - logprobs
    return d.exp() - d - 1


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, *, clip: float | None, kind: Literal["mse", "huber"]
) -> Tensor:
    """½(V − R)² or its Huber form (|V − R| beyond 1), per entry; with `clip`, the worse of it and the one whose value
    moved at most `clip` from the old."""

    def error(v: Tensor) -> Tensor:
        difference = v - returns
        if kind == "mse":
            return 0.5 * difference.square()
        size = difference.abs()
        return torch.where(size <= 1, 0.5 * difference.square(), size - 0.5)

    if clip is None:
        return error(values)
    return torch.maximum(error(values), error(old_values + (values - old_values).clamp(-clip, clip)))


def turn_weights(lengths_K: Tensor, agents_K: Tensor, aggregation: Aggregation) -> Tensor:
    """The weight of each token of turn k, such that every agent's weights sum to 1 over its own tokens.

    `token`: a mean over the agent's tokens; `turn`: a mean over its turns of the mean over their tokens.
    """
    weights = torch.zeros(len(lengths_K), dtype=torch.float32, device=lengths_K.device)
    for agent in agents_K.unique():
        own = agents_K == agent
        lengths = lengths_K[own].float()
        weights[own] = 1 / (lengths * len(lengths)) if aggregation == "turn" else 1 / lengths.sum().expand_as(lengths)
    return weights
