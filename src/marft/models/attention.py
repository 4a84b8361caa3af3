"""Attention without padding in the rest of the model, plugged into any transformers model by its attention interface.

A model whose attention implementation is `marft` hands queries, keys and values to the `AttentionFn` that the caller
passed as `attend=`: `PackedAttention` here (many sequences end to end in one row), `PrefixAttention` (the same, with
their common first tokens only once), or one of the local engine's, which also write its cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "marft"


class AttentionFn(Protocol):
    """Attention of one pass: q [B, H, T, d], k and v [B, G, T, d] (H a multiple of G) → [B, T, H, d]."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor: ...


def attention_forward(
    module: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: None, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' attention interface: hands the pass to the caller's `attend`."""
    if kwargs.get("softcap") or kwargs.get("s_aux") is not None:
        raise ValueError("attention with a soft cap or sinks is not supported")
    attend: AttentionFn = kwargs["attend"]
    return attend(module.layer_idx, q, k, v, kwargs.get("scaling") or q.shape[-1] ** -0.5), None


AttentionInterface.register(NAME, attention_forward)


def ragged(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences of these sizes end to end: which one each element belongs to, and its place inside it."""
    row = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    return row, torch.arange(len(row)) - (sizes.cumsum(0) - sizes)[row]


def cumulative_lengths(sizes: Tensor) -> Tensor:
    """[S + 1] where each sequence begins, and the end."""
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]).to(torch.int32)


class SelectRows(torch.autograd.Function):
    """x [M, …] → x[index]; `index` holds no row twice, so the gradient is a plain copy back instead of a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, *grad.shape[1:]).index_copy_(0, index, grad), None


class ScatterRows(torch.autograd.Function):
    """The inverse of `SelectRows`: x [N, …] → [rows, …] with x at `index` and zeros elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(index)
        return x.new_zeros(rows, *x.shape[1:]).index_copy_(0, index, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


def runs_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's flash kernels run there: in half precision, on NVIDIA's GPUs from compute capability 8 on."""
    return device.type == "cuda" and dtype != torch.float32 and torch.cuda.get_device_capability(device) >= (8, 0)


class PackedAttention:
    """Causal attention inside each of S sequences laid end to end in one row of T tokens.

    On CUDA in half precision the varlen flash kernel reads the row as it is. Elsewhere the sequences are spread to a
    padded [S, L] grid for the attention product alone; right-padding needs no mask, since a causal query never looks
    right.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.count, self.longest = len(lengths), max(lengths)
        sizes = torch.tensor(lengths)
        row, position = ragged(sizes)
        self.position_ids = position[None].to(device)
        self.cell = (row * self.longest + position).to(device)
        self.starts = cumulative_lengths(sizes).to(device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))  # [T, heads, d]
        if runs_flash(q.device, q.dtype):
            return flash_attention(q, k, v, self.starts, self.starts, self.longest, self.longest, scale)[None]
        q, k, v = (to_grid(x, self.cell, self.count, self.longest) for x in (q, k, v))
        return from_grid(attend_on_grid(q, k, v, scale), self.cell)[None]


def to_grid(x: Tensor, cell: Tensor, count: int, width: int) -> Tensor:
    """x [N, heads, d], each row in its cell of a padded grid [count, heads, width, d]."""
    grid: Tensor = ScatterRows.apply(x, cell, count * width)
    return grid.view(count, width, *x.shape[1:]).transpose(1, 2)


def from_grid(grid: Tensor, cell: Tensor) -> Tensor:
    """Back again: [N, heads, d]."""
    rows: Tensor = SelectRows.apply(grid.transpose(1, 2).flatten(0, 1), cell)
    return rows


def attend_on_grid(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """Attention of padded sequences [S, heads, L, d], causal unless a mask says who sees whom."""
    return scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, longest_q: int, longest_k: int, scale: float
) -> Tensor:
    """Causal attention of ragged q [N, H, d] to k, v [M, G, d] by the varlen flash kernel: [N, H, d].

    A sequence with fewer queries than keys has its queries at the end of them.
    """
    from torch.nn.attention.varlen import varlen_attn

    # newer torch wants grouped heads announced, older torch takes them unasked
    known = "enable_gqa" in signature(varlen_attn).parameters
    grouped: dict[str, Any] = {"enable_gqa": q.shape[1] != k.shape[1]} if known else {}
    out = varlen_attn(q, k, v, starts_q, starts_k, longest_q, longest_k, scale=scale, window_size=(-1, 0), **grouped)
    assert isinstance(out, Tensor)
    return out
