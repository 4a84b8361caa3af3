"""Signs of collapse, read off rows of metrics: who is named, when it is warned and stopped, and who is left alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

import pytest

from marft.training.collapse import CollapseWatch, Sign

NOISE = 6.0


def row(
    iteration: int, reward: float, *, error: float | None = 0.02, low: float = 0.0, high: float = 1.0, **agent: Any
) -> dict[str, Any]:
    """One iteration of a team of one agent, 256 episodes; what is not said is healthy. A reward at a bound is all there is."""
    low, high = (low, low) if reward == low else (reward, high) if reward == high else (low, high)
    figures = {
        "kl": 0.002, "entropy": 0.5, "truncated": 0.05, "steps": 4, "advantage_std": 1.0, "score_min": low,
        "score_max": high, **agent,
    }  # fmt: skip
    return {
        "iteration": iteration, "reward": reward, "reward_error": error, "reward_min": low, "reward_max": high,
        "episodes": 256, "agents": {"solver": figures},
    }  # fmt: skip


def watched(rows: Sequence[dict[str, Any]]) -> list[tuple[int, Sign]]:
    """All signs, with the iterations in which they were told."""
    watch = CollapseWatch({"solver": NOISE})
    return [(each["iteration"], sign) for each in rows for sign in watch.look(each)]


def told(rows: Sequence[dict[str, Any]]) -> list[tuple[int, str, str | None, bool]]:
    return [(at, sign.name, sign.agent, sign.collapsed) for at, sign in watched(rows)]


def curve(rewards: Sequence[float], **figures: Any) -> list[dict[str, Any]]:
    return [row(i, reward, **figures) for i, reward in enumerate(rewards, start=1)]


# --- the team's reward ------------------------------------------------------------------------------------------------
def test_a_reward_that_fell_to_its_floor_is_told_at_once_and_stops_after_three() -> None:
    found = watched(curve([0.2, 0.3, 0.4, 0.5, 0.01, 0.02, 0.01, 0.01]))
    assert [(at, sign.name, sign.collapsed) for at, sign in found] == [(5, "reward", False), (7, "reward", True)]
    assert (found[-1][1].since, found[-1][1].good) == (5, 3)  # the fifth was played by the fourth's weights
    assert "0.010" in found[-1][1].line
    assert "0.400" in found[-1][1].line  # the best mean of three


def test_a_published_collapse_is_noticed_and_its_rise_is_not() -> None:
    """GSM8K, `marft-action` at a rate of 5e-4 without a trust region: 32 tasks an iteration."""
    rewards = [0.137, 0.176, 0.242, 0.188, 0.230, 0.113, 0.062, 0.141, 0.027, 0.066, 0.012, 0, 0, 0, 0, 0.012]
    found = [(at, stops) for at, name, _, stops in told(curve(rewards, error=0.04)) if name == "reward"]
    assert found == [(11, False), (13, True)]
    assert told(curve(rewards[:8], error=0.04)) == []


@pytest.mark.parametrize(
    "rewards",
    [
        [0.0, 1 / 256, 0.0, 0.0, 0.0, 0.0, 0.0, 1 / 256, 0.0, 0.0, 0.0, 0.0],  # one success in a thousand episodes
        [0.34, 0.46, 0.59, 0.84, 0.87, 0.95, 0.95, 0.92, 0.95, 0.96],  # learning
        [0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.01, 0.0, 0.0],  # a hard task: nothing was ever surely above 0
        [0.5, 0.2, 0.6, 0.1, 0.5, 0.3],  # noise
        [0.9, 0.9, 0.9, 0.0, 0.9, 0.0, 0.0, 0.9],  # it recovers each time before it is stopped
    ],
)
def test_runs_that_are_well_are_not_stopped(rewards: list[float]) -> None:
    assert not any(stops for *_, stops in told(curve(rewards)))


@pytest.mark.parametrize(("error", "stops"), [(0.005, True), (0.2, False), (None, False)])
def test_few_tasks_make_a_reward_unsure(error: float | None, stops: bool) -> None:
    """Of one task alone nobody knows the error."""
    rewards = [0.1, 0.3, 0.3, 0.3, 0.01, 0.01, 0.01, 0.01]
    assert any(collapsed for *_, collapsed in told(curve(rewards, error=error))) == stops


@pytest.mark.parametrize(
    ("tasks", "samples", "chance"),
    [(64, 4, 0.002), (64, 4, 0.01), (16, 4, 0.02), (4, 4, 0.05), (1, 4, 0.3), (2, 8, 0.2)],
)
def test_a_policy_that_does_not_change_is_never_stopped(tasks: int, samples: int, chance: float) -> None:
    for seed in range(20):
        luck = random.Random(seed)
        rows = []
        for i in range(1, 61):
            won = [[luck.random() < chance for _ in range(samples)] for _ in range(tasks)]
            means = [fmean(own) for own in won]
            low, high = float(all(map(all, won))), float(any(map(any, won)))
            error = pstdev(means) / (tasks - 1) ** 0.5 if tasks > 1 else None
            one = row(i, fmean(means), error=error)
            one |= {"reward_min": low, "reward_max": high, "episodes": tasks * samples}
            one["agents"]["solver"] |= {"score_min": low, "score_max": high}
            rows.append(one)
        assert not any(stops for *_, stops in told(rows)), seed


def test_rewards_below_zero_have_a_floor_too() -> None:
    rows = curve([-0.5, 0.5, 0.6, 0.7, -0.95, -0.99, -0.99], low=-1.0)
    assert told(rows) == [(5, "reward", None, False), (7, "reward", None, True)]


def test_one_unlucky_episode_is_no_floor() -> None:
    rows = curve([0.5, 0.5, 0.5, 0.5, 0.01, 0.01, 0.01])
    rows[0] |= {"reward_min": -10.0}
    assert [stops for *_, stops in told(rows)] == [False, True]


# --- a reward that no longer differs ----------------------------------------------------------------------------------
def test_a_reward_that_turns_constant_below_the_best_stops() -> None:
    rows = [row(1, 0.4), row(2, 0.5), *(row(i, 0.3, error=0, low=0.3, high=0.3) for i in (3, 4, 5, 6))]
    assert told(rows) == [(3, "constant", None, False), (5, "constant", None, True)]


def test_what_is_learnt_from_need_not_be_the_team_s_reward() -> None:
    """In a zero-sum game it is always 0, and each agent's turns earn their own."""
    rows = [row(i, 0.0, high=0.0, score_min=-1.0, score_max=1.0, truncated=1.0) for i in range(1, 20)]
    assert [(name, stops) for _, name, _, stops in told(rows)] == [("truncated", False)]


