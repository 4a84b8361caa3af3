"""Triton kernels of a decode step: attention of one new token a row, and drawing tokens with one look at the logits.

Only CUDA runs load this.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def masses_kernel(logits, cold, top, mass, first, width, blocks, BLOCK: tl.constexpr):
    """One block of a row's logits: the highest, whose it is, and the sum of exponentials."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * width + token, mask=token < width, other=float("-inf")) * tl.load(cold + row)
    x = tl.where(token < width, x, float("-inf"))
    highest, where = tl.max(x, axis=0, return_indices=True, return_indices_tie_break_left=True)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    at = row * blocks + block
    tl.store(top + at, highest)
    tl.store(mass + at, tl.sum(tl.exp(x - shift), axis=0))
    tl.store(first + at, (block * BLOCK + where).to(tl.int64))


@triton.jit
def attend_kernel(
    q, k, v, stride, keys, values, length, out, positions, scale,
    heads: tl.constexpr, groups: tl.constexpr, dim: tl.constexpr, SHARING: tl.constexpr, DIM: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One row and one head of keys: the heads that share it are queries of one product."""
    row, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sharing = heads // groups
    one = tl.arange(0, SHARING)[:, None]
    d = tl.arange(0, DIM)[None, :]
    own = (one < sharing) & (d < dim)
    asked = tl.load(q + row * stride + (group * sharing + one) * dim + d, mask=own, other=0.0)
    column = tl.arange(0, DIM)
    new_k = tl.load(k + row * stride + group * dim + column, mask=column < dim, other=0.0)
    new_v = tl.load(v + row * stride + group * dim + column, mask=column < dim, other=0.0)
    count = tl.load(length + row)
    base = (row * positions * groups + group) * dim
    tl.store(keys + base + count * groups * dim + column, new_k, mask=column < dim)
    tl.store(values + base + count * groups * dim + column, new_v, mask=column < dim)
    # the new token comes first; log2 makes exponentials cheap
    scale2 = scale * 1.44269504
    top = tl.sum(asked.to(tl.float32) * new_k.to(tl.float32)[None, :], axis=1) * scale2
    total = top * 0.0 + 1.0
    found = new_v.to(tl.float32)[None, :] + tl.zeros([SHARING, DIM], dtype=tl.float32)
    start = count * 0
    while start < count:
        at = start + tl.arange(0, KEYS)
        live = at < count
        where = base + at[:, None] * groups * dim + d
        some_k = tl.load(keys + where, mask=live[:, None] & (d < dim), other=0.0)
        score = tl.dot(asked, tl.trans(some_k), out_dtype=tl.float32) * scale2
        score = tl.where(live[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, axis=1))
        shrink = tl.exp2(top - higher)
        chance = tl.exp2(score - higher[:, None])
        some_v = tl.load(values + where, mask=live[:, None] & (d < dim), other=0.0)
        total = total * shrink + tl.sum(chance, axis=1)
        found = found * shrink[:, None] + tl.dot(chance.to(some_v.dtype), some_v, out_dtype=tl.float32)
        top = higher
        start += KEYS
    found = found / total[:, None]
    tl.store(out + (row * heads + group * sharing + one) * dim + d, found.to(out.dtype.element_ty), mask=own)


def attend_step(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, length: Tensor, positions: int, scale: float
) -> Tensor:
    """Row r's key and value join slot r of keys and values [slots · positions, G, d] at place length[r]; its queries
    look at all that the slot holds then. q [n, H, d], k and v [n, G, d] are parts of one tensor's rows → [n, H, d]."""
    (rows, heads, dim), groups = q.shape, k.shape[1]
    out = q.new_empty(rows, heads, dim)
    attend_kernel[(rows, groups)](
        q, k, v, q.stride(0), keys, values, length, out, positions, scale,
        heads=heads, groups=groups, dim=dim,
        SHARING=max(16, triton.next_power_of_2(heads // groups)), DIM=max(16, triton.next_power_of_2(dim)), KEYS=64,
        num_warps=2 if dim > 64 else 1,
    )  # fmt: skip
    return out


def block_masses(logits_BV: Tensor, cold_B: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each block of each row's logits at its temperature: the highest, Σ exp(logit - highest), and whose it is."""
    rows, width = logits_BV.shape
    blocks = triton.cdiv(width, block)
    top, mass = (logits_BV.new_empty(rows, blocks) for _ in range(2))
    first = logits_BV.new_empty(rows, blocks, dtype=torch.int64)
    masses_kernel[(rows, blocks)](logits_BV, cold_B, top, mass, first, width, blocks, BLOCK=block)
    return top, mass, first
