"""Credit: from an episode's reward to a reward for each turn, and to the turns whose agents learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marft.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardStream:
    """Rewards r_k of turns k = 0…K-1 and the discount d_k from each to the next, or past the end.

    A turn's score is its return-to-go c_k = r_k + d_k c_{k+1}. Where d_k is 0 turns are not chained: each scores r_k.
    With `players` (of each turn) every player has a return of its own: the next turn is the same player's next.
    """

    rewards: tuple[float, ...]
    discounts: tuple[float, ...]
    players: tuple[str, ...] | None = None


def equal(episode: Episode) -> RewardStream:
    """The team's reward on the last turn, 0 before, no discount: every turn scores R."""
    return step_discounted(episode, beta=1.0)


def step_discounted(episode: Episode, *, beta: float) -> RewardStream:
    """The team's reward on the last turn, discounted back: a turn scores β^s R, s the steps that came after its own.

    A step is what agents say at once. What no agent said, a tool's answer or a vote's result, is none.

        a, b at once; a tool answers; a; a vote's result      scores β R, β R, β R, R, R
    """
    following = [*(turn.step for turn in episode.turns[1:]), "next"]
    return RewardStream(
        rewards=reward_on_last_turn(episode), discounts=tuple(beta if step == "next" else 1.0 for step in following)
    )


def per_step(episode: Episode, *, gamma: float) -> RewardStream:
    """The environment's own reward of each turn, and on the last the team's, unless that sums up the turns' own.

    γ is for every turn of an agent; what no agent said passes no time, and belongs to the turn before it.
    """
    following = [*(turn.step for turn in episode.turns[1:]), "next"]
    own, team = own_rewards(episode), reward_on_last_turn(episode)
    return RewardStream(
        rewards=own if episode.reward.itemised else tuple(a + b for a, b in zip(own, team, strict=True)),
        discounts=tuple(1.0 if step == "none" else gamma for step in following),
    )


def per_player(episode: Episode, *, gamma: float) -> RewardStream:
    """Every player's own rewards, with a return-to-go of its own, discounted by γ for each of its own turns.

    Opponents' rewards do not enter, so that in a zero-sum game they do not cancel: the return of self-play as in SPIRAL,
    arXiv 2506.24119. A team's reward that does not sum up the turns' own is earned by every player, on its last turn.
    """
    players = players_of(episode)
    last = {player: k for k, player in enumerate(players)}
    shared = 0.0 if episode.reward.itemised else episode.reward.team
    rewards = own_rewards(episode)
    return RewardStream(
        rewards=tuple(r + shared * (last[players[k]] == k) for k, r in enumerate(rewards)),
        discounts=(gamma,) * len(rewards),
        players=players,
    )


def players_of(episode: Episode) -> tuple[str, ...]:
    """Who each turn was in the game: as the environment says, else its agent. What the environment did not hear, such as a
    call of a tool, was said by the player that its agent spoke for next, or else last."""
    named = episode.reward.players
    found = [named.get(turn.index, "") for turn in episode.turns]
    for order in (range(len(found) - 1, -1, -1), range(len(found))):
        latest: dict[str, str] = {}
        for k in order:
            agent = episode.turns[k].agent
            latest[agent] = found[k] = found[k] or latest.get(agent, "")
    return tuple(player or turn.agent for player, turn in zip(found, episode.turns, strict=True))


def own_rewards(episode: Episode) -> tuple[float, ...]:
    """The environment's reward of each turn; 0 where it gave none."""
    return tuple(episode.reward.turns.get(k, 0.0) for k in range(len(episode.turns)))


def reward_on_last_turn(episode: Episode) -> tuple[float, ...]:
    """The team's reward on the last turn, 0 before."""
    return (*(0.0 for _ in episode.turns[1:]), episode.reward.team) if episode.turns else ()


def replayed(episode: Episode) -> RewardStream:
    """What playing on from each turn has shown (`difference`, `tree_scores`): a turn scores its own credit alone."""
    assert episode.credits is not None, "credits are filled by play-outs before an episode is trained on"
    return RewardStream(rewards=episode.credits, discounts=(0.0,) * len(episode.credits))


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
    """Some turns of a stream: which, what they earn, the discount from each to the next of them or past the end, and
    whose return it is, where players have their own."""

    turns: tuple[int, ...]
    rewards: tuple[float, ...]
    discounts: tuple[float, ...]
    players: tuple[str, ...] | None = None


def fold(stream: RewardStream, learns: Sequence[bool]) -> Folded:
    """Keep the turns whose agents learn, with the returns-to-go they have in the full stream.

    A turn k earns r_k + d_k r_{k+1} + d_k d_{k+1} r_{k+2} … up to the next kept turn k' (of its player, where players have
    returns of their own), and its discount is the product of the d from k to there, or past the end. What was earned
    before the first kept turn is no one's. With all d = ½ and learns (1, 0, 1): rewards (1, 2, 4) → turns (0, 2), rewards
    (1 + ½·2, 4), discounts (¼, ½).
    """
    players = stream.players or ("",) * len(stream.rewards)
    following: dict[str, tuple[float, float]] = {}  # by player: earned from its next turn on, and the discount to there
    found: list[tuple[int, float, float]] = []
    for k in reversed(range(len(stream.rewards))):
        earned, discount = following.get(players[k], (0.0, 1.0))
        earned, discount = stream.rewards[k] + stream.discounts[k] * earned, stream.discounts[k] * discount
        if learns[k]:
            found.append((k, earned, discount))
            earned, discount = 0.0, 1.0
        following[players[k]] = earned, discount
    kept = found[::-1]
    return Folded(
        turns=tuple(k for k, _, _ in kept),
        rewards=tuple(earned for _, earned, _ in kept),
        discounts=tuple(discount for _, _, discount in kept),
        players=stream.players and tuple(players[k] for k, _, _ in kept),
    )
