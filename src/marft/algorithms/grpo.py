"""GRPO for teams: advantages relative to the group, each agent with its own groups (GRPO, arXiv 2402.03300).

A group is (task, agent, which of its turns), as in AT-GRPO: pooling agents would inflate the gradients of those whose
rewards are distributed differently.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from marft.algorithms.advantages import group_relative
from marft.algorithms.experience import Estimate, Experience, Surrogate, ValuesAt
from marft.algorithms.losses import Aggregation, token_surrogate, turn_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    std_floor: float
    clip_low: float
    clip_high: float
    aggregation: Aggregation
    values_at: ValuesAt | None = None

    def estimate(self, experience: Experience) -> Estimate:
        advantages = group_relative(experience.score_K, experience.group_K, std_floor=self.std_floor)
        return Estimate(advantages_N=advantages[experience.turn_N], returns=None)

    def weights(self, length_K: Tensor, agent_K: Tensor) -> Tensor:
        return turn_weights(length_K, agent_K, self.aggregation)

    def surrogate(
        self, logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, weight_N: Tensor, turn_N: Tensor, words_K: Tensor
    ) -> Surrogate:
        loss, clipped_N = token_surrogate(
            logprobs_N, old_N, advantages_N, weight_N, low=self.clip_low, high=self.clip_high
        )
        return Surrogate(loss=loss, clipped_N=clipped_N)
