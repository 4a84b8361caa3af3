"""GRPO for teams: advantages relative to the group, each agent with its own groups (GRPO, arXiv 2402.03300).

A group is (task, agent, which of its turns), as in AT-GRPO: pooling agents would inflate the gradients of those whose
rewards are distributed differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from marft.algorithms.base import Algorithm

if TYPE_CHECKING:
    from marft.algorithms.batch import Batch, Estimate, Scores


class Grpo(Algorithm):
    """Scores less their group's mean, over its deviation."""

    least_samples: ClassVar[int] = 2

    name: str = "grpo"
    std_floor: Annotated[float, Field(gt=0)] = 1e-4

    def estimate(self, batch: Batch, scores: Scores) -> Estimate:
        """Advantages (R − mean) / deviation within each group; a group without spread gets 0."""
        from marft.algorithms.grouped import relative_estimate

        return relative_estimate(batch, scores, std_floor=self.std_floor)
