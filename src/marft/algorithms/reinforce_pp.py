"""REINFORCE++: scores whitened over the whole batch instead of over groups (arXiv 2501.03262).

Each agent has its own statistics, over its turns of all tasks, so it also learns where a task was played once.
"""

from __future__ import annotations

from dataclasses import dataclass

from marft.algorithms.advantages import whiten
from marft.algorithms.experience import Estimate, Experience, ValuesAt
from marft.algorithms.token_level import TokenLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePP(TokenLevel):
    values_at: ValuesAt | None = None

    def estimate(self, experience: Experience) -> Estimate:
        advantages = whiten(experience.score_K, experience.agent_K, noise=experience.noise)
        return Estimate(advantages_N=advantages[experience.turn_N])
