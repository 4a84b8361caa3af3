"""RAE: role-conditioned advantages, scores less a running baseline of each agent (SPIRAL, arXiv 2506.24119)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from marft.algorithms.base import Algorithm

if TYPE_CHECKING:
    from marft.algorithms.batch import Batch, Estimate, Scores


class Rae(Algorithm):
    """Scores against a running baseline of each agent."""

    name: str = "rae"
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9

    def estimate(self, batch: Batch, scores: Scores) -> Estimate:
        """Scores less each agent's running baseline, and the baselines after this batch."""
        from marft.algorithms.advantages import running_baseline
        from marft.algorithms.batch import Estimate

        assert scores.baseline_A is not None
        score_K = batch.returns_to_go(scores.penalty_N)
        advantages_K, baseline_A = running_baseline(score_K, batch.agent_K, scores.baseline_A, decay=self.decay)
        return Estimate(advantages_N=advantages_K[batch.turn_N], baseline_A=baseline_A)
