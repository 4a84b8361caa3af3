from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.advantages import (
    action_gae,
    centred,
    gae,
    group_mean,
    group_relative,
    leave_one_out,
    running_baseline,
    suffix_scan,
    token_gae,
    whiten,
)

NAN = float("nan")
few = settings(max_examples=50, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)
unit = st.floats(0, 1)
single = st.floats(-5, 5, width=32)


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


def constant(gamma: float, like: Tensor) -> Tensor:
    return gamma * torch.ones_like(like)


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
    found = action_gae(rewards, values, constant(0.5, values), full(1, 2), torch.zeros(1), lam=0.5)
    assert_close(found, torch.tensor([[0.0, 0.4]]))


def test_an_episode_cut_off_bootstraps_from_the_value_after_it() -> None:
    # the same with V(s_2) = 0.8: δ_1 = 1 + ½·0.8 − 0.6 = 0.8; A_0 = −0.1 + ¼·0.8 = 0.1
    rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.4, 0.6]])
    found = action_gae(rewards, values, constant(0.5, values), full(1, 2), torch.tensor([0.8]), lam=0.5)
    assert_close(found, torch.tensor([[0.1, 0.8]]))


@few
@given(seeds, st.integers(1, 12), unit)
def test_lambda_one_is_return_to_go_minus_value(seed: int, steps: int, gamma: float) -> None:
    rewards, values, final = rand(seed, 3, steps), rand(seed + 1, 3, steps), rand(seed + 2, 3)
    found = action_gae(rewards, values, constant(gamma, values), full(3, steps), final, lam=1.0)
    to_go, following = torch.zeros_like(rewards), final
    for t in reversed(range(steps)):
        to_go[:, t] = following = rewards[:, t] + gamma * following
    assert_close(found, to_go - values)


@few
@given(seeds, st.integers(1, 12), unit)
def test_lambda_zero_is_the_one_step_error(seed: int, steps: int, gamma: float) -> None:
    rewards, values, final = rand(seed, 3, steps), rand(seed + 1, 3, steps), rand(seed + 2, 3)
    found = action_gae(rewards, values, constant(gamma, values), full(3, steps), final, lam=0.0)
    following = torch.cat([values[:, 1:], final[:, None]], dim=1)
    assert_close(found, rewards + gamma * following - values)


@few
@given(seeds, st.lists(st.integers(1, 9), min_size=1, max_size=5), unit)
def test_nothing_leaks_from_padding_or_other_episodes(seed: int, lengths: list[int], lam: float) -> None:
    shape = len(lengths), max(lengths) + 2
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    rewards = rand(seed, *shape).masked_fill(~mask, NAN)
    values = rand(seed + 1, *shape).masked_fill(~mask, NAN)
    discount = rand(seed + 3, *shape).sigmoid().masked_fill(~mask, NAN)
    final = rand(seed + 2, len(lengths))
    found = action_gae(rewards, values, discount, mask, final, lam=lam)
    assert (found[~mask] == 0).all()
    for e, n in enumerate(lengths):
        r, v, d = (x[e, None, :n] for x in (rewards, values, discount))
        alone = action_gae(r, v, d, full(1, n), final[e, None], lam=lam)
        assert_close(found[e, :n], alone[0])


def test_defect_05_an_upstream_agent_keeps_its_credit_when_another_episode_follows() -> None:
    # two episodes of two turns and one of one; γ = λ = 1 and V = 0 give every turn its own episode's reward
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    rewards = torch.tensor([[0.0, 1.0], [5.0, 0.0], [0.0, 0.0]])
    found = action_gae(rewards, torch.zeros(3, 2), torch.ones(3, 2), mask, torch.zeros(3), lam=1.0)
    assert found.tolist() == [[1.0, 1.0], [5.0, 0.0], [0.0, 0.0]]


def test_each_turn_has_its_own_discount() -> None:
    # γ = (½, ¼), λ = 1, V = (0.4, 0.6), V(s_2) = 0.8
    # A_1 = 1 + ¼·0.8 − 0.6 = 0.6; A_0 = (½·0.6 − 0.4) + ½·0.6 = 0.2
    found = action_gae(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[0.4, 0.6]]), torch.tensor([[0.5, 0.25]]), full(1, 2),
        torch.tensor([0.8]), lam=1.0,
    )  # fmt: skip
    assert_close(found, torch.tensor([[0.2, 0.6]]))


