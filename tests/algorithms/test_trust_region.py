"""How far a policy moved, how a step is shortened and how the learning rate follows, in numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marft.algorithms.trust_region import adapted_rate, moved_kl, shortening


def test_how_far_a_policy_moved_by_hand() -> None:
    """d = −1: e^−1 + 1 − 1; d = 0: 0; d = 2: ½·2²."""
    found = moved_kl(torch.tensor([-1.0, -1.0, -3.0]), torch.tensor([-2.0, -1.0, -1.0]))
    assert found.tolist() == pytest.approx([math.exp(-1), 0.0, 2.0])


def test_one_token_that_was_rounded_away_is_not_a_move() -> None:
    """30,000 tokens as they were, and one that an engine gave a log-prob of −15 and the learner −3."""
    old = torch.full((30_000,), -1.0)
    new = old.clone()
    old[0], new[0] = -15.0, -3.0
    d = new - old
    assert float((d.exp() - d - 1).mean()) > 5  # k3
    assert float(moved_kl(old, new).mean()) < 0.003


@given(st.floats(-0.05, 0.05))
def test_small_moves_are_half_the_square_whatever_their_direction(d: float) -> None:
    assert float(
        moved_kl(torch.zeros(1, dtype=torch.float64), torch.tensor([d], dtype=torch.float64))
    ) == pytest.approx(0.5 * d * d, rel=0.02, abs=1e-12)


@pytest.mark.parametrize(
    ("excess", "ratio"), [(1.0, 0.9), (4.0, 0.45), (9.0, 0.3), (1e6, 0.1), (math.inf, 0.1), (math.nan, 0.1)]
)
def test_a_kl_grows_with_the_square_of_the_way(excess: float, ratio: float) -> None:
    assert shortening(excess) == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("factor", "excess", "following"),
    [
        (1.0, 0.1, 1.0),  # never above the rate that was asked for
        (0.5, 0.4, 0.6),
        (0.9, 0.0, 1.0),
        (0.5, 0.7, 0.5),  # near enough to the limit
        (1.0, 1.01, 0.7),  # a step that was shortened at all makes it fall
        (1.0, 9.0, 0.3),
        (0.5, 1e9, 0.05),  # to a tenth at most
        (0.5, math.nan, 0.05),
        (1e-3, 4.0, 1e-3),  # and not to nothing
    ],
)
def test_the_rate_falls_as_far_as_the_step_must_and_rises_slowly(
    factor: float, excess: float, following: float
) -> None:
    assert adapted_rate(factor, excess) == pytest.approx(following)


@given(st.lists(st.floats(0, 1e6), max_size=50))
def test_the_factor_stays_between_its_floor_and_one(reached: list[float]) -> None:
    factor = 1.0
    for excess in reached:
        factor = adapted_rate(factor, excess)
        assert 1e-3 <= factor <= 1
