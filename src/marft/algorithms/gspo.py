"""GSPO: one ratio a turn, the geometric mean of its tokens', with GRPO's advantages (arXiv 2507.18071)."""

from __future__ import annotations

from dataclasses import dataclass

from marft.algorithms.action_level import ActionLevel, Normalise
from marft.algorithms.advantages import group_relative
from marft.algorithms.experience import Estimate, Experience, ValuesAt
from marft.algorithms.grouped import estimate_from_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo(ActionLevel):
    std_floor: float
    normalise: Normalise = "token"
    values_at: ValuesAt | None = None

    def estimate(self, experience: Experience) -> Estimate:
        floor = max(self.std_floor, experience.noise)
        relative_K = group_relative(experience.score_K, experience.group_K, std_floor=floor)
        return estimate_from_groups(experience, relative_K, std_floor=floor)
