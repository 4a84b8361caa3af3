"""A base in 8 or 4 bits: its weights are near the real ones, and all that is computed with it is computed with the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import FAMILIES, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import DEVICE
from teams import fill_b, team_of
from torch import Tensor, nn

from marft.models import kernels
from marft.models.fused_linear import FusedLinear
from marft.models.loading import load
from marft.models.lora import AdapterSpec
from marft.models.quantized import NF4, Kind, QuantizedWeight
from marft.models.recompute import recompute_layers
from marft.models.scoring import Span, hidden_states
from marft.models.team import TeamModel
from marft.types import MarftError

KINDS: tuple[Kind, ...] = ("int8", "nf4")
RANKS = {"planner": 4, "solver": 7}
CPU = torch.device("cpu")
IDS = ((1, 40, 41, 42, 43, 44), (1, 90, 91, 92, 93, 94))


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 0.02


def quantized_team(kind: Kind, targets: list[str] | str = "all-linear", dtype: str = "float32") -> TeamModel:
    team = team_of(RANKS, targets=targets, loaded=load("nano", "cpu", dtype))
    team.quantize(kind, CPU)
    return team


def dequantized_team(kind: Kind, targets: list[str] | str = "all-linear") -> TeamModel:
    """The same numbers in an ordinary base."""
    team = team_of(RANKS, targets=targets)
    for product in team.products:
        assert product.weight is not None
        product.weight.data.copy_(QuantizedWeight(product.weight, kind, CPU).dequantize())
    return team


def states_of(team: TeamModel) -> Tensor:
    return hidden_states(team, [Span(adapter=name, ids=ids, asked=6) for name, ids in zip(RANKS, IDS, strict=True)])


# --- weights ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "error", "bits"), [("int8", 0.0085, 8.1), ("nf4", 0.0925, 4.25)])
def test_few_bits_and_a_small_error(kind: Kind, error: float, bits: float) -> None:
    weight = normal(256, 1024)
    quantized = QuantizedWeight(weight, kind, CPU)
    distance = float((quantized.dequantize() - weight).norm() / weight.norm())
    assert 0.9 * error < distance < error
    assert 8 * quantized.nbytes / weight.numel() <= bits


@given(st.integers(1, 9), st.integers(1, 200), st.floats(-2, 4), st.sampled_from(KINDS))
@settings(max_examples=60, deadline=None)
def test_no_value_is_further_off_than_half_a_step(rows: int, width: int, size: float, kind: Kind) -> None:
    weight = normal(rows, width) * 10**size
    weight[0] = 0.0
    quantized = QuantizedWeight(weight, kind, CPU)
    steps = torch.tensor(NF4).diff().max() if kind == "nf4" else torch.tensor(1.0)
    of_value = quantized.scales.float().repeat_interleave(quantized.block)[: weight.numel()].view_as(weight)
    assert ((quantized.dequantize() - weight).abs() <= of_value * (steps / 2 + 1e-3)).all()
    assert not quantized.dequantize()[0].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_dtype_is_kept_and_parts_do_not_show(kind: Kind, dtype: torch.dtype, monkeypatch: Any) -> None:
    weight = normal(40, 96).to(dtype)
    whole = QuantizedWeight(weight, kind, CPU)
    monkeypatch.setattr("marft.models.quantized.AT_ONCE", 700)
    parts = QuantizedWeight(weight, kind, CPU)
    assert torch.equal(whole.codes, parts.codes)
    assert torch.equal(whole.scales, parts.scales)
    below = whole.dequantize(3)
    assert below.dtype == dtype
    assert below.shape == (43, 96)
    assert torch.equal(below[:40], parts.dequantize())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 64), (7, 33), (30, 100)])
def test_the_kernel_computes_what_torch_does(kind: Kind, shape: tuple[int, int]) -> None:
    quantized = QuantizedWeight(normal(*shape), kind, torch.device(DEVICE))
    out = torch.empty(shape, device=DEVICE)
    table = quantized.table if kind == "nf4" else None
    kernels.dequantize(quantized.codes, quantized.scales, table, quantized.block, out)
    assert torch.equal(out, quantized._by_torch())


# --- products --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"], ["down_proj"]])
@pytest.mark.parametrize("kind", KINDS)
def test_states_and_gradients_are_those_of_a_dequantised_base(kind: Kind, targets: list[str] | str) -> None:
    found, expected = quantized_team(kind, targets), dequantized_team(kind, targets)
    for team in (found, expected):
        states_of(team).square().mean().backward()
    assert torch.equal(states_of(found), states_of(expected))
    for name in RANKS:
        ours, theirs = (team.trainable_parameters(name) for team in (found, expected))
        for key, parameter in ours.items():
            assert parameter.grad is not None
            assert parameter.grad.any()
            torch.testing.assert_close(parameter.grad, theirs[key].grad, atol=0, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(states_of(found), states_of(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kind", "least", "most"), [("int8", 1e-3, 0.03), ("nf4", 0.02, 0.3)])
def test_states_are_near_those_of_the_base(kind: Kind, least: float, most: float) -> None:
    found, expected = states_of(quantized_team(kind)), states_of(team_of(RANKS))
    assert least < (found - expected).norm() / expected.norm() < most


@pytest.mark.parametrize("kind", KINDS)
def test_only_layers_are_quantised_and_nothing_is_held_in_full(kind: Kind) -> None:
    team = quantized_team(kind, ["q_proj"], "bfloat16")
    assert team.decoder is not None
    assert team.decoder.embedding.dtype == team.head.weight.dtype == torch.bfloat16
    assert all(product.weight is None for product in team.products)
    assert len(team.products) == 4 * 4
    assert not any(p.dim() == 2 and p is not team.decoder.embedding for p in team.base.parameters())
    shapes = {tuple(product.quantized.shape) for product in team.products if product.quantized is not None}
    kept: list[tuple[int, ...]] = []

    def note(x: Tensor) -> Tensor:
        kept.append(tuple(x.shape))
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        states_of(team).square().mean().backward()
    assert kept
    assert not shapes & set(kept)


@pytest.mark.parametrize("kind", KINDS)
def test_recomputed_layers_have_the_same_gradients(kind: Kind) -> None:
    kept, again = quantized_team(kind), quantized_team(kind)
    recompute_layers(again)
    for team in (kept, again):
        states_of(team).square().mean().backward()
    for key, parameter in kept.trainable_parameters("solver").items():
        assert torch.equal(parameter.grad, again.trainable_parameters("solver")[key].grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_adapter_counts_in_the_next_pass(kind: Kind) -> None:
    found, expected = quantized_team(kind), dequantized_team(kind)
    before = states_of(found).detach()
    for team in (found, expected):
        fill_b(team, 0.1, seed=5)
        with torch.no_grad():
            for key, parameter in team.trainable_parameters("planner").items():
                if key.endswith(".a"):
                    parameter.mul_(-2)
    assert (states_of(found) - before).abs().max() > 0.01
    assert torch.equal(states_of(found), states_of(expected))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["gpt-neox", "phi"])
def test_adapted_layers_of_other_families_are_quantised_too(family: str, kind: Kind) -> None:
    def make() -> TeamModel:
        specs = [AdapterSpec(name=name, rank=3, alpha=6) for name in RANKS]
        team = TeamModel(tiny(FAMILIES[family]), agents=specs, critics=[], targets="all-linear", seed=0)
        fill_b(team, 0.05)
        return team

    team, plain = make(), make()
    team.quantize(kind, CPU)
    assert len([m for m in team.base.modules() if isinstance(m, nn.Linear)]) == 1  # the head
    for product in plain.products:
        assert product.weight is not None
        product.weight.data.copy_(QuantizedWeight(product.weight, kind, CPU).dequantize())
    torch.testing.assert_close(states_of(team), states_of(plain), atol=1e-5, rtol=0)


def test_a_base_that_does_not_fit_is_one_line(monkeypatch: Any) -> None:
    def full(*given: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    team = team_of(RANKS)
    monkeypatch.setattr(FusedLinear, "quantize", full)
    with pytest.raises(
        MarftError, match=r"model nano does not fit in the memory of cpu: use a smaller one, fewer bits"
    ):
        team.quantize("nf4", CPU)
