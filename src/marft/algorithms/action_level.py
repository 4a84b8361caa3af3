"""What algorithms with a trust region at action level share: one ratio a turn, normalised and clipped, and how turns
add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from marft.algorithms.experience import Surrogate
from marft.algorithms.losses import (
    Aggregation,
    action_ratio,
    clipped_surrogate,
    is_clipped,
    sum_by_turn,
    turn_weights,
)

Normalise = Literal["sum", "token", "word"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionLevel:
    clip_low: float
    clip_high: float
    dual_clip: float | None
    aggregation: Aggregation
    normalise: Normalise

    def weights(self, length_K: Tensor, agent_K: Tensor, adapter_K: Tensor) -> Tensor:
        return turn_weights(length_K, agent_K, adapter_K, self.aggregation)

    def surrogate(
        self, logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, weight_N: Tensor, turn_N: Tensor, words_K: Tensor
    ) -> Surrogate:
        """A turn's advantage is the mean of its tokens', its weight is n_k times their mean weight: at a ratio of 1 every
        token then pulls with its own weight, whatever the ratio is divided by."""
        tokens = sum_by_turn(torch.ones_like(logprobs_N), turn_N, len(words_K))
        divisor = {"sum": torch.ones_like(tokens), "token": tokens, "word": words_K.clamp(min=1).to(tokens)}
        n_K = divisor[self.normalise]
        ratio = action_ratio(logprobs_N - old_N, turn_N, n_K)
        advantages = sum_by_turn(advantages_N, turn_N, len(words_K)) / tokens
        loss = clipped_surrogate(ratio, advantages, low=self.clip_low, high=self.clip_high, dual=self.dual_clip)
        clipped = is_clipped(ratio, advantages, low=self.clip_low, high=self.clip_high, dual=self.dual_clip)
        weight = n_K * sum_by_turn(weight_N, turn_N, len(words_K)) / tokens
        return Surrogate(loss=(loss * weight).sum(), clipped_N=clipped[turn_N])