def test_a_solved_task_is_no_collapse() -> None:
    assert told([row(1, 0.4), row(2, 0.9), *(row(i, 1.0, error=0) for i in range(3, 9))]) == []
    nearly = (row(i, 0.98, error=0, low=0.98, high=0.98) for i in range(3, 9))  # the shortest way is not always there
    assert told([row(1, 0.4), row(2, 0.9), *nearly]) == []


def test_a_reward_that_never_differs_is_told_after_the_first_iteration_and_goes_on() -> None:
    """It may be a hard task whose first success is still to come."""
    rows = [row(i, 0.0, error=0, high=0.0) for i in range(1, 20)]
    assert told(rows) == [(1, "constant", None, False)]
    assert "nothing to learn from" in watched(rows)[0][1].line


# --- agents -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("figure", ["kl", "kl_final"])
def test_an_update_that_moved_an_agent_too_far(figure: str) -> None:
    rows = [row(1, 0.3), *(row(i, 0.3, **{figure: 1.5}) for i in (2, 3, 4))]
    assert told(rows) == [(2, "kl", "solver", False), (4, "kl", "solver", True)]
    assert "solver" in watched(rows)[0][1].line
    assert watched(rows)[-1][1].good == 1  # what the second update did is not in the checkpoint before it


def test_an_agent_that_learns_every_other_iteration_has_signs_that_last() -> None:
    loud, resting = {"kl": 1.5}, {"kl": 0.0, "entropy": 0.0, "steps": 0}
    rows = [row(1, 0.3), *(row(i, 0.3, **(loud if i % 2 else resting)) for i in range(2, 9))]
    assert told(rows) == [(3, "kl", "solver", False), (7, "kl", "solver", True)]


def test_groups_without_spread_teach_nothing_although_rewards_differ() -> None:
    """Half of the tasks always right, half always wrong: ten iterations of it are enough."""
    rows = [row(1, 0.4), *(row(i, 0.5, advantage_std=0.0) for i in range(2, 15))]
    assert told(rows) == [(2, "no advantage", "solver", False), (11, "no advantage", "solver", True)]
    nearly_solved = [row(1, 0.4), *(row(i, 0.95, advantage_std=0.0) for i in range(2, 15))]
    assert told(nearly_solved) == []


