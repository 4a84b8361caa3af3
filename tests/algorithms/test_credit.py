from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import episode

from marft.algorithms.credit import (
    RewardStream,
    difference,
    equal,
    fold,
    per_player,
    per_step,
    players_of,
    replayed,
    step_discounted,
    tree_scores,
)
from marft.types import Episode, Step

few = settings(max_examples=100, deadline=None, derandomize=True)
numbers = st.floats(-10, 10, allow_nan=False)
gammas = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))


def to_go(rewards: Sequence[float], discounts: Sequence[float]) -> list[float]:
    """c_k = r_k + d_k · c_{k+1}, nothing after the last."""
    scores: list[float] = []
    for reward, discount in zip(reversed(rewards), reversed(discounts), strict=True):
        scores.append(reward + (discount * scores[-1] if scores else 0.0))
    return scores[::-1]


def uniform(rewards: Sequence[float], gamma: float) -> RewardStream:
    return RewardStream(rewards=tuple(rewards), discounts=(gamma,) * len(rewards))


def scores(stream: RewardStream) -> list[float]:
    """The return-to-go of every turn, each player's its own where it has one."""
    players = stream.players or ("",) * len(stream.rewards)
    found = [0.0] * len(players)
    for player in set(players):
        own = [k for k, each in enumerate(players) if each == player]
        for k, score in zip(
            own, to_go([stream.rewards[k] for k in own], [stream.discounts[k] for k in own]), strict=True
        ):
            found[k] = score
    return found


# --- streams ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("team", [1.0, 0.5, -2.0])
@pytest.mark.parametrize("turns", [1, 2, 5])
def test_equal_credit_scores_the_teams_reward_everywhere(turns: int, team: float) -> None:
    stream = equal(episode(turns, team))
    assert stream.rewards == (0.0,) * (turns - 1) + (team,)
    assert scores(stream) == [team] * turns


def test_defect_04_a_failure_is_a_reward_of_zero_and_not_missing() -> None:
    stream = equal(episode(3, 0.0))
    assert stream.rewards == (0.0, 0.0, 0.0)
    assert scores(stream) == [0.0, 0.0, 0.0]


def test_step_discounted_by_hand() -> None:
    # c_k = β^{K-1-k} R
    stream = step_discounted(episode(3, 8.0), beta=0.5)
    assert stream == RewardStream(rewards=(0.0, 0.0, 8.0), discounts=(0.5, 0.5, 0.5))
    assert scores(stream) == [2.0, 4.0, 8.0]


def timed(steps: Sequence[Step], team: float, own: Mapping[int, float] | None = None) -> Episode:
    made = episode(len(steps), team, own)
    return replace(made, turns=tuple(replace(turn, step=step) for turn, step in zip(made.turns, steps, strict=True)))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["next"], [8.0]),
        (["next", "same", "next"], [4.0, 4.0, 8.0]),  # two at once, then one
        (["next", "same", "same", "none"], [8.0] * 4),  # votes, and their result
        (["next", "none", "next"], [4.0, 4.0, 8.0]),  # a call, the tool's answer, what came of it
        (["next", "same", "none", "none", "next", "same"], [4.0, 4.0, 4.0, 4.0, 8.0, 8.0]),  # two calls at once
        (["none", "next", "next"], [2.0, 4.0, 8.0]),  # a referee opens
        (["next", "same", "next", "same", "next"], [2.0, 2.0, 4.0, 4.0, 8.0]),  # a debate of two rounds, and the judge
    ],
)
def test_step_discounted_counts_what_agents_do_and_at_once_counts_once(
    steps: list[Step], expected: list[float]
) -> None:
    assert scores(step_discounted(timed(steps, 8.0), beta=0.5)) == expected
    assert scores(equal(timed(steps, 8.0))) == [8.0] * len(steps)


def test_no_time_passes_in_per_step_while_no_agent_acts() -> None:
    # a call, the tool's answer, the agent's answer: R = 8 is one turn of an agent away from the call
    assert scores(per_step(timed(["next", "none", "next"], 8.0), gamma=0.5)) == [4.0, 4.0, 8.0]
    # those who speak at once are turns like others: with γ = 0 each has its own alone
    assert scores(per_step(timed(["next", "same"], 0.0, {0: 1.0, 1: 2.0}), gamma=0.0)) == [1.0, 2.0]


def test_a_reward_that_sums_up_its_turns_is_not_paid_twice() -> None:
    # an illegal move that costs 1, R = −½: the turn scores −1, not −1.5
    played = episode(2, -0.5, own={0: 0.0, 1: -1.0})
    itemised = replace(played, reward=replace(played.reward, itemised=True))
    assert scores(per_step(itemised, gamma=1.0)) == [-1.0, -1.0]
    assert scores(per_step(played, gamma=1.0)) == [-1.5, -1.5]  # where R is paid beside the turns' own


