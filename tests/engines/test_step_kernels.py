"""The Triton kernels of a decode step against what they are said to compute: on a GPU where there is one, else by Triton's
interpreter."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, close, numbers
from torch.nn.functional import scaled_dot_product_attention

from marft.engines import kernels, sampling


@pytest.mark.parametrize(("heads", "groups", "dim"), [(9, 3, 64), (12, 2, 128), (4, 4, 24), (20, 1, 16), (3, 1, 8)])
def test_a_step_s_attention_sees_the_whole_slot_and_adds_to_it(heads: int, groups: int, dim: int) -> None:
    positions, lengths = 256, (0, 3, 64, 130, 200)
    keys, values = numbers(6 * positions, groups, dim), numbers(6 * positions, groups, dim, seed=1)
    q, k, v = numbers(5, heads + 2 * groups, dim, seed=2).split([heads, groups, groups], dim=1)
    before = keys.clone(), values.clone()
    found = kernels.attend_step(q, k, v, keys, values, torch.tensor(lengths, device=DEVICE), positions, dim**-0.5)
    for row, length in enumerate(lengths):
        at = row * positions + length
        for side, new, old in ((keys, k, before[0]), (values, v, before[1])):
            close(side[at], new[row], 0)
            old[at] = new[row]
        own = slice(row * positions, at + 1)
        expected = scaled_dot_product_attention(
            q[row][:, None], keys[own].transpose(0, 1), values[own].transpose(0, 1), scale=dim**-0.5, enable_gqa=True
        )
        close(found[row], expected[:, 0], 1e-5 if DEVICE == "cpu" else 0.01)
    assert torch.equal(keys, before[0])
    assert torch.equal(values, before[1])


def test_masses_of_blocks_of_the_vocabulary() -> None:
    logits = numbers(7, 3000) * 3
    logits[:, 5] = logits[3, 1024:2048] = -torch.inf
    cold = torch.linspace(0.5, 2, 7, device=DEVICE)
    for found, expected in zip(
        kernels.block_masses(logits, cold, 1024), sampling.block_masses(logits.cpu(), cold.cpu()), strict=True
    ):
        close(found.cpu(), expected, 1e-3)
