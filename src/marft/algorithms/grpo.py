"""GRPO for teams: advantages relative to the group, each agent with its own groups (GRPO, arXiv 2402.03300).

A group is (task, agent, which of its turns), as in AT-GRPO: pooling agents would inflate the gradients of those whose
rewards are distributed differently.
"""

from __future__ import annotations

from dataclasses import dataclass

from marft.algorithms.advantages import group_relative
from marft.algorithms.experience import Estimate, Experience, ValuesAt
from marft.algorithms.grouped import estimate_from_groups
from marft.algorithms.token_level import TokenLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo(TokenLevel):
    std_floor: float
    values_at: ValuesAt | None = None

    def estimate(self, experience: Experience) -> Estimate:
        floor = max(self.std_floor, experience.noise)
        relative_K = group_relative(experience.score_K, experience.group_K, std_floor=floor)
        return estimate_from_groups(experience, relative_K, std_floor=floor)
