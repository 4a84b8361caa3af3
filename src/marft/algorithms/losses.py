"""Losses of single tokens or turns, and the weights with which they add up.

A loss of a batch is Σ weight · loss over its entries. Weights are worked out for a whole minibatch before it is cut
into passes, so how it is cut changes nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token", "turn", "agent"]
KlKind = Literal["k1", "k2", "k3"]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None) -> Tensor:
    """−min(ρA, clip(ρ, 1−ε_low, 1+ε_high)A): PPO's pessimistic bound (arXiv 1707.06347), per entry.

    With a dual clip (arXiv 1912.09729), where A < 0, the objective is at least dual · A, dual > 1: a bad action that
    became very likely pulls with a bounded loss.
    """
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if dual is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual * advantages), loss)


def is_clipped(ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None) -> Tensor:
    """Where the surrogate's gradient is cut off."""
    clipped = ((ratio > 1 + high) & (advantages > 0)) | ((ratio < 1 - low) & (advantages < 0))
    return clipped if dual is None else clipped | ((ratio > dual) & (advantages < 0))


def token_surrogate(
    logprobs_N: Tensor,
    old_N: Tensor,
    advantages_N: Tensor,
    weight_N: Tensor,
    *,
    low: float,
    high: float,
    dual: float | None,
) -> tuple[Tensor, Tensor]:
    """Token-level policy loss with ρ_t = exp(ℓ_t − ℓ_t^old): its weighted sum, and where it was clipped."""
    ratio = (logprobs_N - old_N).exp()
    loss = clipped_surrogate(ratio, advantages_N, low=low, high=high, dual=dual)
    return (loss * weight_N).sum(), is_clipped(ratio, advantages_N, low=low, high=high, dual=dual)


def sum_by_turn(per_token_N: Tensor, turn_N: Tensor, turns: int) -> Tensor:
    """Σ over the tokens of each turn: [N] → [K]."""
    return torch.zeros(turns, dtype=per_token_N.dtype, device=per_token_N.device).index_add(0, turn_N, per_token_N)


def action_ratio(log_ratio_N: Tensor, turn_N: Tensor, divisor_K: Tensor) -> Tensor:
    """ρ_k = exp(Σ_t (ℓ_t − ℓ_t^old) / n_k), n_k = 1 (sum), tokens or words of the turn: action normalisation."""
    return (sum_by_turn(log_ratio_N, turn_N, len(divisor_K)) / divisor_K).exp()


def kl_estimate(logprobs: Tensor, reference: Tensor, kind: KlKind) -> Tensor:
    """KL(π || π_ref) per token sampled from π, with d = ℓ_ref − ℓ: k1 = −d, k2 = ½d², k3 = e^d − d − 1.

    k1 and k3 are unbiased, k2 and k3 never negative (Schulman, "Approximating KL divergence", 2020). As a loss they
    differ: at π, k2's expected gradient is that of the KL, k3's is that of KL(π_ref || π), k1's is 0.
    """
    d = reference - logprobs
    match kind:
        case "k1":
            return -d
        case "k2":
            return 0.5 * d.square()
        case "k3":
            return d.exp() - d - 1


def adapted_kl_weight(weight: float, kl: float, target: float) -> float:
    """β · (1 + 0.1 · clip(kl/target − 1, −0.2, 0.2)): a KL weight that steers the KL to its target (Ziegler et al.,
    arXiv 1909.08593)."""
    return weight * (1 + 0.1 * max(-0.2, min(0.2, kl / target - 1)))


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, *, clip: float | None, huber_delta: float | None
) -> Tensor:
    """½(V − R)², or its Huber form, δ(|V − R| − ½δ) beyond δ, per entry; with `clip`, the worse of it and the one whose
    value moved at most `clip` from the old."""

    def error(v: Tensor) -> Tensor:
        difference = v - returns
        square = 0.5 * difference.square()
        if huber_delta is None:
            return square
        size = difference.abs()
        return torch.where(size <= huber_delta, square, huber_delta * (size - 0.5 * huber_delta))

    if clip is None:
        return error(values)
    return torch.maximum(error(values), error(old_values + (values - old_values).clamp(-clip, clip)))


def turn_weights(lengths_K: Tensor, agents_K: Tensor, adapters_K: Tensor, aggregation: Aggregation) -> Tensor:
    """The weight of each token of turn k, such that every adapter's weights sum to 1 over its own tokens.

    `token`: a mean over the adapter's tokens; `agent`: a mean over the agents that share it of each one's mean over its
    tokens, which is `token` for an agent with its own adapter. All tokens of an agent weigh the same, so but for how the
    minibatch's number of tokens varies, the expected step is the policy gradient whatever baseline is taken off (as with
    the sum over a constant of Dr. GRPO, arXiv 2503.20783).
    `turn`: a mean over turns of the mean over their tokens, as GRPO was published. A token's weight depends on the length
    of its own turn, so a baseline does not cancel, and short turns are favoured where advantages are mostly positive.
    """
    _, adapter_K = adapters_K.unique(return_inverse=True)
    match aggregation:
        case "token":
            return 1 / torch.bincount(adapter_K, weights=lengths_K.double()).float()[adapter_K]
        case "turn":
            return 1 / (lengths_K.float() * torch.bincount(adapter_K)[adapter_K])
        case "agent":
            agents, agent_K = agents_K.unique(return_inverse=True)
            adapter_A = torch.zeros_like(agents).scatter_(0, agent_K, adapter_K)
            sharing_K = torch.bincount(adapter_A)[adapter_K]
            return 1 / (torch.bincount(agent_K, weights=lengths_K.double()).float()[agent_K] * sharing_K)