@few
@given(seeds, st.integers(1, 9), unit)
def test_turns_that_are_not_chained_have_one_step_advantages(seed: int, steps: int, lam: float) -> None:
    rewards, values, final = rand(seed, 2, steps), rand(seed + 1, 2, steps), rand(seed + 2, 2)
    found = action_gae(rewards, values, torch.zeros_like(values), full(2, steps), final, lam=lam)
    assert_close(found, rewards - values)


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
        torch.tensor([[NAN, 0.5, NAN, 0.5]]),
        full(1, 4),
        torch.zeros(1),
        lam=0.5,
    )
    assert_close(found, torch.tensor([[0.25, 0.15, 0.6, 0.4]]))


def test_the_token_discount_by_hand() -> None:
    # one turn of two tokens, γ_w = ½, λ_w = ½: A_1 = 1 − 0.6; A_0 = (½·0.6 − 0.1) + ¼·0.4 = 0.3; γ, λ touch nothing
    found = token_gae(
        torch.tensor([[0.0, 1.0]]), torch.tensor([[0.1, 0.6]]), torch.tensor([[False, True]]), torch.full((1, 2), 0.9),
        full(1, 2), torch.zeros(1), lam=0.9, token_gamma=0.5, token_lam=0.5,
    )  # fmt: skip
    assert_close(found, torch.tensor([[0.3, 0.4]]))


def test_tokens_of_turns_that_are_not_chained_know_their_own_turn_alone() -> None:
    # v = (0.1, 0.2 | 0.4, 0.6), rewards 3 and 1 on the ends, V(s_2) = 9: with γ_w = λ_w = 1, A = r − v in each turn
    found = token_gae(
        torch.tensor([[0.0, 3.0, 0.0, 1.0]]), torch.tensor([[0.1, 0.2, 0.4, 0.6]]),
        torch.tensor([[False, True, False, True]]), torch.zeros(1, 4), full(1, 4), torch.tensor([9.0]), lam=0.5,
    )  # fmt: skip
    assert_close(found, torch.tensor([[2.9, 2.8, 0.6, 0.4]]))


@few
@given(seeds, st.integers(1, 9), unit, unit)
def test_one_token_a_turn_is_action_gae(seed: int, steps: int, gamma: float, lam: float) -> None:
    rewards, values, final = rand(seed, 2, steps), rand(seed + 1, 2, steps), rand(seed + 2, 2)
    mask, discount = full(2, steps), constant(gamma, values)
    found = token_gae(rewards, values, mask, discount, mask, final, lam=lam, token_gamma=0.3, token_lam=0.3)
    assert_near(found, action_gae(rewards, values, discount, mask, final, lam=lam))


@few
@given(seeds, st.lists(st.integers(1, 5), min_size=1, max_size=5), unit)
def test_first_tokens_obey_the_recursion_over_turns(seed: int, lengths: list[int], lam: float) -> None:
    """With γ_w = λ_w = 1 the values inside a turn cancel: its first token's advantage is that of the whole action."""
    total = sum(lengths)
    ends = torch.zeros(1, total, dtype=torch.bool)
    ends[0, torch.tensor(lengths).cumsum(0) - 1] = True
    rewards, values = rand(seed, 1, total) * ends, rand(seed + 1, 1, total)
    discount, final = rand(seed + 2, 1, total).sigmoid(), rand(seed + 3, 1)
    found = token_gae(rewards, values, ends, discount, full(1, total), final, lam=lam)
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    last = ends[0]
    turns = action_gae(rewards[:, last], values[:, starts], discount[:, last], full(1, len(lengths)), final, lam=lam)
    assert_near(found[:, starts], turns)


@few
@given(seeds, st.integers(1, 12), unit, unit)
def test_equal_discounts_are_the_plain_token_mdp(seed: int, steps: int, gamma: float, lam: float) -> None:
    rewards, values, final = rand(seed, 2, steps), rand(seed + 1, 2, steps), rand(seed + 2, 2)
    ends = rand(seed + 3, 2, steps) > 0
    mask, discount = full(2, steps), constant(gamma, values)
    found = token_gae(rewards, values, ends, discount, mask, final, lam=lam, token_gamma=gamma, token_lam=lam)
    assert_near(found, gae(rewards, values, discount, constant(lam, values), mask, final))


