"""Dr. GRPO: scores less their group's mean, not divided by the deviation (arXiv 2503.20783).

The division would weigh tasks that are nearly solved or nearly hopeless more than the others. The paper's loss is a sum
over tokens with one constant; `aggregation="token"` divides by the minibatch's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from marft.algorithms.advantages import centred
from marft.algorithms.experience import Estimate, Experience, ValuesAt
from marft.algorithms.grouped import estimate_from_groups
from marft.algorithms.token_level import TokenLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGrpo(TokenLevel):
    values_at: ValuesAt | None = None

    def estimate(self, experience: Experience) -> Estimate:
        return estimate_from_groups(experience, centred(experience.score_K, experience.group_K))