# --- players -----------------------------------------------------------------------------------------------------------
def match(*own: float, team: float = 0.0, players: Mapping[int, str] | None = None, itemised: bool = True) -> Episode:
    """`a` and `b` in turn."""
    made = episode(len(own), team, dict(enumerate(own)))
    turns = tuple(replace(turn, agent="ab"[k % 2], nth=k // 2) for k, turn in enumerate(made.turns))
    return replace(made, turns=turns, reward=replace(made.reward, itemised=itemised, players=players or {}))


def test_per_player_by_hand() -> None:
    # a earns 0, 2, 4 and b −1, −8, γ = ½: a's c = 0 + ½·4, 2 + ½·4, 4; b's c = −1 − ½·8, −8
    stream = per_player(match(0.0, -1.0, 2.0, -8.0, 4.0), gamma=0.5)
    assert scores(stream) == [2.0, -5.0, 4.0, -8.0, 4.0]
    assert stream.players == ("a", "b", "a", "b", "a")


@pytest.mark.parametrize("turns", [2, 3, 6, 9])
def test_opponents_do_not_cancel(turns: int) -> None:
    """Zero sum: who moves last wins 1, the other loses it. With γ = 1 every move of a player scores its player's result."""
    own = [0.0] * (turns - 2) + [-1.0, 1.0]
    winner = (turns - 1) % 2
    result = [1.0 if k % 2 == winner else -1.0 for k in range(turns)]
    assert scores(per_player(match(*own), gamma=1.0)) == result
    assert scores(per_step(match(*own), gamma=1.0)) == [0.0] * (turns - 1) + [1.0]
    assert scores(per_step(match(*own), gamma=0.0)) == own


def test_a_reward_that_is_everybodys_is_earned_by_every_player() -> None:
    found = scores(per_player(match(0.5, 0.0, 0.25, team=4.0, itemised=False), gamma=0.5))
    assert found == [0.5 + 0.5 * 4.25, 4.0, 4.25]


def test_the_environment_says_who_plays_whom() -> None:
    # one agent plays both sides; the call of a tool (turn 2) is not heard, and is of whom it speaks for next
    played = match(0.0, 0.0, 0.0, -1.0, 1.0, players={0: "white", 1: "black", 3: "black", 4: "white"})
    alone = replace(played, turns=tuple(replace(turn, agent="self") for turn in played.turns))
    assert players_of(alone) == ("white", "black", "black", "black", "white")
    assert scores(per_player(alone, gamma=1.0)) == [1.0, -1.0, -1.0, -1.0, 1.0]
    cut = replace(alone, reward=replace(alone.reward, players={0: "white", 1: "black", 3: "black"}))
    assert players_of(cut)[-1] == "black"  # or last
    assert players_of(played) == ("white", "black", "white", "black", "white")
    silent = replace(alone, reward=replace(alone.reward, players={}))
    assert set(players_of(silent)) == {"self"}


@few
@given(st.lists(numbers, min_size=1, max_size=8), gammas)
def test_a_player_alone_is_paid_as_in_per_step(rewards: list[float], gamma: float) -> None:
    alone = match(*rewards, players=dict.fromkeys(range(len(rewards)), "one"))
    assert scores(per_player(alone, gamma=gamma)) == pytest.approx(scores(per_step(alone, gamma=gamma)), abs=1e-9)


@few
@given(st.lists(st.tuples(numbers, st.booleans(), st.sampled_from("abc")), min_size=1, max_size=8), gammas)
def test_learning_turns_keep_the_returns_of_their_players(turns: list[tuple[float, bool, str]], gamma: float) -> None:
    stream = replace(uniform([r for r, _, _ in turns], gamma), players=tuple(player for *_, player in turns))
    found = fold(stream, [learns for _, learns, _ in turns])
    assert found.players == tuple(turns[k][2] for k in found.turns)
    folded = RewardStream(rewards=found.rewards, discounts=found.discounts, players=found.players)
    assert scores(folded) == pytest.approx([scores(stream)[k] for k in found.turns], abs=1e-9)


def test_per_step_by_hand() -> None:
    # turns 0 and 2 earn 1 and 2 themselves, the team 4: c_2 = 6; c_1 = 0 + ½·6; c_0 = 1 + ½·3
    stream = per_step(episode(3, 4.0, own={0: 1.0, 2: 2.0}), gamma=0.5)
    assert stream == RewardStream(rewards=(1.0, 0.0, 6.0), discounts=(0.5, 0.5, 0.5))
    assert scores(stream) == [2.5, 3.0, 6.0]


def test_credits_of_replays_are_not_chained() -> None:
    stream = replayed(replace(episode(3, 1.0), credits=(0.25, 0.0, -1.0)))
    assert stream == RewardStream(rewards=(0.25, 0.0, -1.0), discounts=(0.0, 0.0, 0.0))
    assert scores(stream) == [0.25, 0.0, -1.0]


def test_an_episode_that_was_not_replayed_has_no_credits() -> None:
    with pytest.raises(AssertionError, match="play-outs"):
        replayed(episode(2, 1.0))


# --- play-outs --------------------------------------------------------------------------------------------------------
def test_difference_by_hand() -> None:
    # without turn 0 the team earns ¼ of its 1, without turn 3 it earns 2; turns 1 and 2 do not learn
    assert difference(1.0, {0: 0.25, 3: 2.0}, 4) == (0.75, 0.0, 0.0, -1.0)


def test_a_turn_that_changed_nothing_gets_nothing() -> None:
    assert difference(1.0, {0: 1.0, 1: 0.0}, 2) == (0.0, 1.0)


def test_tree_scores_by_hand() -> None:
    # as drawn in the docstring; the second fork has one turn more
    trunk, late, early = episode(3, 1.0), episode(3, 0.5, forked_at=2), episode(4, 0.0, forked_at=1)
    assert tree_scores(trunk, [late, early]) == [(0.5, 0.75, 1.0), (0.0, 0.0, 0.5), (0.0, 0.0, 0.0, 0.0)]


def test_a_fork_at_the_first_turn_is_no_part_of_the_trunk() -> None:
    assert tree_scores(episode(2, 1.0), [episode(1, 4.0, forked_at=0)]) == [(1.0, 1.0), (4.0,)]


@few
@given(st.integers(1, 5), numbers, st.lists(st.tuples(st.integers(0, 4), numbers), max_size=5))
def test_a_trunk_turn_is_the_mean_of_the_turns_after_it(
    turns: int, team: float, drawn: list[tuple[int, float]]
) -> None:
    """c_k · leaves below k = Σ over the children of the state after turn k of their score · their leaves."""
    places = [(min(at, turns - 1), reward) for at, reward in drawn]
    found, *_ = tree_scores(episode(turns, team), [episode(turns, r, forked_at=at) for at, r in places])
    assert found[-1] == team
    for k in range(turns - 1):
        children = [reward for at, reward in places if at == k + 1]
        below = 1 + sum(at > k + 1 for at, _ in places)
        expected = (found[k + 1] * below + sum(children)) / (below + len(children))
        assert found[k] == pytest.approx(expected, abs=1e-9)


# --- who learns -------------------------------------------------------------------------------------------------------
def test_fold_by_hand() -> None:
    # turns 1 and 3 learn: 1 earns 2 + ½·4, 3 earns 8 + ½·16; what turn 0 earned is no one's
    found = fold(uniform((1.0, 2.0, 4.0, 8.0, 16.0), 0.5), (False, True, False, True, False))
    assert found.turns == (1, 3)
    assert found.rewards == (4.0, 16.0)
    assert found.discounts == (0.25, 0.25)


def test_a_turn_that_is_not_chained_earns_its_own_reward_alone() -> None:
    found = fold(uniform((1.0, 2.0, 4.0), 0.0), (True, False, True))
    assert found.turns == (0, 2)
    assert found.rewards == (1.0, 4.0)
    assert found.discounts == (0.0, 0.0)


def test_an_episode_in_which_nobody_learns_folds_to_nothing() -> None:
    found = fold(equal(episode(2, 1.0)), (False, False))
    assert (found.turns, found.rewards, found.discounts) == ((), (), ())


@few
@given(st.lists(numbers, min_size=1, max_size=8), gammas)
def test_where_everyone_learns_nothing_changes(rewards: list[float], gamma: float) -> None:
    found = fold(uniform(rewards, gamma), [True] * len(rewards))
    assert found.turns == tuple(range(len(rewards)))
    assert found.rewards == tuple(rewards)
    assert found.discounts == (gamma,) * len(rewards)


@few
@given(st.lists(st.tuples(numbers, st.booleans()), min_size=1, max_size=8), gammas, numbers)
def test_learning_turns_keep_their_returns(turns: list[tuple[float, bool]], gamma: float, final: float) -> None:
    """Their own and the value after the episode's end, which reaches each turn k with γ^{K-k}."""
    stream = uniform([r for r, _ in turns], gamma)
    found = fold(stream, [learns for _, learns in turns])
    kept = [k for k, (_, learns) in enumerate(turns) if learns]
    assert found.turns == tuple(kept)
    assert to_go(found.rewards, found.discounts) == pytest.approx([scores(stream)[k] for k in kept], abs=1e-9)
    reach = to_go([0.0] * len(kept) + [final], [*found.discounts, 0.0])
    assert reach[:-1] == pytest.approx([gamma ** (len(turns) - k) * final for k in kept], abs=1e-9)
