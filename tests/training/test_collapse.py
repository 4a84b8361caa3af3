"""Signs of collapse, read off rows of metrics: who is named, when it is warned and stopped, and who is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from marft.training.collapse import CollapseWatch, Sign

NOISE = 6.0


def row(
    iteration: int, reward: float, *, error: float = 0.02, low: float = 0.0, high: float = 1.0, **agent: Any
) -> dict[str, Any]:
    """One iteration of a team of one agent; what is not said is healthy."""
    figures = {"kl": 0.002, "entropy": 0.5, "truncated": 0.05, "steps": 4, **agent}
    return {
        "iteration": iteration, "reward": reward, "reward_error": error, "reward_min": low, "reward_max": high,
        "agents": {"solver": figures},
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
    found = watched(curve([0.2, 0.3, 0.4, 0.5, 0.0, 0.01, 0.0, 0.0]))
    assert [(at, sign.name, sign.collapsed) for at, sign in found] == [(5, "reward", False), (7, "reward", True)]
    assert found[-1][1].since == 5
    assert "0.000" in found[-1][1].line
    assert "0.400" in found[-1][1].line  # the best mean of three


def test_a_published_collapse_is_noticed_and_its_rise_is_not() -> None:
    """GSM8K, `marft-action` at a rate of 5e-4 without a trust region: 32 tasks an iteration."""
    rewards = [0.137, 0.176, 0.242, 0.188, 0.230, 0.113, 0.062, 0.141, 0.027, 0.066, 0.012, 0, 0, 0, 0, 0.012]
    assert [(at, stops) for at, _, _, stops in told(curve(rewards, error=0.04))] == [(11, False), (13, True)]
    assert told(curve(rewards[:8], error=0.04)) == []


@pytest.mark.parametrize(
    "rewards",
    [
        [0.34, 0.46, 0.59, 0.84, 0.87, 0.95, 0.95, 0.92, 0.95, 0.96],  # learning
        [0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.01, 0.0, 0.0],  # a hard task: nothing was ever surely above 0
        [0.5, 0.2, 0.6, 0.1, 0.5, 0.3],  # noise
        [0.9, 0.9, 0.9, 0.0, 0.9, 0.0, 0.0, 0.9],  # it recovers each time before it is stopped
    ],
)
def test_runs_that_are_well_are_not_stopped(rewards: list[float]) -> None:
    assert not any(stops for *_, stops in told(curve(rewards)))


def test_few_tasks_make_a_reward_unsure() -> None:
    assert told(curve([0.0, 0.06, 0.06, 0.06, 0.0, 0.0, 0.0, 0.0], error=0.05)) == []
    assert told(curve([0.0, 0.06, 0.06, 0.06, 0.0, 0.0, 0.0, 0.0], error=0.005)) != []


def test_rewards_below_zero_have_a_floor_too() -> None:
    rows = curve([-0.5, 0.5, 0.6, 0.7, -0.95, -1.0, -1.0], low=-1.0)
    assert told(rows) == [(5, "reward", None, False), (7, "reward", None, True)]


# --- a reward that no longer differs ----------------------------------------------------------------------------------
def test_a_reward_that_turns_constant_below_the_best_stops() -> None:
    rows = [row(1, 0.4), row(2, 0.5), *(row(i, 0.3, error=0, low=0.3, high=0.3) for i in (3, 4, 5, 6))]
    assert told(rows) == [(3, "constant", None, False), (5, "constant", None, True)]


def test_a_solved_task_is_no_collapse() -> None:
    assert told([row(1, 0.4), row(2, 0.9), *(row(i, 1.0, error=0, low=1.0) for i in range(3, 9))]) == []


def test_a_reward_that_never_differs_is_told_after_the_first_iteration_and_goes_on() -> None:
    """It may be a hard task whose first success is still to come."""
    rows = [row(i, 0.0, error=0, high=0.0) for i in range(1, 20)]
    assert told(rows) == [(1, "constant", None, False)]
    assert "nothing to learn from" in watched(rows)[0][1].line


# --- agents -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("figure", ["kl", "kl_final"])
@pytest.mark.parametrize("value", [1.5, float("nan")])
def test_an_update_that_moved_an_agent_too_far(figure: str, value: float) -> None:
    rows = [row(1, 0.3), *(row(i, 0.3, **{figure: value}) for i in (2, 3, 4))]
    assert told(rows) == [(2, "kl", "solver", False), (4, "kl", "solver", True)]
    assert "solver" in watched(rows)[0][1].line


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
    rows = curve([0.2, 0.3, 0.4, 0.5, 0.0, 0.01, 0.0, 0.0])
    resumed = CollapseWatch({"solver": NOISE})
    for each in rows[:6]:
        resumed.look(each)
    assert [sign.collapsed for sign in resumed.look(rows[6])] == [True]
