from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from marft.algorithms.losses import (
    Aggregation,
    action_ratio,
    clipped_surrogate,
    is_clipped,
    kl_k3,
    sum_by_turn,
    token_surrogate,
    turn_weights,
    value_loss,
)

few = settings(max_examples=60, deadline=None, derandomize=True)
numbers = st.floats(-5, 5, allow_nan=False, width=32)


# --- the clipped surrogate --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),
        (1.1, 2.0, -2.2),  # inside
        (1.5, 2.0, -2.6),  # clip(1.5) = 1.3: min(3, 2.6)
        (0.5, 2.0, -1.0),  # min(1, 0.9 · 2): a good action that became unlikely is pulled back in full
        (0.5, -2.0, 1.8),  # clip(0.5) = 0.9: min(−1, −1.8)
        (1.5, -2.0, 3.0),  # min(−3, −2.6): a bad action that became likely is pushed down in full
    ],
)
def test_clipped_surrogate_by_hand(ratio: float, advantage: float, loss: float) -> None:
    found = clipped_surrogate(torch.tensor(ratio), torch.tensor(advantage), low=0.1, high=0.3)
    assert found.item() == pytest.approx(loss)


@few
@given(st.floats(0.01, 4), numbers, st.floats(0.01, 0.9), st.floats(0.01, 3))
def test_the_surrogate_is_pessimistic_and_marks_where_its_gradient_ends(
    ratio: float, advantage: float, low: float, high: float
) -> None:
    rho = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    a = torch.tensor(advantage, dtype=torch.float64)
    loss = clipped_surrogate(rho, a, low=low, high=high)
    assert loss.item() >= -(ratio * advantage) - 1e-12
    (slope,) = torch.autograd.grad(loss, rho)
    if min(abs(ratio - 1 + low), abs(ratio - 1 - high)) > 1e-6:
        expected = 0.0 if is_clipped(rho, a, low=low, high=high) else -advantage
        assert slope.item() == pytest.approx(expected)


def test_the_clip_is_asymmetric() -> None:
    ratio, up, down = torch.tensor([0.85, 1.25]), torch.ones(2), -torch.ones(2)
    assert is_clipped(ratio, up, low=0.2, high=0.3).tolist() == [False, False]
    assert is_clipped(ratio, up, low=0.3, high=0.2).tolist() == [False, True]
    assert is_clipped(ratio, down, low=0.2, high=0.3).tolist() == [False, False]
    assert is_clipped(ratio, down, low=0.1, high=0.3).tolist() == [True, False]


def test_token_surrogate_by_hand() -> None:
    # ρ = (1, 2, ½), A = (1, 1, −1), ε = 0.2: losses −1, −1.2, 0.8; weights ½, ¼, ¼ → −½ − 0.3 + 0.2
    loss, clipped = token_surrogate(
        torch.tensor([0.0, math.log(2), -math.log(2)]),
        torch.zeros(3),
        torch.tensor([1.0, 1.0, -1.0]),
        torch.tensor([0.5, 0.25, 0.25]),
        low=0.2,
        high=0.2,
    )
    assert loss.item() == pytest.approx(-0.6)
    assert clipped.tolist() == [False, True, True]


def test_at_the_old_policy_the_gradient_is_the_policy_gradient() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    advantages, weight = torch.tensor([1.0, -2.0, 0.0]), torch.tensor([0.5, 0.3, 0.2])
    loss, _ = token_surrogate(logprobs, logprobs.detach(), advantages, weight, low=0.2, high=0.2)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert_close(gradient, -advantages * weight)


# --- turns ------------------------------------------------------------------------------------------------------------
def test_sum_by_turn_takes_tokens_in_any_order() -> None:
    found = sum_by_turn(torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([2, 0, 2, 0]), 3)
    assert found.tolist() == [10.0, 0.0, 5.0]


def test_action_ratio_by_hand() -> None:
    # turn 0: Σ = 0.6 over 2 tokens; turn 1: Σ = −0.3 over 1
    log_ratio, turn = torch.tensor([0.2, 0.4, -0.3]), torch.tensor([0, 0, 1])
    for divisor, expected in [((1.0, 1.0), (0.6, -0.3)), ((2.0, 1.0), (0.3, -0.3)), ((3.0, 2.0), (0.2, -0.15))]:
        assert_close(action_ratio(log_ratio, turn, torch.tensor(divisor)), torch.tensor(expected).exp())


