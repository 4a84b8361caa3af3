"""RLOO: a score less the mean of the others in its group, an unbiased baseline (arXiv 2402.14740)."""

from __future__ import annotations

from dataclasses import dataclass

from marft.algorithms.advantages import leave_one_out
from marft.algorithms.experience import Estimate, Experience, ValuesAt
from marft.algorithms.grouped import estimate_from_groups
from marft.algorithms.token_level import TokenLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo(TokenLevel):
    values_at: ValuesAt | None = None

    def estimate(self, experience: Experience) -> Estimate:
        return estimate_from_groups(experience, leave_one_out(experience.score_K, experience.group_K))
