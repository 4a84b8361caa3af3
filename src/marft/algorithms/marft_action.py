"""MARFT-A: action-level trust region, one ratio and one advantage a turn (MARFT, arXiv 2504.16129)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from marft.algorithms.advantages import action_gae, whiten
from marft.algorithms.experience import Estimate, Experience, Surrogate, ValuesAt, to_rows
from marft.algorithms.losses import action_ratio, clipped_surrogate, is_clipped, sum_by_turn, turn_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MarftAction:
    lam: float
    whiten: bool
    clip_low: float
    clip_high: float
    normalise: Literal["sum", "token", "word"]
    values_at: ValuesAt | None = "turn"

    def estimate(self, experience: Experience) -> Estimate:
        """GAE over turns: agent k bootstraps from the next agent to act."""
        assert experience.values is not None
        rows = len(experience.final_E)
        values, mask, column = to_rows(experience.values, experience.episode_K, rows)
        rewards, _, _ = to_rows(experience.reward_K, experience.episode_K, rows)
        grid = action_gae(rewards, values, mask, experience.final_E, gamma=experience.gamma, lam=self.lam)
        advantages = grid[experience.episode_K, column]
        returns = advantages + experience.values
        if self.whiten:
            advantages = whiten(advantages, experience.agent_K)
        return Estimate(advantages_N=advantages[experience.turn_N], returns=returns)

    def weights(self, length_K: Tensor, agent_K: Tensor) -> Tensor:
        return turn_weights(length_K, agent_K, "turn")

    def surrogate(
        self, logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, weight_N: Tensor, turn_N: Tensor, words_K: Tensor
    ) -> Surrogate:
        """A turn's weight is the sum of its tokens' weights; its advantage is that of any of its tokens."""
        tokens = sum_by_turn(torch.ones_like(logprobs_N), turn_N, len(words_K))
        divisor = {"sum": torch.ones_like(tokens), "token": tokens, "word": words_K.clamp(min=1).to(tokens)}
        ratio = action_ratio(logprobs_N - old_N, turn_N, divisor[self.normalise])
        advantages = sum_by_turn(advantages_N, turn_N, len(words_K)) / tokens
        loss = clipped_surrogate(ratio, advantages, low=self.clip_low, high=self.clip_high)
        clipped = is_clipped(ratio, advantages, low=self.clip_low, high=self.clip_high)
        return Surrogate(loss=(loss * sum_by_turn(weight_N, turn_N, len(words_K))).sum(), clipped_N=clipped[turn_N])
