from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import experience, layouts, seeds
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.batch import to_rows
from marft.algorithms.losses import sum_by_turn

few = settings(max_examples=50, deadline=None, derandomize=True)


def noise(seed: int, size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_experience_knows_the_turns_and_ends_of_its_tokens() -> None:
    found = experience([[2, 1], [3]], [1, 0])
    assert found.turn_N.tolist() == [0, 0, 1, 2, 2, 2]
    assert found.ends_N.tolist() == [False, True, True, False, False, True]


def test_to_rows_lays_each_episode_in_its_own_row() -> None:
    # episode 1 has nothing: its row is padding alone
    grid, mask, column = to_rows(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 2]), 3)
    assert grid.tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]]
    assert mask.tolist() == [[True, True], [False, False], [True, False]]
    assert column.tolist() == [0, 1, 0]


# --- scores -----------------------------------------------------------------------------------------------------------
def test_returns_to_go_by_hand() -> None:
    # episode 0: c_2 = 4; c_1 = 2 + ½·4 = 4; c_0 = 1 + ¼·4 = 2. Episode 1 has no turns. Episode 2: 8, whatever follows
    data = replace(
        experience([[1, 1, 1], [], [1]], [0, 0, 0]),
        reward_K=torch.tensor([1.0, 2.0, 4.0, 8.0]),
        discount_K=torch.tensor([0.25, 0.5, 1.0, 1.0]),
    )
    assert data.episode_K.tolist() == [0, 0, 0, 2]
    assert data.score_K.tolist() == [2.0, 4.0, 4.0, 8.0]


def test_returns_of_several_players_are_chained_each_on_its_own() -> None:
    # one episode: player 0 has turns 0 and 2, player 1 has turn 1: c_2 = 4; c_1 = 2; c_0 = 1 + ½·4
    data = replace(
        experience([[1, 1, 1]], [0]), reward_K=torch.tensor([1.0, 2.0, 4.0]), discount_K=torch.full((3,), 0.5)
    )
    batch = replace(data.batch, return_K=torch.tensor([0, 1, 0]), episode_R=torch.tensor([0, 0]))
    assert batch.returns_to_go().tolist() == [3.0, 2.0, 4.0]


def test_turns_that_are_not_chained_score_their_own_rewards() -> None:
    data = replace(experience([[1, 1], [1]], [0, 0]), reward_K=torch.tensor([1.0, 2.0, 4.0]), discount_K=torch.zeros(3))
    assert data.score_K.tolist() == [1.0, 2.0, 4.0]


@few
@given(layout=layouts, seed=seeds)
def test_scores_are_the_plain_loop(layout: list[list[int]], seed: int) -> None:
    plain = experience(layout, [0] * len(layout))
    turns = len(plain.length_K)
    data = replace(plain, reward_K=noise(seed, turns), discount_K=noise(seed + 1, turns).sigmoid())
    expected = [0.0] * turns
    for k in reversed(range(turns)):
        chained = k + 1 < turns and data.episode_K[k + 1] == data.episode_K[k]
        expected[k] = float(data.reward_K[k]) + (float(data.discount_K[k]) * expected[k + 1] if chained else 0.0)
    assert data.score_K.tolist() == pytest.approx(expected, abs=1e-5)


@few
@given(layout=layouts, rewards=st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4))
def test_without_discount_everyone_scores_exactly_the_teams_reward(
    layout: list[list[int]], rewards: list[float]
) -> None:
    data = experience(layout, rewards)
    assert torch.equal(data.score_K, torch.tensor(rewards)[data.episode_K])


@few
@given(layout=layouts, seed=seeds)
def test_a_score_does_not_know_what_lies_beside_its_episode(layout: list[list[int]], seed: int) -> None:
    rewards = noise(seed, len(layout)).tolist()
    together = experience(layout, rewards, gamma=0.7).score_K
    alone = [experience([lengths], [rewards[e]], gamma=0.7).score_K for e, lengths in enumerate(layout)]
    assert torch.equal(together, torch.cat(alone))


# --- penalties --------------------------------------------------------------------------------------------------------
def test_penalties_by_hand() -> None:
    # turns of 2 and 1 tokens, R = 1 on the last, γ = ½: turn rewards −(0.1 + 0.2) and 1 − 0.4; c_0 = −0.3 + ½·0.6
    data = experience([[2, 1]], [1], gamma=0.5, penalty=torch.tensor([0.1, 0.2, 0.4]))
    assert_close(data.token_reward_N, torch.tensor([-0.1, -0.2, 0.6]))
    assert_close(data.turn_reward_K, torch.tensor([-0.3, 0.6]))
    assert_close(data.score_K, torch.tensor([0.0, 0.6]))


def test_without_penalties_rewards_are_as_they_came() -> None:
    data = experience([[2, 1], [3]], [1, 0.5])
    assert data.token_reward_N.tolist() == [0, 0, 1, 0, 0, 0.5]
    assert torch.equal(data.turn_reward_K, data.reward_K)


@few
@given(layout=layouts, seed=seeds)
def test_the_tokens_of_a_turn_earn_what_the_turn_earns(layout: list[list[int]], seed: int) -> None:
    penalty = noise(seed, sum(map(sum, layout)))
    data = experience(layout, noise(seed + 1, len(layout)).tolist(), penalty=penalty)
    assert_close(sum_by_turn(data.token_reward_N, data.turn_N, len(data.length_K)), data.turn_reward_K)