# --- KL and values ----------------------------------------------------------------------------------------------------
def test_k3_by_hand() -> None:
    # d = ln 2: 2 − ln 2 − 1
    assert kl_k3(torch.tensor(0.0), torch.tensor(math.log(2))).item() == pytest.approx(1 - math.log(2))


@few
@given(numbers, numbers)
def test_k3_is_never_negative_and_zero_at_equality(logprob: float, reference: float) -> None:
    a, b = torch.tensor(logprob, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)
    assert kl_k3(a, b).item() >= 0
    assert kl_k3(a, a).item() == 0


def test_k3_is_unbiased() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
    assert_close((p * kl_k3(p.log(), q.log())).sum(), (p * (p / q).log()).sum())


def loss_of(value: float, target: float, old: float = 0.0, clip: float | None = None, kind: str = "mse") -> float:
    v, r, o = (torch.tensor(x, dtype=torch.float64) for x in (value, target, old))
    return value_loss(v, r, o, clip=clip, kind="huber" if kind == "huber" else "mse").item()


@pytest.mark.parametrize(
    ("value", "target", "kind", "loss"),
    [(3.0, 1.0, "mse", 2.0), (1.5, 1.0, "mse", 0.125), (3.0, 1.0, "huber", 1.5), (1.5, 1.0, "huber", 0.125)],
)
def test_value_loss_by_hand(value: float, target: float, kind: str, loss: float) -> None:
    assert loss_of(value, target, kind=kind) == pytest.approx(loss)


@few
@given(numbers, numbers, st.sampled_from(["mse", "huber"]))
def test_value_loss_is_symmetric(target: float, error: float, kind: str) -> None:
    assert loss_of(target + error, target, kind=kind) == pytest.approx(loss_of(target - error, target, kind=kind))


def test_huber_is_smooth_where_it_turns_linear() -> None:
    values = torch.tensor([0.999, 1.001, -0.999, -1.001], dtype=torch.float64, requires_grad=True)
    loss = value_loss(values, torch.zeros(4).double(), torch.zeros(4).double(), clip=None, kind="huber")
    (slope,) = torch.autograd.grad(loss.sum(), values)
    assert_close(slope, torch.tensor([0.999, 1.0, -0.999, -1.0]).double())
    assert_close(loss[0].detach(), loss[1].detach(), atol=0.003, rtol=0)


def test_value_clip_by_hand() -> None:
    # old 0, clip ½: V = 2 moves to ½. Target 2: max(0, ½·1.5²) = 1.125. Target −1: max(½·3², ½·1.5²) = 4.5
    assert loss_of(2.0, 2.0, old=0.0, clip=0.5) == pytest.approx(1.125)
    assert loss_of(2.0, -1.0, old=0.0, clip=0.5) == pytest.approx(4.5)


@few
@given(numbers, numbers, numbers, st.floats(0.01, 2), st.sampled_from(["mse", "huber"]))
def test_value_clip_takes_the_worse(value: float, target: float, old: float, clip: float, kind: str) -> None:
    moved = old + max(-clip, min(clip, value - old))
    expected = max(loss_of(value, target, kind=kind), loss_of(moved, target, kind=kind))
    assert loss_of(value, target, old, clip, kind) == pytest.approx(expected)


# --- weights ----------------------------------------------------------------------------------------------------------
def test_weights_by_hand() -> None:
    # agent 0 has turns of 1 and 3 tokens, agent 1 one turn of 2
    lengths, agents = torch.tensor([1, 2, 3]), torch.tensor([0, 1, 0])
    assert_close(turn_weights(lengths, agents, "token"), torch.tensor([1 / 4, 1 / 2, 1 / 4]))
    assert_close(turn_weights(lengths, agents, "turn"), torch.tensor([1 / 2, 1 / 2, 1 / 6]))


@few
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=20),
    st.sampled_from(["token", "turn"]),
)
def test_every_agents_weights_sum_to_one(turns: list[tuple[int, int]], aggregation: Aggregation) -> None:
    lengths, agents = (torch.tensor(column) for column in zip(*turns, strict=True))
    weights = turn_weights(lengths, agents, aggregation)
    assert (weights > 0).all()
    for agent in agents.unique():
        own = agents == agent
        assert (weights[own] * lengths[own]).sum().item() == pytest.approx(1, abs=1e-5)
