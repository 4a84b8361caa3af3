from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from marft.algorithms.losses import (
    Aggregation,
    KlKind,
    action_ratio,
    adapted_kl_weight,
    clipped_surrogate,
    is_clipped,
    kl_estimate,
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
    found = clipped_surrogate(torch.tensor(ratio), torch.tensor(advantage), low=0.1, high=0.3, dual=None)
    assert found.item() == pytest.approx(loss)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (2.5, -2.0, 5.0, False),  # below the dual clip: in full
        (4.0, -2.0, 6.0, True),  # max(−8, 3 · −2): the loss stops at 6
        (0.5, -2.0, 1.8, True),  # the lower clip is as before
        (4.0, 2.0, -2.6, True),  # a good action knows no dual clip, only the upper
        (4.0, 0.0, 0.0, False),
    ],
)
def test_the_dual_clip_by_hand(ratio: float, advantage: float, loss: float, clipped: bool) -> None:
    rho, a = torch.tensor(ratio), torch.tensor(advantage)
    assert clipped_surrogate(rho, a, low=0.1, high=0.3, dual=3.0).item() == pytest.approx(loss)
    assert is_clipped(rho, a, low=0.1, high=0.3, dual=3.0).item() is clipped


@few
@given(st.floats(0.01, 8), numbers, st.floats(0.01, 0.9), st.floats(0.01, 3), st.none() | st.floats(1.1, 6))
def test_the_surrogate_is_pessimistic_and_marks_where_its_gradient_ends(
    ratio: float, advantage: float, low: float, high: float, dual: float | None
) -> None:
    rho = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    a = torch.tensor(advantage, dtype=torch.float64)
    loss = clipped_surrogate(rho, a, low=low, high=high, dual=dual)
    bound = -(ratio * advantage)  # what the plain objective would lose
    if dual is not None and advantage < 0:
        bound = min(bound, -dual * advantage)
    assert loss.item() >= bound - 1e-12
    (slope,) = torch.autograd.grad(loss, rho)
    corners = [1 - low, 1 + high, *([dual] if dual else [])]
    if min(abs(ratio - corner) for corner in corners) > 1e-6:
        expected = 0.0 if is_clipped(rho, a, low=low, high=high, dual=dual) else -advantage
        assert slope.item() == pytest.approx(expected)


def test_the_clip_is_asymmetric() -> None:
    ratio, up, down = torch.tensor([0.85, 1.25]), torch.ones(2), -torch.ones(2)
    assert is_clipped(ratio, up, low=0.2, high=0.3, dual=None).tolist() == [False, False]
    assert is_clipped(ratio, up, low=0.3, high=0.2, dual=None).tolist() == [False, True]
    assert is_clipped(ratio, down, low=0.2, high=0.3, dual=None).tolist() == [False, False]
    assert is_clipped(ratio, down, low=0.1, high=0.3, dual=None).tolist() == [True, False]


def test_token_surrogate_by_hand() -> None:
    # ρ = (1, 2, ½), A = (1, 1, −1), ε = 0.2: losses −1, −1.2, 0.8; weights ½, ¼, ¼ → −½ − 0.3 + 0.2
    loss, clipped = token_surrogate(
        torch.tensor([0.0, math.log(2), -math.log(2)]),
        torch.zeros(3),
        torch.tensor([1.0, 1.0, -1.0]),
        torch.tensor([0.5, 0.25, 0.25]),
        low=0.2,
        high=0.2,
        dual=None,
    )
    assert loss.item() == pytest.approx(-0.6)
    assert clipped.tolist() == [False, True, True]


def test_token_surrogate_has_a_dual_clip() -> None:
    # ρ = 4, A = −1, dual = 3
    loss, clipped = token_surrogate(
        torch.tensor([math.log(4)]), torch.zeros(1), -torch.ones(1), torch.ones(1), low=0.2, high=0.2, dual=3.0
    )
    assert loss.item() == pytest.approx(3.0)
    assert clipped.tolist() == [True]


def test_at_the_old_policy_the_gradient_is_the_policy_gradient() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    advantages, weight = torch.tensor([1.0, -2.0, 0.0]), torch.tensor([0.5, 0.3, 0.2])
    loss, _ = token_surrogate(logprobs, logprobs.detach(), advantages, weight, low=0.2, high=0.2, dual=None)
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
KINDS: tuple[KlKind, ...] = ("k1", "k2", "k3")


