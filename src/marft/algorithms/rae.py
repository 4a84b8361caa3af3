"""RAE: role-conditioned advantages, scores less a running baseline of each agent (SPIRAL, arXiv 2506.24119)."""

from __future__ import annotations

from dataclasses import dataclass

from marft.algorithms.advantages import running_baseline
from marft.algorithms.experience import Estimate, Experience, ValuesAt
from marft.algorithms.token_level import TokenLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Rae(TokenLevel):
    decay: float
    values_at: ValuesAt | None = None

    def estimate(self, experience: Experience) -> Estimate:
        assert experience.baseline_A is not None
        advantages, baseline_A = running_baseline(
            experience.score_K, experience.agent_K, experience.baseline_A, decay=self.decay
        )
        return Estimate(advantages_N=advantages[experience.turn_N], baseline_A=baseline_A)
