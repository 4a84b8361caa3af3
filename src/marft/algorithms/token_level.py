"""What algorithms with a trust region at token level share: one ratio a token, clipped, and how tokens add up."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from marft.algorithms.experience import Surrogate
from marft.algorithms.losses import Aggregation, token_surrogate, turn_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLevel:
    clip_low: float
    clip_high: float
    dual_clip: float | None
    aggregation: Aggregation

    def weights(self, length_K: Tensor, agent_K: Tensor, adapter_K: Tensor) -> Tensor:
        return turn_weights(length_K, agent_K, adapter_K, self.aggregation)

    def surrogate(
        self, logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, weight_N: Tensor, turn_N: Tensor, words_K: Tensor
    ) -> Surrogate:
        loss, clipped_N = token_surrogate(
            logprobs_N, old_N, advantages_N, weight_N, low=self.clip_low, high=self.clip_high, dual=self.dual_clip
        )
        return Surrogate(loss=loss, clipped_N=clipped_N)
