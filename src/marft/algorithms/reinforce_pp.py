"""REINFORCE++: scores whitened over the whole batch instead of over groups (arXiv 2501.03262).

Each agent has its own statistics, over its turns of all tasks, so it also learns where a task was played once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marft.algorithms.base import Algorithm

if TYPE_CHECKING:
    from marft.algorithms.batch import Batch, Estimate, Scores


class ReinforcePP(Algorithm):
    """Scores normalised over the batch, for each agent."""

    name: str = "reinforce++"

    def estimate(self, batch: Batch, scores: Scores) -> Estimate:
        """Scores whitened over the batch, agent by agent."""
        from marft.algorithms.advantages import whiten
        from marft.algorithms.batch import Estimate

        advantages_K = whiten(batch.returns_to_go(scores.penalty_N), batch.agent_K, noise=scores.noise)
        return Estimate(advantages_N=advantages_K[batch.turn_N])
