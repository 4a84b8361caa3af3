"""GSPO: one ratio a turn, the geometric mean of its tokens', with GRPO's advantages (arXiv 2507.18071)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from marft.algorithms.base import ActionLevel

if TYPE_CHECKING:
    from marft.algorithms.batch import Batch, Estimate, Scores


class Gspo(ActionLevel):
    """GRPO's advantages with one length-normalised ratio a turn."""

    least_samples: ClassVar[int] = 2

    name: str = "gspo"
    std_floor: Annotated[float, Field(gt=0)] = 1e-4

    def estimate(self, batch: Batch, scores: Scores) -> Estimate:
        """Advantages (R − mean) / deviation within each group, as GRPO's."""
        from marft.algorithms.grouped import relative_estimate

        return relative_estimate(batch, scores, std_floor=self.std_floor)