@pytest.mark.parametrize(
    ("kind", "estimate"), [("k1", -math.log(2)), ("k2", 0.5 * math.log(2) ** 2), ("k3", 1 - math.log(2))]
)
def test_kl_by_hand(kind: KlKind, estimate: float) -> None:
    # the reference finds the token twice as likely: d = ln 2; k1 = −ln 2, k2 = ½ ln²2, k3 = 2 − ln 2 − 1
    assert kl_estimate(torch.tensor(0.0), torch.tensor(math.log(2)), kind).item() == pytest.approx(estimate)


@few
@given(numbers, numbers)
def test_k2_and_k3_are_never_negative_and_all_are_zero_at_equality(logprob: float, reference: float) -> None:
    a, b = torch.tensor(logprob, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)
    assert kl_estimate(a, b, "k2").item() >= 0
    assert kl_estimate(a, b, "k3").item() >= 0
    assert [kl_estimate(a, a, kind).item() for kind in KINDS] == [0, 0, 0]


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(kind: KlKind) -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
    assert_close((p * kl_estimate(p.log(), q.log(), kind)).sum(), (p * (p / q).log()).sum())


def test_what_the_estimators_mean_as_losses() -> None:
    """Tokens were drawn before the gradient is taken: k2 pulls as KL(π || π_ref), k3 as KL(π_ref || π), k1 not at all."""
    logits = torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64, requires_grad=True)
    p, q = logits.softmax(0), torch.tensor([0.2, 0.3, 0.5]).double()
    exact = {"k1": torch.zeros(()) * p.sum(), "k2": (p * (p / q).log()).sum(), "k3": (q * (q / p).log()).sum()}
    for kind in KINDS:
        expected_loss = (p.detach() * kl_estimate(p.log(), q.log(), kind)).sum()
        found, wanted = (torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (expected_loss, exact[kind]))
        assert_close(found, wanted)


@pytest.mark.parametrize(
    ("kl", "weight"),
    [
        (0.1, 2.0),  # on target
        (0.11, 2.02),  # 10 % above: 1 + 0.1 · 0.1
        (5.0, 2.04),  # far above: 1 + 0.1 · 0.2
        (0.09, 1.98),
        (0.0, 1.96),
    ],
)
def test_the_adapted_kl_weight_by_hand(kl: float, weight: float) -> None:
    assert adapted_kl_weight(2.0, kl, 0.1) == pytest.approx(weight)


def loss_of(
    value: float, target: float, old: float = 0.0, clip: float | None = None, delta: float | None = None
) -> float:
    v, r, o = (torch.tensor(x, dtype=torch.float64) for x in (value, target, old))
    return value_loss(v, r, o, clip=clip, huber_delta=delta).item()


@pytest.mark.parametrize(
    ("value", "target", "delta", "loss"),
    [
        (3.0, 1.0, None, 2.0),
        (1.5, 1.0, None, 0.125),
        (3.0, 1.0, 1.0, 1.5),
        (1.5, 1.0, 1.0, 0.125),
        (3.0, 1.0, 0.5, 0.875),  # ½ · (2 − ¼)
        (3.0, 1.0, 10.0, 2.0),
    ],
)
def test_value_loss_by_hand(value: float, target: float, delta: float | None, loss: float) -> None:
    assert loss_of(value, target, delta=delta) == pytest.approx(loss)


@few
@given(numbers, numbers, st.sampled_from([None, 0.3, 1.0]))
def test_value_loss_is_symmetric(target: float, error: float, delta: float | None) -> None:
    assert loss_of(target + error, target, delta=delta) == pytest.approx(loss_of(target - error, target, delta=delta))


def test_huber_is_smooth_where_it_turns_linear() -> None:
    values = torch.tensor([0.999, 1.001, -0.999, -1.001], dtype=torch.float64, requires_grad=True)
    loss = value_loss(values, torch.zeros(4).double(), torch.zeros(4).double(), clip=None, huber_delta=1.0)
    (slope,) = torch.autograd.grad(loss.sum(), values)
    assert_close(slope, torch.tensor([0.999, 1.0, -0.999, -1.0]).double())
    assert_close(loss[0].detach(), loss[1].detach(), atol=0.003, rtol=0)


