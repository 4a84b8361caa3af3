"""Who is updated, and when: the plays of one iteration and the steps after each, by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.training.schedule import Mode, Steps, schedule_plays

TRIO = ("a", "b", "c")
teams = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)
seeds = st.integers(0, 2**63 - 1)


def at(mode: Mode, adapters: tuple[str, ...] = TRIO, *, iteration: int = 0, interval: int = 1, seed: int = 0) -> object:
    return schedule_plays(mode, adapters, iteration=iteration, interval=interval, seed=seed)


def test_joint_is_one_play_after_which_all_learn_at_once() -> None:
    for iteration in range(3):
        assert at("joint", iteration=iteration, seed=iteration) == ((frozenset("abc"),),)
    assert at("joint", ("a",)) == ((frozenset("a"),),)


def learner_of(iteration: int, interval: int, adapters: tuple[str, ...] = TRIO) -> str:
    """Who learns under `alternate`: one play, one step, one adapter."""
    [[step]] = schedule_plays("alternate", adapters, iteration=iteration, interval=interval, seed=iteration)
    [name] = step
    return name


def test_alternate_goes_through_the_team_and_begins_again() -> None:
    assert "".join(learner_of(i, 1) for i in range(8)) == "abcabcab"


def test_alternate_stays_with_an_adapter_for_its_interval() -> None:
    assert "".join(learner_of(i, 3) for i in range(13)) == "aaabbbcccaaab"
    assert "".join(learner_of(i, 2, ("a", "b")) for i in range(7)) == "aabbaab"


def test_sequential_is_one_play_and_one_step_after_the_other() -> None:
    [steps] = schedule_plays("sequential", TRIO, iteration=0, interval=1, seed=5)
    assert all(len(step) == 1 for step in steps)
    assert Counter(steps) == Counter(map(frozenset, TRIO))


def test_resample_plays_anew_for_every_adapter() -> None:
    found = schedule_plays("resample", TRIO, iteration=0, interval=1, seed=5)
    assert all(len(steps) == 1 for steps in found)
    assert Counter(steps[0] for steps in found) == Counter(map(frozenset, TRIO))


def order_of(mode: Mode, found: tuple[Steps, ...]) -> list[str]:
    steps = found[0] if mode == "sequential" else tuple(steps[0] for steps in found)
    return [name for step in steps for name in step]


@pytest.mark.parametrize("mode", ["sequential", "resample"])
@given(team=teams, iteration=st.integers(0, 100), interval=st.integers(1, 9), seed=seeds)
def test_every_adapter_comes_once_in_an_order_of_the_seed_alone(
    mode: Mode, team: list[str], iteration: int, interval: int, seed: int
) -> None:
    order = order_of(mode, schedule_plays(mode, team, iteration=iteration, interval=interval, seed=seed))
    assert sorted(order) == sorted(team)
    assert order == order_of(mode, schedule_plays(mode, team, iteration=0, interval=1, seed=seed))


@pytest.mark.parametrize("mode", ["sequential", "resample"])
def test_all_orders_come_about_equally_often(mode: Mode) -> None:
    """Nobody is always first: over many seeds each of the six orders has its share."""
    orders = Counter(
        tuple(order_of(mode, schedule_plays(mode, TRIO, iteration=0, interval=1, seed=seed))) for seed in range(600)
    )
    assert len(orders) == 6
    assert min(orders.values()) > 60