# --- groups -----------------------------------------------------------------------------------------------------------
def relative(scores_N: Tensor, groups_N: Tensor) -> Tensor:
    return group_relative(scores_N, groups_N, std_floor=1e-4)


COMPARISONS = pytest.mark.parametrize("compare", [relative, centred, leave_one_out, whiten])


def test_group_mean_by_hand() -> None:
    found = group_mean(torch.tensor([1.0, 3.0, 2.0, 5.0]), torch.tensor([7, -2, 7, -2]))
    assert found.tolist() == [1.5, 4.0, 1.5, 4.0]


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


def test_centred_by_hand() -> None:
    # group 7: 1, 0: mean ½.  group −2: 3, 0, 0: mean 1
    found = centred(torch.tensor([1.0, 3.0, 0.0, 0.0, 0.0]), torch.tensor([7, -2, 7, -2, -2]))
    assert found.tolist() == [0.5, 2.0, -0.5, -1.0, -1.0]


def test_leave_one_out_by_hand() -> None:
    # group 7: 1, 0: 1 − 0, 0 − 1.  group −2: 3, 0, 1: 3 − ½, 0 − 2, 1 − 3/2
    found = leave_one_out(torch.tensor([1.0, 3.0, 0.0, 0.0, 1.0]), torch.tensor([7, -2, 7, -2, -2]))
    assert found.tolist() == [1.0, 2.5, -1.0, -2.0, -0.5]


