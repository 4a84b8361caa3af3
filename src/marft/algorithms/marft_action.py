"""MARFT-A: action-level trust region, one ratio and one advantage a turn (MARFT, arXiv 2504.16129)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from marft.algorithms.base import ActionLevel
from marft.config.algorithm import GaeConfig

if TYPE_CHECKING:
    from marft.algorithms.batch import Batch, Estimate, Scores


class MarftAction(GaeConfig, ActionLevel):
    """GAE over turns: agent k bootstraps from the next agent to act."""

    values_at: ClassVar[Literal["token", "turn"] | None] = "turn"

    name: str = "marft-action"
    normalise: Literal["sum", "token", "word"] = "token"

    @property
    def normalised_by(self) -> Literal["sum", "token", "word"]:
        """What a turn's log-ratio is divided by: nothing, its tokens or its words."""
        return self.normalise

    def estimate(self, batch: Batch, scores: Scores) -> Estimate:
        """GAE over the turns of each return, whitened by agent if asked for; needs a value of every turn."""
        from marft.algorithms.advantages import action_gae, whiten
        from marft.algorithms.batch import Estimate, to_rows

        assert scores.values is not None
        return_K, rows = batch.return_K, len(batch.episode_R)
        values, mask, column = to_rows(scores.values, return_K, rows)
        rewards, _, _ = to_rows(batch.turn_rewards(scores.penalty_N), return_K, rows)
        discount, _, _ = to_rows(batch.discount_K, return_K, rows)
        final_R = scores.final_E[batch.episode_R]
        advantages = action_gae(rewards, values, discount, mask, final_R, lam=self.turn_lam)[return_K, column]
        returns = advantages + scores.values
        if self.whiten:
            score_K = batch.returns_to_go(scores.penalty_N)
            advantages = whiten(advantages, batch.agent_K, score_K, noise=scores.noise)
        return Estimate(advantages_N=advantages[batch.turn_N], returns=returns)
