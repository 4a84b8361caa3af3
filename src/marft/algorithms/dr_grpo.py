"""Dr. GRPO: scores less their group's mean, not divided by the deviation (arXiv 2503.20783).

The division would weigh tasks that are nearly solved or nearly hopeless more than the others. The paper's loss is a sum
over tokens with one constant; `aggregation="token"` divides by the minibatch's tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from marft.algorithms.base import Algorithm

if TYPE_CHECKING:
    from marft.algorithms.batch import Batch, Estimate, Scores


class DrGrpo(Algorithm):
    """Scores less their group's mean."""

    least_samples: ClassVar[int] = 2

    name: str = "dr_grpo"

    def estimate(self, batch: Batch, scores: Scores) -> Estimate:
        """Scores less their group's mean, not divided by its deviation."""
        from marft.algorithms.advantages import centred
        from marft.algorithms.grouped import estimate_from_groups

        score_K = batch.returns_to_go(scores.penalty_N)
        return estimate_from_groups(batch, score_K, centred(score_K, batch.group_K))
