"""The Triton kernels of the decoder against what they are said to compute: on a GPU where there is one, else by Triton's
interpreter."""

from __future__ import annotations

import pytest
import torch
from families import GROUPED, tiny
from interpreted import DEVICE, close, numbers
from teams import fill_b
from torch.nn.functional import rms_norm
from transformers import Qwen2Config

from marft.models import elementwise, fused_linear, kernels
from marft.models.lora import AdapterSpec, Routing
from marft.models.team import TeamModel


@pytest.mark.parametrize("width", [20, 64, 300])
def test_the_stream_takes_up_strided_rows_and_is_normed(width: int) -> None:
    stream, weight = numbers(5, width), numbers(width, seed=2)
    delta = numbers(5, width + 9, seed=1)[:, :width]
    total, normed, rstd = kernels.add_norm(stream, delta, weight, 1e-5, torch.float32)
    close(total, stream + delta, 0)
    close(normed, rms_norm(stream + delta, (width,), weight, 1e-5))
    close(rstd, ((stream + delta).square().mean(1) + 1e-5).rsqrt())
    alone, _, _ = kernels.add_norm(stream, None, weight, 1e-5, torch.float32)
    close(alone, stream, 0)


def test_the_norm_s_gradient_is_autograd_s() -> None:
    total, weight = numbers(5, 48).requires_grad_(), numbers(48, seed=2)
    _, _, rstd = kernels.add_norm(total.detach(), None, weight, 1e-5, torch.float32)
    by_normed, by_total = numbers(5, 48, seed=3), numbers(5, 48, seed=4)
    normed = rms_norm(total, (48,), weight, 1e-5)
    (expected,) = torch.autograd.grad([normed, total * 1.0], [total], [by_normed, by_total])
    d_stream, d_delta = kernels.add_norm_backward(total.detach(), rstd, weight, by_normed, by_total)
    close(d_stream, expected)
    close(d_delta, expected)


@pytest.mark.parametrize(("heads", "rotated", "dim"), [(7, 5, 8), (3, 2, 24)])
def test_heads_are_turned_and_turned_back(heads: int, rotated: int, dim: int) -> None:
    x = numbers(6, heads * dim + 5)[:, : heads * dim]
    positions = torch.tensor([0, 3, 1, 8, 2, 2], device=DEVICE)
    angles = torch.outer(torch.arange(9.0), torch.arange(1.0, dim / 2 + 1)).to(DEVICE)
    cos, sin = angles.cos(), angles.sin()
    found = kernels.apply_rotary(x, positions, cos, sin, rotated)
    expected = elementwise.apply_rotary(x.cpu().contiguous(), positions.cpu(), cos.cpu(), sin.cpu(), rotated)
    close(found.cpu(), expected)
    close(found[:, rotated * dim :], x[:, rotated * dim :], 0)
    close(kernels.apply_rotary(found, positions, cos, sin, rotated, inverse=True), x)


def test_gates_and_their_gradient() -> None:
    both = numbers(5, 2 * 1500).requires_grad_()
    one, other = both.chunk(2, dim=1)
    expected = torch.nn.functional.silu(one) * other
    grad = numbers(5, 1500, seed=1)
    (by_both,) = torch.autograd.grad(expected, both, grad)
    close(kernels.swiglu(both.detach()), expected.detach())
    close(kernels.swiglu_backward(both.detach(), grad), by_both)
    close(elementwise.swiglu_backward(both.detach().cpu(), grad.cpu()), by_both.cpu())


@pytest.mark.parametrize("rows", [3, 70])
def test_adapters_are_added_to_their_own_outputs(rows: int) -> None:
    """Three layers side by side, of 100, 60 and 30 outputs and ten ranks each."""
    outs, out = (100, 60, 30), 190
    b = torch.zeros(30, out, device=DEVICE)
    for j in range(3):
        b[10 * j : 10 * j + 10, sum(outs[:j]) : sum(outs[: j + 1])] = numbers(10, outs[j], seed=j)
    reach = torch.tensor([[0, 10], [0, 20], [10, 30]], dtype=torch.int32, device=DEVICE)
    wide, mask = numbers(rows, out + 30), 2.0 * (numbers(rows, 10, seed=9) > 0)
    expected = wide[:, :out] + (wide[:, out:] * mask.repeat(1, 3)) @ b
    kernels.add_routed(wide, mask, b, reach, 64)
    close(wide[:, :out], expected, 1e-4)


@pytest.mark.parametrize(("rows", "gated"), [(5, 20), (5, 0), (70, 40), (70, 100)])
def test_the_gate_takes_up_adapters_on_the_way(rows: int, gated: int) -> None:
    width, ranks = 150, 100  # 20 columns of the mask repeat
    b = numbers(ranks, 2 * width, seed=1)
    b[:gated, width:] = b[gated:, :width] = 0
    wide, mask = numbers(rows, 2 * width + ranks), 2.0 * (numbers(rows, 20, seed=9) > 0)
    both = wide[:, : 2 * width] + (wide[:, 2 * width :] * mask.repeat(1, 5)) @ b
    close(kernels.swiglu_routed(wide, mask, b, gated), elementwise.swiglu(both), 1e-3)


@pytest.mark.parametrize("targets", ["all-linear", ["gate_proj", "down_proj"], ["up_proj", "down_proj"]])
def test_an_mlp_in_a_step_is_the_same(targets: list[str] | str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Qwen2Config(**{**GROUPED, "hidden_size": 160, "intermediate_size": 200, "head_dim": 40})
    specs = [AdapterSpec(name=name, rank=rank, alpha=rank) for name, rank in (("a", 5), ("b", 16))]
    loaded = tiny(config)
    loaded.model.to(DEVICE)
    team = TeamModel(loaded, agents=specs, critics=[], targets=targets, seed=0)
    fill_b(team, 0.1)
    team.refresh()
    assert team.decoder is not None
    layer, mask = team.decoder.layers[1], Routing(team.lora.masks(team.device)[[0, 2, 1, 1, 0]])
    x = numbers(5, 160)
    with torch.no_grad():
        both, _ = layer.gate_up.routed(x, mask)
        expected, _ = layer.down.routed(elementwise.swiglu(both), mask)
        monkeypatch.setattr(fused_linear, "is_decode_step_on_cuda", lambda x: True)
        close(fused_linear.mlp_forward(layer.gate_up, layer.down, x, mask), expected, 1e-4)


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj", "up_proj"]])
def test_products_know_which_ranks_reach_which_outputs(targets: list[str] | str) -> None:
    """The decoder's own products, on a model whose layers end within a tile and beyond one."""
    config = Qwen2Config(**{**GROUPED, "hidden_size": 160, "intermediate_size": 200, "head_dim": 40})
    specs = [AdapterSpec(name=name, rank=rank, alpha=rank) for name, rank in (("a", 5), ("b", 16))]
    team = TeamModel(tiny(config), agents=specs, critics=[], targets=targets, seed=0)
    fill_b(team, 0.1)
    team.refresh()
    assert team.decoder is not None
    mask = Routing(team.lora.masks(team.device)[[0, 2, 1, 1, 0]])
    for product in team.products[4:8]:
        x = numbers(5, product.weight.shape[1]).cpu()
        expected, _ = product.routed(x, mask)
        wide = torch.nn.functional.linear(x, product.joined, product.bias).to(DEVICE)
        columns, b, reach = (y.to(DEVICE) for y in (mask.columns(1, x.dtype), product.b, product.rank_ranges))
        if product.rank:
            kernels.add_routed(wide, columns, b, reach, fused_linear.TILE)
        close(wide[:, : product.out].cpu(), expected, 1e-4)