def test_value_clip_by_hand() -> None:
    # old 0, clip ½: V = 2 moves to ½. Target 2: max(0, ½·1.5²) = 1.125. Target −1: max(½·3², ½·1.5²) = 4.5
    assert loss_of(2.0, 2.0, old=0.0, clip=0.5) == pytest.approx(1.125)
    assert loss_of(2.0, -1.0, old=0.0, clip=0.5) == pytest.approx(4.5)


@few
@given(numbers, numbers, numbers, st.floats(0.01, 2), st.sampled_from([None, 0.3, 1.0]))
def test_value_clip_takes_the_worse(value: float, target: float, old: float, clip: float, delta: float | None) -> None:
    moved = old + max(-clip, min(clip, value - old))
    expected = max(loss_of(value, target, delta=delta), loss_of(moved, target, delta=delta))
    assert loss_of(value, target, old, clip, delta) == pytest.approx(expected)


# --- weights ----------------------------------------------------------------------------------------------------------
def test_weights_of_agents_with_their_own_adapters_by_hand() -> None:
    # agent 0 has turns of 1 and 3 tokens, agent 1 one turn of 2
    lengths, agents = torch.tensor([1, 2, 3]), torch.tensor([0, 1, 0])
    assert_close(turn_weights(lengths, agents, agents, "token"), torch.tensor([1 / 4, 1 / 2, 1 / 4]))
    assert_close(turn_weights(lengths, agents, agents, "turn"), torch.tensor([1 / 2, 1 / 2, 1 / 6]))
    assert_close(turn_weights(lengths, agents, agents, "agent"), torch.tensor([1 / 4, 1 / 2, 1 / 4]))


def test_weights_of_a_shared_adapter_by_hand() -> None:
    # agents 0 and 1 share adapter 5: turns of 1 and 3 tokens, and of 2; agent 2 has adapter 4 to itself
    lengths, agents, adapters = torch.tensor([1, 2, 3, 4]), torch.tensor([0, 1, 0, 2]), torch.tensor([5, 5, 5, 4])
    token, turn, agent = (turn_weights(lengths, agents, adapters, a) for a in ("token", "turn", "agent"))
    assert_close(token, torch.tensor([1 / 6, 1 / 6, 1 / 6, 1 / 4]))
    assert_close(turn, torch.tensor([1 / 3, 1 / 6, 1 / 9, 1 / 4]))
    assert_close(agent, torch.tensor([1 / 8, 1 / 4, 1 / 8, 1 / 4]))  # ½ for each agent


turns = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 4)), min_size=1, max_size=20)
ADAPTER_OF = torch.tensor([9, 9, 3, 9, 0])  # agents 0, 1 and 3 share one
AGGREGATIONS: tuple[Aggregation, ...] = ("token", "turn", "agent")


@few
@given(turns, st.sampled_from(AGGREGATIONS))
def test_every_adapters_weights_sum_to_one(drawn: list[tuple[int, int]], aggregation: Aggregation) -> None:
    lengths, agents = (torch.tensor(column) for column in zip(*drawn, strict=True))
    adapters = ADAPTER_OF[agents]
    weights = turn_weights(lengths, agents, adapters, aggregation)
    assert weights.dtype == torch.float32
    assert (weights > 0).all()
    for adapter in adapters.unique():
        own = adapters == adapter
        assert (weights[own] * lengths[own]).sum().item() == pytest.approx(1, abs=1e-5)


@few
@given(turns)
def test_agents_of_a_shared_adapter_weigh_the_same_and_so_do_their_tokens(drawn: list[tuple[int, int]]) -> None:
    lengths, agents = (torch.tensor(column) for column in zip(*drawn, strict=True))
    adapters = ADAPTER_OF[agents]
    token = turn_weights(lengths, agents, adapters, "agent")
    for agent in agents.unique():
        own = agents == agent
        sharing = len(agents[adapters == adapters[own][0]].unique())
        assert (token * lengths)[own].sum().item() == pytest.approx(1 / sharing, abs=1e-5)
        assert_close(token[own], token[own].mean().expand_as(token[own]))


@few
@given(turns)
def test_with_own_adapters_token_and_agent_are_one(drawn: list[tuple[int, int]]) -> None:
    lengths, agents = (torch.tensor(column) for column in zip(*drawn, strict=True))
    found = turn_weights(lengths, agents, agents, "agent")
    assert torch.equal(found, turn_weights(lengths, agents, agents, "token"))
