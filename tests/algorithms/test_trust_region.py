"""How a step is shortened and how the learning rate follows, in numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.algorithms.trust_region import adapted_rate, shortening


@pytest.mark.parametrize(
    ("excess", "ratio"), [(1.0, 0.9), (4.0, 0.45), (9.0, 0.3), (1e6, 0.1), (math.inf, 0.1), (math.nan, 0.1)]
)
def test_a_kl_grows_with_the_square_of_the_way(excess: float, ratio: float) -> None:
    assert shortening(excess) == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("factor", "kept", "following"),
    [
        (1.0, 1.0, 1.0),  # never above the rate that was asked for
        (0.5, 1.0, 0.6),
        (0.9, 1.0, 1.0),
        (1.0, 0.99, 0.7),  # a step that was shortened at all makes it fall
        (1.0, 0.3, 0.3),
        (0.5, 0.01, 0.05),  # to a tenth at most
        (1e-3, 0.5, 1e-3),  # and not to nothing
    ],
)
def test_the_rate_falls_with_the_share_that_was_kept_and_rises_slowly(
    factor: float, kept: float, following: float
) -> None:
    assert adapted_rate(factor, kept) == pytest.approx(following)


@given(st.lists(st.floats(0, 1), max_size=50))
def test_the_factor_stays_between_its_floor_and_one(shares: list[float]) -> None:
    factor = 1.0
    for share in shares:
        factor = adapted_rate(factor, share)
        assert 1e-3 <= factor <= 1
