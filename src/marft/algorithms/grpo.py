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
        from marft.algorithms.advantages import group_relative
        from marft.algorithms.grouped import estimate_from_groups

        floor = max(self.std_floor, scores.noise)
        score_K = batch.returns_to_go(scores.penalty_N)
        relative_K = group_relative(score_K, batch.group_K, std_floor=floor)
        return estimate_from_groups(batch, score_K, relative_K, std_floor=floor)
