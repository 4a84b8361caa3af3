"""float16: adapters' gradients are those of fp32, however small a token's part of the loss is."""

from __future__ import annotations

import pytest
import torch
from families import FAMILIES, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from teams import fill_b, team_of
from torch import Tensor

from marft.models.gradient_scale import ScaledGradients, scale_gradients
from marft.models.loading import load
from marft.models.lora import AdapterSpec, Routing
from marft.models.scoring import Span, hidden_states, logprobs
from marft.models.team import TeamModel

RANKS = {"planner": 4, "solver": 7}
IDS = {"planner": (1, 40, 41, 42, 43, 44, 61, 62, 63), "solver": (1, 90, 91, 92, 93, 94, 71, 72, 73)}


def gradients(team: TeamModel, share: float) -> dict[str, Tensor]:
    """Of a loss in which each token has this share."""
    spans = [Span(adapter=name, ids=ids, asked=6) for name, ids in IDS.items()]
    hidden = hidden_states(team, spans)
    tokens = torch.arange(40, 40 + len(hidden))
    found, _ = logprobs(team, hidden, tokens, torch.ones(len(hidden)))
    (found * share * torch.linspace(-1, 1, len(found))).sum().backward()
    return {
        f"{name} {key}": parameter.grad / share
        for name in IDS
        for key, parameter in team.trainable_parameters(name).items()
        if parameter.grad is not None
    }


def largest_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Of the gradients of all parameters, relative to their size."""
    assert found.keys() == expected.keys()
    assert all(gradient.dtype == torch.float32 for gradient in found.values())
    return max(float((found[key] - g).norm() / g.norm()) for key, g in expected.items())


@pytest.mark.parametrize("share", [1.0, 1e-5, 1e-9, 1e-20])
def test_gradients_agree_with_fp32_whatever_the_share_of_a_token(share: float) -> None:
    expected = gradients(team_of(RANKS), 1.0)
    found = gradients(team_of(RANKS, loaded=load("nano", "cpu", "float16")), share)
    assert largest_error(found, expected) < 0.01
    coarse = gradients(team_of(RANKS, loaded=load("nano", "cpu", "bfloat16")), 1.0)
    assert largest_error(found, expected) < largest_error(coarse, expected)  # it has three bits more


@pytest.mark.parametrize("family", ["gpt-neox", "phi"])
def test_other_families_agree_too(family: str) -> None:
    found = []
    for dtype in (torch.float32, torch.float16):
        loaded = tiny(FAMILIES[family])
        loaded.model.to(dtype)
        specs = [AdapterSpec(name=name, rank=3, alpha=6) for name in RANKS]
        team = TeamModel(loaded, agents=specs, critics=[], targets="all-linear", seed=0)
        fill_b(team, 0.05)
        found.append(gradients(team, 1e-9))
    assert largest_error(found[1], found[0]) < 0.03


@given(st.floats(-100, 30), st.integers(0, 4))
@settings(max_examples=50, deadline=None)
def test_the_scale_is_a_power_of_two_that_makes_the_largest_about_one(size: float, zeros: int) -> None:
    hidden = torch.zeros(5, 3, dtype=torch.float16, requires_grad=True)
    routing = Routing(torch.ones(5, 2))
    gradient = torch.rand(5, 3) * 2.0**size
    gradient[:zeros] = 0.0
    ScaledGradients.apply(hidden, routing).backward(gradient)
    assert hidden.grad is not None
    assert routing.gradient_scale is not None
    assert 0.49 < float(hidden.grad.abs().max()) <= 1.0
    assert float(routing.gradient_scale.log2()) % 1 == 0
    torch.testing.assert_close(hidden.grad.float() / routing.gradient_scale, gradient, rtol=1e-3, atol=2.0**size * 1e-6)


@pytest.mark.parametrize(("number", "finite"), [(0.0, True), (float("inf"), False), (float("nan"), False)])
def test_no_gradient_stays_none_and_what_is_not_finite_stays_so(number: float, finite: bool) -> None:
    hidden, routing = torch.zeros(2, 2, dtype=torch.float16, requires_grad=True), Routing(torch.ones(2, 2))
    ScaledGradients.apply(hidden, routing).backward(torch.full((2, 2), number))
    assert hidden.grad is not None
    assert bool(hidden.grad.isfinite().all()) == finite
    assert not finite or not hidden.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions_are_left_alone(dtype: torch.dtype) -> None:
    hidden = torch.zeros(2, 2, dtype=dtype, requires_grad=True)
    assert scale_gradients(hidden, Routing(torch.ones(2, 2))) is hidden
