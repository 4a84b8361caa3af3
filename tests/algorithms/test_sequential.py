from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from marft.algorithms.sequential import sequential_factor

few = settings(max_examples=50, deadline=None, derandomize=True)


def test_the_factor_by_hand() -> None:
    # episode 0: 2·e^{0.1 + 0.3}; episode 1 has no token of the agent; episode 2: e^−1 is cut to ½
    found = sequential_factor(
        torch.tensor([2.0, 3.0, 4.0]), torch.tensor([-1.0, 0.1, 0.3]), torch.tensor([2, 0, 0]), clip=2.0
    )
    assert_close(found, torch.tensor([2 * math.exp(0.4), 3.0, 2.0]))
    assert found[1].item() == 3.0


def test_an_agent_that_did_not_move_changes_nothing() -> None:
    factor = torch.tensor([0.7, 1.3])
    assert torch.equal(sequential_factor(factor, torch.zeros(3), torch.tensor([0, 1, 1]), clip=1.2), factor)


@few
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-3, 3, width=32)), min_size=1, max_size=12), st.floats(1.05, 20))
def test_the_factor_is_the_bounded_product(tokens: list[tuple[int, float]], clip: float) -> None:
    episodes, log_ratios = [e for e, _ in tokens], [x for _, x in tokens]
    found = sequential_factor(torch.ones(4), torch.tensor(log_ratios), torch.tensor(episodes), clip)
    for e in range(4):
        ratio = math.exp(sum(x for i, x in tokens if i == e))
        assert found[e].item() == pytest.approx(max(1 / clip, min(clip, ratio)), rel=1e-5)


@pytest.mark.parametrize("length", [1, 10, 100])
def test_words_that_follow_from_the_first_do_not_weaken_the_factor(length: int) -> None:
    """One choice that became likelier by e^0.5, and `length` − 1 tokens that had to follow it."""
    log_ratio = torch.zeros(length)
    log_ratio[0] = 0.5
    found = sequential_factor(torch.ones(1), log_ratio, torch.zeros(length, dtype=torch.int64), clip=5.0)
    assert_close(found, torch.tensor([math.exp(0.5)]))


def test_factors_of_several_agents_multiply() -> None:
    once = sequential_factor(torch.ones(1), torch.tensor([0.1]), torch.tensor([0]), clip=1.5)
    twice = sequential_factor(once, torch.tensor([0.2]), torch.tensor([0]), clip=1.5)
    assert_close(twice, torch.tensor([math.exp(0.3)]))