@few
@given(seeds, st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_leave_one_out_leaves_one_out(seed: int, names: list[int]) -> None:
    scores = rand(seed, len(names))
    found = leave_one_out(scores, torch.tensor(names))
    for i, name in enumerate(names):
        others = [scores[j].item() for j, other in enumerate(names) if other == name and j != i]
        expected = scores[i].item() - sum(others) / len(others) if others else 0.0
        assert found[i].item() == pytest.approx(expected, abs=1e-9)


@COMPARISONS
@few
@given(score=st.floats(-1e6, 1e6, width=32), size=st.integers(1, 50), others=st.lists(single, min_size=2, max_size=9))
def test_a_group_of_one_or_without_spread_gets_exactly_nothing(
    compare: Callable[[Tensor, Tensor], Tensor], score: float, size: int, others: list[float]
) -> None:
    scores = torch.tensor([score] * size + others)
    groups = torch.tensor([3] * size + [1] * len(others))
    assert (compare(scores, groups)[:size] == 0).all()


@COMPARISONS
@few
@given(seed=seeds, names=st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_groups_know_neither_order_nor_names(
    compare: Callable[[Tensor, Tensor], Tensor], seed: int, names: list[int]
) -> None:
    scores, groups = rand(seed, len(names)), torch.tensor(names)
    found = compare(scores, groups)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    assert_close(compare(scores[order], groups[order]), found[order])
    assert_close(compare(scores, 1000 - 17 * groups), found)


@COMPARISONS
@few
@given(seed=seeds, names=st.lists(st.integers(-3, 3), min_size=1, max_size=12))
def test_advantages_of_a_group_sum_to_zero(
    compare: Callable[[Tensor, Tensor], Tensor], seed: int, names: list[int]
) -> None:
    groups = torch.tensor(names)
    assert_close(group_mean(compare(rand(seed, len(names)), groups), groups), torch.zeros(len(names)).double())


@COMPARISONS
@few
@given(seed=seeds, size=st.integers(2, 6))
def test_defect_07_a_group_depends_on_its_own_members_only(
    compare: Callable[[Tensor, Tensor], Tensor], seed: int, size: int
) -> None:
    scores = rand(seed, 2 * size)
    groups = torch.arange(2 * size) % 2  # interleaved: nothing could be cut by stride
    found = compare(scores, groups)
    other = scores + 100.0 * groups  # the odd group is worth far more
    assert_close(compare(other, groups)[::2], found[::2])
    alone = compare(scores[::2], groups[::2])
    assert_close(found[::2], alone)


def test_defect_04_zeros_count_in_the_statistics_of_a_group() -> None:
    # 1, 0, 0, 0: mean ¼, std √3/4. Were zeros missing, the mean would be 1 and the advantage of the success 0
    found = group_relative(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64), std_floor=1e-4)
    assert_close(found, torch.tensor([3.0, -1.0, -1.0, -1.0]) / 3**0.5)


# --- running baselines ------------------------------------------------------------------------------------------------
def test_running_baseline_by_hand() -> None:
    # agent 0: b = ½, scores 1, 0 → ½, −½; b ← ¾·½ + ¼·½.  agent 2: b = −1, score 3 → 4; b ← −¾ + ¼·3.  agent 1 is absent
    found, following = running_baseline(
        torch.tensor([1.0, 3.0, 0.0]), torch.tensor([0, 2, 0]), torch.tensor([0.5, 0.1, -1.0]), decay=0.75
    )
    assert found.tolist() == [0.5, 4.0, -0.5]
    assert torch.equal(following, torch.tensor([0.5, 0.1, 0.0]))


def test_a_baseline_is_used_before_it_is_updated() -> None:
    baseline = torch.zeros(1)
    found, following = running_baseline(torch.ones(4), torch.zeros(4).long(), baseline, decay=0.0)
    assert found.tolist() == [1.0] * 4  # against the mean of this batch, all would be 0
    assert following.tolist() == [1.0]
    assert baseline.tolist() == [0.0]


@few
@given(seeds, st.lists(st.integers(0, 3), min_size=1, max_size=12), unit)
def test_running_baselines_do_not_know_the_order_of_a_batch(seed: int, names: list[int], decay: float) -> None:
    scores, agents, baseline = rand(seed, len(names)), torch.tensor(names), rand(seed + 1, 4)
    found, following = running_baseline(scores, agents, baseline, decay=decay)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    other, after = running_baseline(scores[order], agents[order], baseline, decay=decay)
    assert_close(other, found[order])
    assert_close(after, following)
    for agent in range(4):
        own = scores[agents == agent]
        expected = decay * baseline[agent] + (1 - decay) * own.mean() if len(own) else baseline[agent]
        assert_close(following[agent], expected)


# --- whitening --------------------------------------------------------------------------------------------------------
def test_whiten_by_hand() -> None:
    # agent 0: 1, 3: mean 2, std 1 → −1, 1.  agent 5: 10, 10, 40: mean 20, std √200 → −1/√2, −1/√2, √2
    found = whiten(torch.tensor([1.0, 10.0, 10.0, 3.0, 40.0]), torch.tensor([0, 5, 5, 0, 5]))
    root = 2**0.5
    assert_close(found, torch.tensor([-1.0, -1 / root, -1 / root, 1.0, root]))


def test_advantages_wider_than_their_scores_shrink_by_how_much_wider_they_are() -> None:
    """Scores ±1 (σ_c = 1). Advantages ±2 (σ_A = 2) are divided by 2²/1 = 4; ±½ by their own σ_A; equal scores leave 0."""
    agents, scores = torch.zeros(2, dtype=torch.int64), torch.tensor([1.0, -1.0])
    assert_close(whiten(torch.tensor([2.0, -2.0]), agents, scores), torch.tensor([0.5, -0.5]))
    assert_close(whiten(torch.tensor([0.5, -0.5]), agents, scores), torch.tensor([1.0, -1.0]))
    assert_close(whiten(torch.tensor([0.5, -0.5]), agents, torch.ones(2)), torch.zeros(2))


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
@given(st.sampled_from([1.0, 0.1, 0.95, -0.3, 7.7]), st.integers(2, 50))
def test_an_agent_without_spread_whitens_to_nothing(advantage: float, size: int) -> None:
    """All succeed, critic untrained: every planner token has 0.95, and rounding must not be blown up to ±1."""
    rounded = torch.full((size,), advantage)
    rounded[0] = rounded[0].nextafter(torch.tensor(100.0))
    assert whiten(rounded, torch.zeros(size, dtype=torch.int64)).abs().max() < 0.02
