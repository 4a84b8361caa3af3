"""Credit: from an episode's reward to a reward for each turn, and to the turns whose agents learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marft.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardStream:
    """Rewards r_k of turns k = 0…K-1 and the discount γ from one turn to the next.

    A turn's score is its return-to-go c_k = Σ_{m≥k} γ^{m-k} r_m. With γ = 0 turns are not chained: each scores r_k.
    """

    rewards: tuple[float, ...]
    gamma: float


def equal(episode: Episode) -> RewardStream:
    """The team's reward on the last turn, 0 before, no discount: every turn scores R."""
    return step_discounted(episode, beta=1.0)


def step_discounted(episode: Episode, *, beta: float) -> RewardStream:
    """The team's reward on the last turn, discounted back: turn k scores β^{K-1-k} R."""
    last = len(episode.turns) - 1
    rewards = tuple(episode.reward.team if k == last else 0.0 for k in range(len(episode.turns)))
    return RewardStream(rewards=rewards, gamma=beta)


def per_step(episode: Episode, *, gamma: float) -> RewardStream:
    """The environment's own reward of each turn, and the team's on the last."""
    own = [episode.reward.turns.get(k, 0.0) for k in range(len(episode.turns))]
    team = step_discounted(episode, beta=gamma).rewards
    return RewardStream(rewards=tuple(a + b for a, b in zip(own, team, strict=True)), gamma=gamma)


def replayed(episode: Episode) -> RewardStream:
    """What playing on from each turn has shown (`difference`, `tree_scores`): a turn scores its own credit alone."""
    assert episode.credits is not None, "credits are filled by play-outs before an episode is trained on"
    return RewardStream(rewards=episode.credits, gamma=0.0)


def difference(team_reward: float, without: Mapping[int, float], turns: int) -> tuple[float, ...]:
    """R − R_{-k}, where `without` holds R_{-k}: what the team earned with turn k's message replaced; else 0.

    Difference rewards: Wolpert and Tumer, arXiv cs/9908014; COMA, arXiv 1705.08926.
    """
    return tuple(team_reward - without[k] if k in without else 0.0 for k in range(turns))


def tree_scores(trunk: Episode, forks: Sequence[Episode]) -> list[tuple[float, ...]]:
    """Credits of the trunk's turns, then of each fork's: the mean reward of all leaves below a turn.

    Below turn k of the trunk lie the trunk's end and those of the forks that share turn k (forked_at > k); below a
    fork's own turns lies its own end. Turns that a fork shares count in the trunk and are 0 here.

        trunk   a0 ─ a1 ─ a2   R = 1        a0: (1 + 0 + ½)/3 = ½,  a1: (1 + ½)/2 = ¾,  a2: 1
        fork     │    └── b2   R = ½, at 2  (0, 0, ½)
        fork     └─ c1 ─ c2    R = 0, at 1  (0, 0, 0)
    """

    def below(k: int) -> float:
        leaves = [trunk.reward.team, *(fork.reward.team for fork in forks if fork.forked_at > k)]
        return sum(leaves) / len(leaves)

    def own(fork: Episode) -> tuple[float, ...]:
        return tuple(fork.reward.team if k >= fork.forked_at else 0.0 for k in range(len(fork.turns)))

    return [tuple(below(k) for k in range(len(trunk.turns))), *map(own, forks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Some turns of a stream: which, what they earn, and the discount from each to the next of them or past the end."""

    turns: tuple[int, ...]
    rewards: tuple[float, ...]
    discounts: tuple[float, ...]


def fold(stream: RewardStream, learns: Sequence[bool]) -> Folded:
    """Keep the turns whose agents learn, with the returns-to-go they have in the full stream.

    A turn k earns Σ γ^{m-k} r_m over itself and the turns m up to the next kept turn k'; its discount is γ^{k'-k}
    (γ^{K-k} for the last). What was earned before the first kept turn is no one's. With γ = ½ and learns (1, 0, 1):
    rewards (1, 2, 4) → turns (0, 2), rewards (1 + ½·2, 4), discounts (¼, ½).
    """
    kept = [k for k, learning in enumerate(learns) if learning]
    spans = list(zip(kept, [*kept, len(stream.rewards)][1:], strict=True))
    return Folded(
        turns=tuple(kept),
        rewards=tuple(sum(stream.gamma ** (m - k) * stream.rewards[m] for m in range(k, end)) for k, end in spans),
        discounts=tuple(stream.gamma ** (end - k) for k, end in spans),
    )
