"""Credit: from an episode's reward to a reward for each turn."""

from __future__ import annotations

from dataclasses import dataclass

from marft.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardStream:
    """Rewards r_k of turns k = 0…K-1, the discount γ between turns, and whether a turn also earns what follows it."""

    rewards: tuple[float, ...]
    gamma: float
    chained: bool

    def scores(self) -> tuple[float, ...]:
        """c_k = Σ_{m≥k} γ^{m-k} r_m where chained, else r_k."""
        if not self.chained:
            return self.rewards
        scores: list[float] = []
        following = 0.0
        for reward in reversed(self.rewards):
            following = reward + self.gamma * following
            scores.append(following)
        return tuple(reversed(scores))


def equal(episode: Episode) -> RewardStream:
    """The team's reward on the last turn, 0 before, no discount: every turn scores R."""
    silent = (0.0,) * (len(episode.turns) - 1)
    return RewardStream(rewards=(*silent, episode.reward.team), gamma=1.0, chained=True)
