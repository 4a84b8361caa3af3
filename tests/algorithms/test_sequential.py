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
    # episode 0: mean (0.1 + 0.3)/2 = 0.2 → 2·e^0.2; episode 1 has no token of the agent; episode 2: e^−1 is cut to ½
    found = sequential_factor(
        torch.tensor([2.0, 3.0, 4.0]), torch.tensor([-1.0, 0.1, 0.3]), torch.tensor([2, 0, 0]), clip=0.5
    )
    assert_close(found, torch.tensor([2 * math.exp(0.2), 3.0, 2.0]))
    assert found[1].item() == 3.0


def test_an_agent_that_did_not_move_changes_nothing() -> None:
    factor = torch.tensor([0.7, 1.3])
    assert torch.equal(sequential_factor(factor, torch.zeros(3), torch.tensor([0, 1, 1]), clip=0.2), factor)


@few
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-3, 3, width=32)), min_size=1, max_size=12), st.floats(0.05, 0.9)
)
def test_the_factor_is_length_normalised_and_bounded(tokens: list[tuple[int, float]], clip: float) -> None:
    episodes, log_ratios = [e for e, _ in tokens], [x for _, x in tokens]
    found = sequential_factor(torch.ones(4), torch.tensor(log_ratios), torch.tensor(episodes), clip)
    for e in range(4):
        own = [x for i, x in tokens if i == e]
        ratio = math.exp(sum(own) / len(own)) if own else 1.0
        assert found[e].item() == pytest.approx(max(1 - clip, min(1 + clip, ratio)), rel=1e-5)


def test_factors_of_several_agents_multiply() -> None:
    once = sequential_factor(torch.ones(1), torch.tensor([0.1]), torch.tensor([0]), clip=0.5)
    twice = sequential_factor(once, torch.tensor([0.2]), torch.tensor([0]), clip=0.5)
    assert_close(twice, torch.tensor([math.exp(0.3)]))
