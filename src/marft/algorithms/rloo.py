"""RLOO: a score less the mean of the others in its group, an unbiased baseline (arXiv 2402.14740)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from marft.algorithms.base import Algorithm

if TYPE_CHECKING:
    from marft.algorithms.batch import Batch, Estimate, Scores


class Rloo(Algorithm):
    """Each sample against the mean of the others."""

    least_samples: ClassVar[int] = 2

    name: str = "rloo"

    def estimate(self, batch: Batch, scores: Scores) -> Estimate:
        """Each turn's score less the mean of the others in its group."""
        from marft.algorithms.advantages import leave_one_out
        from marft.algorithms.grouped import estimate_from_groups

        score_K = batch.returns_to_go(scores.penalty_N)
        return estimate_from_groups(batch, score_K, leave_one_out(score_K, batch.group_K))
