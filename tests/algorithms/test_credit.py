from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.algorithms.credit import RewardStream, equal
from marft.types import Completion, Episode, Reward, Task, Turn

few = settings(max_examples=50, deadline=None, derandomize=True)
rewards = st.lists(st.floats(-10, 10, allow_nan=False), min_size=1, max_size=8)


def episode(turns: int, team: float) -> Episode:
    completion = Completion(text="x", token_ids=(5, 2), logprobs=(-1.0, -1.0), finish="stop", version=0)
    made = tuple(
        Turn(agent=f"agent_{k}", index=k, nth=0, shown="", observation=(), prompt_ids=(1,), completion=completion)
        for k in range(turns)
    )
    return Episode(task=Task(id="t", prompt="p"), sample=0, turns=made, reward=Reward(team=team))


def test_scores_of_a_chained_stream_by_hand() -> None:
    # c_2 = 4; c_1 = 2 + ½·4 = 4; c_0 = 1 + ½·4 = 3
    assert RewardStream(rewards=(1.0, 2.0, 4.0), gamma=0.5, chained=True).scores() == (3.0, 4.0, 4.0)


def test_scores_of_an_unchained_stream_are_its_rewards() -> None:
    assert RewardStream(rewards=(1.0, 2.0, 4.0), gamma=0.5, chained=False).scores() == (1.0, 2.0, 4.0)


def test_a_reward_on_the_last_turn_is_discounted_back() -> None:
    # c_k = β^{K-1-k} R
    assert RewardStream(rewards=(0.0, 0.0, 8.0), gamma=0.5, chained=True).scores() == (2.0, 4.0, 8.0)


@few
@given(rewards)
def test_the_first_score_without_discount_is_the_sum(values: list[float]) -> None:
    scores = RewardStream(rewards=tuple(values), gamma=1.0, chained=True).scores()
    assert scores[0] == pytest.approx(sum(values), abs=1e-9)


@few
@given(rewards, st.floats(0, 1))
def test_scores_are_returns_to_go(values: list[float], gamma: float) -> None:
    scores = RewardStream(rewards=tuple(values), gamma=gamma, chained=True).scores()
    for k, score in enumerate(scores):
        to_go = sum(gamma ** (m - k) * r for m, r in enumerate(values) if m >= k)
        assert score == pytest.approx(to_go, abs=1e-9)


@pytest.mark.parametrize("team", [1.0, 0.5, -2.0])
@pytest.mark.parametrize("turns", [1, 2, 5])
def test_equal_credit_scores_the_teams_reward_everywhere(turns: int, team: float) -> None:
    stream = equal(episode(turns, team))
    assert stream.rewards == (0.0,) * (turns - 1) + (team,)
    assert stream.scores() == (team,) * turns


def test_defect_04_a_failure_is_a_reward_of_zero_and_not_missing() -> None:
    stream = equal(episode(3, 0.0))
    assert stream.rewards == (0.0, 0.0, 0.0)
    assert stream.scores() == (0.0, 0.0, 0.0)
