from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.advantages import action_gae, gae, group_relative, suffix_scan, token_gae, whiten

NAN = float("nan")
few = settings(max_examples=50, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)
unit = st.floats(0, 1)


def rand(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def naive_scan(x: Tensor, decay: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    following = torch.zeros_like(x[:, 0])
    for t in reversed(range(x.shape[1])):
        y[:, t] = following = x[:, t] + decay[:, t] * following
    return y


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Values are doubles here, discounts single precision as in training."""
    assert_close(found, expected, atol=1e-5, rtol=1e-5)


def full(rows: int, steps: int) -> Tensor:
    return torch.ones(rows, steps, dtype=torch.bool)


# --- the recursion ----------------------------------------------------------------------------------------------------
def test_suffix_scan_by_hand() -> None:
    # y_2 = 3; y_1 = 2 + ½·3 = 3.5; y_0 = 1 + 2·3.5 = 8; the last decay multiplies nothing
    y = suffix_scan(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2.0, 0.5, 9.0]]))
    assert y.tolist() == [[8.0, 3.5, 3.0]]


@few
@given(seeds, st.integers(1, 4), st.integers(1, 40))
def test_suffix_scan_is_the_naive_loop(seed: int, rows: int, steps: int) -> None:
    x, decay = rand(seed, rows, steps), rand(seed + 1, rows, steps).tanh()
    kept = x.clone(), decay.clone()
    assert_close(suffix_scan(x, decay), naive_scan(x, decay))
    assert torch.equal(x, kept[0])
    assert torch.equal(decay, kept[1])


# --- action level -----------------------------------------------------------------------------------------------------
def test_action_gae_by_hand() -> None:
    # γ = ½, λ = ½, R = 1 on the last of two turns, V = (0.4, 0.6)
    # δ_1 = 1 + ½·0 − 0.6 = 0.4;   A_1 = 0.4
    # δ_0 = 0 + ½·0.6 − 0.4 = −0.1; A_0 = −0.1 + ¼·0.4 = 0
    rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.4, 0.6]])
    found = action_gae(rewards, values, full(1, 2), torch.zeros(1), gamma=0.5, lam=0.5)
    assert_close(found, torch.tensor([[0.0, 0.4]]))


def test_an_episode_cut_off_bootstraps_from_the_value_after_it() -> None:
    # the same with V(s_2) = 0.8: δ_1 = 1 + ½·0.8 − 0.6 = 0.8; A_0 = −0.1 + ¼·0.8 = 0.1
    rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.4, 0.6]])
    found = action_gae(rewards, values, full(1, 2), torch.tensor([0.8]), gamma=0.5, lam=0.5)
    assert_close(found, torch.tensor([[0.1, 0.8]]))


@few
@given(seeds, st.integers(1, 12), unit)
def test_lambda_one_is_return_to_go_minus_value(seed: int, steps: int, gamma: float) -> None:
    rewards, values, final = rand(seed, 3, steps), rand(seed + 1, 3, steps), rand(seed + 2, 3)
    found = action_gae(rewards, values, full(3, steps), final, gamma=gamma, lam=1.0)
    to_go, following = torch.zeros_like(rewards), final
    for t in reversed(range(steps)):
        to_go[:, t] = following = rewards[:, t] + gamma * following
    assert_close(found, to_go - values)


@few
@given(seeds, st.integers(1, 12), unit)
def test_lambda_zero_is_the_one_step_error(seed: int, steps: int, gamma: float) -> None:
    rewards, values, final = rand(seed, 3, steps), rand(seed + 1, 3, steps), rand(seed + 2, 3)
    found = action_gae(rewards, values, full(3, steps), final, gamma=gamma, lam=0.0)
    following = torch.cat([values[:, 1:], final[:, None]], dim=1)
    assert_close(found, rewards + gamma * following - values)


@few
@given(seeds, st.lists(st.integers(1, 9), min_size=1, max_size=5), unit, unit)
def test_nothing_leaks_from_padding_or_other_episodes(seed: int, lengths: list[int], gamma: float, lam: float) -> None:
    shape = len(lengths), max(lengths) + 2
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    rewards = rand(seed, *shape).masked_fill(~mask, NAN)
    values = rand(seed + 1, *shape).masked_fill(~mask, NAN)
    final = rand(seed + 2, len(lengths))
    found = action_gae(rewards, values, mask, final, gamma=gamma, lam=lam)
    assert (found[~mask] == 0).all()
    for e, n in enumerate(lengths):
        alone = action_gae(rewards[e, None, :n], values[e, None, :n], full(1, n), final[e, None], gamma=gamma, lam=lam)
        assert_close(found[e, :n], alone[0])


def test_defect_05_an_upstream_agent_keeps_its_credit_when_another_episode_follows() -> None:
    # two episodes of two turns and one of one; γ = λ = 1 and V = 0 give every turn its own episode's reward
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    rewards = torch.tensor([[0.0, 1.0], [5.0, 0.0], [0.0, 0.0]])
    found = action_gae(rewards, torch.zeros(3, 2), mask, torch.zeros(3), gamma=1.0, lam=1.0)
    assert found.tolist() == [[1.0, 1.0], [5.0, 0.0], [0.0, 0.0]]


# --- token level ------------------------------------------------------------------------------------------------------
def test_token_gae_by_hand() -> None:
    # two turns of two tokens, γ = λ = ½ between turns, γ_w = λ_w = 1 inside, R = 1 on the last token
    # v = (0.1, 0.2 | 0.4, 0.6)
    # A_3 = 1 − 0.6 = 0.4
    # A_2 = (0.6 − 0.4) + 0.4 = 0.6
    # A_1 = (½·0.4 − 0.2) + ¼·0.6 = 0.15      from the solver's first token into the planner's last
    # A_0 = (0.2 − 0.1) + 0.15 = 0.25
    found = token_gae(
        torch.tensor([[0.0, 0.0, 0.0, 1.0]]),
        torch.tensor([[0.1, 0.2, 0.4, 0.6]]),
        torch.tensor([[False, True, False, True]]),
        full(1, 4),
        torch.zeros(1),
        gamma=0.5,
        lam=0.5,
    )
    assert_close(found, torch.tensor([[0.25, 0.15, 0.6, 0.4]]))


def test_the_token_discount_by_hand() -> None:
    # one turn of two tokens, γ_w = ½, λ_w = ½: A_1 = 1 − 0.6; A_0 = (½·0.6 − 0.1) + ¼·0.4 = 0.3; γ, λ touch nothing
    found = token_gae(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[0.1, 0.6]]), torch.tensor([[False, True]]), full(1, 2), torch.zeros(1),
        gamma=0.9, lam=0.9, token_gamma=0.5, token_lam=0.5,
    )  # fmt: skip
    assert_close(found, torch.tensor([[0.3, 0.4]]))


@few
@given(seeds, st.integers(1, 9), unit, unit)
def test_one_token_a_turn_is_action_gae(seed: int, steps: int, gamma: float, lam: float) -> None:
    rewards, values, final = rand(seed, 2, steps), rand(seed + 1, 2, steps), rand(seed + 2, 2)
    mask = full(2, steps)
    found = token_gae(rewards, values, mask, mask, final, gamma=gamma, lam=lam, token_gamma=0.3, token_lam=0.3)
    assert_near(found, action_gae(rewards, values, mask, final, gamma=gamma, lam=lam))


@few
@given(seeds, st.lists(st.integers(1, 5), min_size=1, max_size=5), unit, unit)
def test_first_tokens_obey_the_recursion_over_turns(seed: int, lengths: list[int], gamma: float, lam: float) -> None:
    """With γ_w = λ_w = 1 the values inside a turn cancel: its first token's advantage is that of the whole action."""
    total = sum(lengths)
    ends = torch.zeros(1, total, dtype=torch.bool)
    ends[0, torch.tensor(lengths).cumsum(0) - 1] = True
    rewards, values = rand(seed, 1, total) * ends, rand(seed + 1, 1, total)
    found = token_gae(rewards, values, ends, full(1, total), torch.zeros(1).double(), gamma=gamma, lam=lam)
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    turns = action_gae(
        rewards[:, ends[0]], values[:, starts], full(1, len(lengths)), torch.zeros(1).double(), gamma=gamma, lam=lam
    )
    assert_near(found[:, starts], turns)


@few
@given(seeds, st.integers(1, 12), unit, unit)
def test_equal_discounts_are_the_plain_token_mdp(seed: int, steps: int, gamma: float, lam: float) -> None:
    rewards, values, final = rand(seed, 2, steps), rand(seed + 1, 2, steps), rand(seed + 2, 2)
    ends = rand(seed + 3, 2, steps) > 0
    plain = torch.ones_like(values)
    found = token_gae(
        rewards, values, ends, full(2, steps), final, gamma=gamma, lam=lam, token_gamma=gamma, token_lam=lam
    )
    assert_near(found, gae(rewards, values, gamma * plain, lam * plain, full(2, steps), final))


# --- groups -----------------------------------------------------------------------------------------------------------
def test_group_relative_by_hand() -> None:
    # group 7: 1, 1, 0, 0: mean ½, std ½ → ±1.  group −2: 3, 0, 0: mean 1, std √((4 + 1 + 1)/3) = √2 → √2, −1/√2, −1/√2
    scores = torch.tensor([1.0, 3.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    groups = torch.tensor([7, -2, 7, -2, 7, 7, -2])
    root = 2**0.5
    expected = torch.tensor([1.0, root, 1.0, -1 / root, -1.0, -1.0, -1 / root])
    assert_close(group_relative(scores, groups, std_floor=1e-4), expected)


def test_the_floor_bounds_the_division() -> None:
    # mean ½, std ½ below the floor 2: ±½ / 2
    found = group_relative(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), std_floor=2.0)
    assert found.tolist() == [0.25, -0.25]


def test_a_group_of_one_gets_nothing() -> None:
    found = group_relative(torch.tensor([5.0, 1.0, 0.0]), torch.tensor([3, 1, 1]), std_floor=1e-4)
    assert found.tolist() == [0.0, 1.0, -1.0]


@few
@given(st.sampled_from([0.0, 1.0, 0.1, 0.95, 1000.1, -3.3]), st.integers(1, 9))
def test_a_group_without_spread_gets_nothing(score: float, size: int) -> None:
    found = group_relative(torch.full((size,), score), torch.zeros(size, dtype=torch.int64), std_floor=1e-4)
    assert found.abs().max() < 1e-3


@few
@given(seeds, st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_groups_know_neither_order_nor_names(seed: int, names: list[int]) -> None:
    scores, groups = rand(seed, len(names)), torch.tensor(names)
    found = group_relative(scores, groups, std_floor=1e-4)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    assert_close(group_relative(scores[order], groups[order], std_floor=1e-4), found[order])
    assert_close(group_relative(scores, 1000 - 17 * groups, std_floor=1e-4), found)


@few
@given(seeds, st.integers(2, 6))
def test_defect_07_a_group_depends_on_its_own_members_only(seed: int, size: int) -> None:
    scores = rand(seed, 2 * size)
    groups = torch.arange(2 * size) % 2  # interleaved: nothing could be cut by stride
    found = group_relative(scores, groups, std_floor=1e-4)
    other = scores + 100.0 * groups  # the odd group is worth far more
    assert_close(group_relative(other, groups, std_floor=1e-4)[::2], found[::2])
    alone = group_relative(scores[::2], groups[::2], std_floor=1e-4)
    assert_close(found[::2], alone)


def test_defect_04_zeros_count_in_the_statistics_of_a_group() -> None:
    # 1, 0, 0, 0: mean ¼, std √3/4. Were zeros missing, the mean would be 1 and the advantage of the success 0
    found = group_relative(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64), std_floor=1e-4)
    assert_close(found, torch.tensor([3.0, -1.0, -1.0, -1.0]) / 3**0.5)


# --- whitening --------------------------------------------------------------------------------------------------------
def test_whiten_by_hand() -> None:
    # agent 0: 1, 3: mean 2, std 1 → −1, 1.  agent 5: 10, 10, 40: mean 20, std √200 → −1/√2, −1/√2, √2
    found = whiten(torch.tensor([1.0, 10.0, 10.0, 3.0, 40.0]), torch.tensor([0, 5, 5, 0, 5]))
    root = 2**0.5
    assert_close(found, torch.tensor([-1.0, -1 / root, -1 / root, 1.0, root]))


def test_defect_04_zeros_count_when_whitening() -> None:
    # 3, 0, 0: mean 1, std √2
    found = whiten(torch.tensor([3.0, 0.0, 0.0]), torch.zeros(3, dtype=torch.int64))
    assert_close(found, torch.tensor([2.0, -1.0, -1.0]) / 2**0.5)


@few
@given(seeds, st.integers(2, 20), st.floats(0.1, 50), st.floats(-20, 20))
def test_whitening_forgets_scale_and_shift_of_each_agent(seed: int, size: int, scale: float, shift: float) -> None:
    advantages, agents = rand(seed, 2 * size), torch.arange(2 * size) % 2
    found = whiten(advantages, agents)
    for agent in (0, 1):
        own = found[agents == agent]
        assert own.mean().item() == pytest.approx(0, abs=1e-6)
        assert own.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    other = torch.where(agents == 1, advantages * scale + shift, advantages)
    assert_close(whiten(other, agents), found, atol=1e-6, rtol=1e-6)


@few
@given(st.sampled_from([0.0, 1.0, 0.1, 0.95, -0.3, 7.7]), st.integers(1, 50))
def test_an_agent_without_spread_whitens_to_nothing(advantage: float, size: int) -> None:
    """All succeed, critic untrained: every planner token has 0.95, and rounding must not be blown up to ±1."""
    found = whiten(torch.full((size,), advantage), torch.zeros(size, dtype=torch.int64))
    assert found.abs().max() < 1e-3