def test_the_team_s_sign_names_who_must_not_go_on_so_and_not_who_may() -> None:
    """ann is cut from the start on, which may be meant; bob turns to noise, and the reward is gone."""
    watch = CollapseWatch({"ann": NOISE, "bob": NOISE})
    found = []
    for i, reward in enumerate([0.4, 0.5, 0.5, 0.5, 0.01, 0.01, 0.01], start=1):
        one = row(i, reward)
        figures = one["agents"].pop("solver")
        one["agents"] = {"ann": {**figures, "truncated": 1.0}, "bob": {**figures, "entropy": 5.0 if i > 4 else 0.5}}
        found += watch.look(one)
    stopped = [sign for sign in found if sign.collapsed]
    assert {sign.agent for sign in stopped} == {"bob"}


def test_entropy_that_goes_to_noise() -> None:
    """0.5 + (6 − 0.5) / 3 = 2.33 is the bound."""
    assert told([row(1, 0.3), *(row(i, 0.3, entropy=2.3) for i in (2, 3, 4, 5))]) == []
    rows = [row(1, 0.3), *(row(i, 0.3, entropy=2.4) for i in (2, 3, 4, 5))]
    assert told(rows) == [(2, "entropy", "solver", False), (4, "entropy", "solver", True)]


def test_entropy_that_vanishes_where_nothing_was_gained_by_it() -> None:
    rows = [row(1, 0.3), *(row(i, 0.1, entropy=0.001) for i in (2, 3, 4))]
    assert told(rows) == [(2, "entropy", "solver", False), (4, "entropy", "solver", True)]
    assert told([row(1, 0.3), *(row(i, 0.8, entropy=0.001) for i in (2, 3, 4))]) == []  # sure of what is right
    assert told([row(1, 0.97), *(row(i, 0.97, entropy=0.001) for i in (2, 3, 4))]) == []  # as it was from the start


def test_an_agent_that_comes_to_speak_to_its_limit() -> None:
    rows = [row(1, 0.3), row(2, 0.3), *(row(i, 0.2, truncated=0.95) for i in (3, 4, 5))]
    assert told(rows) == [(3, "truncated", "solver", False), (5, "truncated", "solver", True)]


def test_an_agent_that_spoke_to_its_limit_from_the_start_is_told_of_and_goes_on() -> None:
    """A limit may be meant: an agent of one token, or a tight one that it learns to keep."""
    rows = [row(i, 0.3, truncated=1.0) for i in range(1, 30)]
    assert told(rows) == [(1, "truncated", "solver", False)]


def test_unless_nothing_was_ever_earned_by_it() -> None:
    rows = [row(i, 0.0, error=0, high=0.0, truncated=1.0) for i in range(1, 12)]
    assert [(at, name, stops) for at, name, _, stops in told(rows)] == [
        (1, "constant", False),
        (1, "truncated", False),
        (10, "truncated", True),
    ]


def test_an_agent_that_does_not_learn_now_is_not_looked_at() -> None:
    """Under `alternate` and while critics warm up nobody reads its tokens, and its figures are 0."""
    resting = {"kl": 0.0, "entropy": 0.0, "steps": 0}
    assert told([row(1, 0.3, **resting), row(2, 0.3), *(row(i, 0.3, **resting) for i in range(3, 9))]) == []


def test_a_watch_that_is_shown_the_same_rows_again_says_the_same() -> None:
    rows = curve([0.2, 0.3, 0.4, 0.5, 0.01, 0.02, 0.01, 0.01])
    for seen in (6, 7):  # the second was only warned, and is told to stop now
        resumed = CollapseWatch({"solver": NOISE})
        for each in rows[:seen]:
            resumed.look(each)
        resumed.forget_told()
        assert [sign.collapsed for sign in resumed.look(rows[seen])] == [True]


def test_a_long_run_is_watched_quickly() -> None:
    """Each look costs about the same: 3,000 of them are done within seconds."""
    watch = CollapseWatch({"solver": NOISE})
    for i in range(3000):
        watch.look(row(i + 1, 0.5 + 0.1 * (i % 3)))
    assert len(watch.rows) == 3000
