"""Log-probs, entropies and gradients of whole rows of logits: on a GPU where there is one, else by Triton's interpreter."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from interpreted import DEVICE

from marft.models.logprobs import statistics_by_kernel, statistics_by_torch


@pytest.mark.parametrize("width", [30, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_glance_finds_what_torch_finds(width: int, dtype: torch.dtype) -> None:
    """Against fp64, and no worse than twice torch's own error: also where logits are far from 0, or one is far above."""
    logits = 5 * torch.randn(4, width, generator=torch.Generator().manual_seed(0))
    logits[1] += 100.0
    logits[2] -= 300.0
    logits[3, 7] = 200.0
    tokens, heat = torch.tensor([0, 7, width - 1, 3]), torch.tensor([1.0, 0.7, 2.0, 0.7])
    team = SimpleNamespace(head=SimpleNamespace(weight=torch.zeros(1, dtype=dtype)), config=None)

    def all_of(way: object, given: torch.Tensor) -> list[torch.Tensor]:
        device = DEVICE if way is statistics_by_kernel else "cpu"
        values, by_logits = way(team, given.clone().to(device), tokens.to(device), heat.to(device, given.dtype), 2)
        return [*values, *(each.clone() for each in by_logits)]

    exact, theirs, ours = (
        all_of(statistics_by_torch, logits.double()),
        all_of(statistics_by_torch, logits),
        all_of(statistics_by_kernel, logits),
    )
    assert [each.dtype for each in ours] == [torch.float32, torch.float32, dtype, dtype]
    for i, (right, other, one) in enumerate(zip(exact, theirs, ours, strict=True)):
        rounding = 2 * torch.finfo(dtype).eps if i >= 2 else 0.0
        closely = 1e-6 if DEVICE == "cpu" else 1e-5  # a GPU's exp is an approximation
        bound = 2 * (other - right).abs().max() + rounding + closely * right.abs().max()
        assert (one.cpu().double() - right).abs().max() <= bound


def test_no_slope_is_made_that_nobody_asked_for() -> None:
    logits, tokens, heat = torch.randn(3, 20).to(DEVICE), torch.tensor([1, 2, 3]).to(DEVICE), torch.ones(3).to(DEVICE)
    team = SimpleNamespace(head=SimpleNamespace(weight=torch.zeros(1)), config=None)
    for way in (statistics_by_kernel, statistics_by_torch):
        for slopes in range(3):
            assert len(list(way(team, logits.clone(), tokens, heat, slopes)[1])) == slopes
