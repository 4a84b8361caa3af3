"""MARFT-A: action-level trust region, one ratio and one advantage a turn (MARFT, arXiv 2504.16129)."""

from __future__ import annotations

from dataclasses import dataclass

from marft.algorithms.action_level import ActionLevel
from marft.algorithms.advantages import action_gae, whiten
from marft.algorithms.experience import Estimate, Experience, ValuesAt, to_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class MarftAction(ActionLevel):
    lam: float
    whiten: bool
    values_at: ValuesAt | None = "turn"

    def estimate(self, experience: Experience) -> Estimate:
        """GAE over turns: agent k bootstraps from the next agent to act."""
        assert experience.values is not None
        episode_K, rows = experience.episode_K, len(experience.final_E)
        values, mask, column = to_rows(experience.values, episode_K, rows)
        rewards, _, _ = to_rows(experience.turn_reward_K, episode_K, rows)
        discount, _, _ = to_rows(experience.discount_K, episode_K, rows)
        advantages = action_gae(rewards, values, discount, mask, experience.final_E, lam=self.lam)[episode_K, column]
        returns = advantages + experience.values
        if self.whiten:
            advantages = whiten(advantages, experience.agent_K, experience.score_K, noise=experience.noise)
        return Estimate(advantages_N=advantages[experience.turn_N], returns=returns)
