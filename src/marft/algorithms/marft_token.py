"""MARFT-T: token-level trust region with action decomposition (MARFT, arXiv 2504.16129; POAD, arXiv 2405.15821)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from marft.algorithms.base import Algorithm
from marft.config.algorithm import Fraction, GaeConfig

if TYPE_CHECKING:
    from marft.algorithms.batch import Batch, Estimate, Scores


class MarftToken(GaeConfig, Algorithm):
    """Token-level GAE through all turns of an episode, end to end; one ratio a token."""

    values_at: ClassVar[Literal["token", "turn"] | None] = "token"

    name: str = "marft-token"
    token_gamma: Fraction = 1.0
    token_lam: Fraction = 1.0

    def estimate(self, batch: Batch, scores: Scores) -> Estimate:
        """GAE over the tokens of each return, whitened by agent if asked for; needs a value of every token."""
        from marft.algorithms.advantages import token_gae, whiten
        from marft.algorithms.batch import Estimate, to_rows

        assert scores.values is not None
        return_N, rows = batch.return_K[batch.turn_N], len(batch.episode_R)
        values, mask, column = to_rows(scores.values, return_N, rows)
        rewards, _, _ = to_rows(batch.token_rewards(scores.penalty_N), return_N, rows)
        ends, _, _ = to_rows(batch.ends_N, return_N, rows)
        discount, _, _ = to_rows(batch.discount_K[batch.turn_N], return_N, rows)
        advantages = token_gae(
            rewards, values, ends, discount, mask, scores.final_E[batch.episode_R],
            lam=self.turn_lam, token_gamma=self.token_gamma, token_lam=self.token_lam,
        )[return_N, column]  # fmt: skip
        returns = advantages + scores.values
        if self.whiten:
            score_K = batch.returns_to_go(scores.penalty_N)
            agent_N, score_N = batch.agent_K[batch.turn_N], score_K[batch.turn_N]
            advantages = whiten(advantages, agent_N, score_N, noise=scores.noise)
        return Estimate(advantages_N=advantages, returns=returns)
