"""MARFT-T: token-level trust region with action decomposition (MARFT, arXiv 2504.16129; POAD, arXiv 2405.15821)."""

from __future__ import annotations

from dataclasses import dataclass

from marft.algorithms.advantages import token_gae, whiten
from marft.algorithms.experience import Estimate, Experience, ValuesAt, to_rows
from marft.algorithms.token_level import TokenLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class MarftToken(TokenLevel):
    lam: float
    token_gamma: float
    token_lam: float
    whiten: bool
    values_at: ValuesAt | None = "token"

    def estimate(self, experience: Experience) -> Estimate:
        """Token-level GAE through all turns of an episode, end to end."""
        assert experience.values is not None
        turn_N = experience.turn_N
        episode_N, rows = experience.episode_K[turn_N], len(experience.final_E)
        values, mask, column = to_rows(experience.values, episode_N, rows)
        rewards, _, _ = to_rows(experience.token_reward_N, episode_N, rows)
        ends, _, _ = to_rows(experience.ends_N, episode_N, rows)
        discount, _, _ = to_rows(experience.discount_K[turn_N], episode_N, rows)
        advantages = token_gae(
            rewards, values, ends, discount, mask, experience.final_E,
            lam=self.lam, token_gamma=self.token_gamma, token_lam=self.token_lam,
        )[episode_N, column]  # fmt: skip
        returns = advantages + experience.values
        if self.whiten:
            agent_N, score_N = experience.agent_K[turn_N], experience.score_K[turn_N]
            advantages = whiten(advantages, agent_N, score_N, noise=experience.noise)
        return Estimate(advantages_N=advantages, returns=returns)
