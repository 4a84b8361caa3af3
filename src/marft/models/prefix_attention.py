"""Attention over sequences whose first tokens stand in the row only once: keys and values are copied to each of them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from marft.models.attention import (
    SelectRows,
    attend_on_grid,
    cumulative_lengths,
    flash_attention,
    from_grid,
    ragged,
    runs_flash,
    to_grid,
)
from marft.models.layout import Layout


class RowCopies:
    """x [M, …] → x[index], a row as often as it is named; the gradient of a row is the sum over its copies.

    The sum runs over copies sorted on the host, in a fixed order and in fp32: the same every time, on every device.
    """

    def __init__(self, index: Tensor, rows: int, device: torch.device) -> None:
        self.index = index.to(device)
        self.order = index.argsort(stable=True).to(device)
        self.counts = torch.bincount(index, minlength=rows).to(device)

    def __call__(self, x: Tensor) -> Tensor:
        copied: Tensor = CopyRows.apply(x, self)
        return copied


class CopyRows(torch.autograd.Function):
    """The copy of `RowCopies` and its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, copies: RowCopies) -> Tensor:
        ctx.copies = copies
        return x.index_select(0, copies.index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        copies: RowCopies = ctx.copies
        if not grad.is_cuda:  # one after another, in the order of the copies: the same every time
            summed = grad.new_zeros(len(copies.counts), *grad.shape[1:]).index_add_(0, copies.index, grad)
            return summed, None
        by_row = grad.index_select(0, copies.order).flatten(1).float()
        # unsafe: unchecked, since a check would wait for the device; initial: for rows without a copy
        summed = torch.segment_reduce(by_row, "sum", lengths=copies.counts, axis=0, unsafe=True, initial=0.0)
        return summed.to(grad.dtype).view(-1, *grad.shape[1:]), None


class PrefixAttention:
    """Causal attention inside each sequence of a layout; its queries are the tokens that it adds to the row.

    On CUDA in half precision sequences lie end to end for the flash kernel, elsewhere in padded grids.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout, self.device = layout, device
        self.position_ids = layout.positions[None].to(device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))  # [T, heads, d]
        return (self.end_to_end if runs_flash(q.device, q.dtype) else self.grids)(q, k, v, scale)[None]

    @cached_property
    def end_to_end(self) -> VarlenPrefixAttention:
        """The way of CUDA in half precision, prepared when it is first needed."""
        return VarlenPrefixAttention(self.layout, self.device)

    @cached_property
    def grids(self) -> PaddedPrefixAttention:
        """The way of other devices and precisions, prepared when it is first needed."""
        return PaddedPrefixAttention(self.layout, self.device)


class VarlenPrefixAttention:
    """The varlen flash kernel on copied keys, with queries aligned to the end of each sequence's keys."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        asks = layout.sizes > 0  # a sequence that stands in the row already has nothing to ask
        sizes, lengths = layout.sizes[asks], layout.lengths[asks]
        sequence, _ = ragged(layout.lengths)
        self.starts = [cumulative_lengths(each).to(device) for each in (sizes, lengths)]
        self.longest = (int(sizes.max()), int(lengths.max()))
        self.keys = RowCopies(layout.origin[asks[sequence]], len(layout.ids), device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        starts_q, starts_k = self.starts
        return flash_attention(q, self.keys(k), self.keys(v), starts_q, starts_k, *self.longest, scale)


class PaddedPrefixAttention:
    """Whole sequences and branches are two padded grids: branches have few queries and need a mask, and would otherwise
    be as wide as the sequences that they branch off."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        asks = layout.sizes > 0
        sequence, _ = ragged(layout.lengths)
        adds, _ = ragged(layout.sizes)
        kinds = [asks & (layout.common == 0), asks & (layout.common > 0)]
        self.blocks = [
            PaddedBlock(layout.sizes[kind], layout.common[kind], layout.origin[kind[sequence]], len(layout.ids), device)
            for kind in kinds
            if kind.any()
        ]
        asked = torch.cat([kind[adds].nonzero()[:, 0] for kind in kinds])  # the row's tokens in the blocks' order
        self.order, self.back = asked.to(device), asked.argsort().to(device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        pieces = SelectRows.apply(q, self.order).split([block.queries for block in self.blocks])
        out = torch.cat([block(piece, k, v, scale) for block, piece in zip(self.blocks, pieces, strict=True)])
        back: Tensor = SelectRows.apply(out, self.back)
        return back


class PaddedBlock:
    """Some sequences as one padded grid: `sizes` queries each, after `common` keys that only they see."""

    def __init__(self, sizes: Tensor, common: Tensor, origin: Tensor, rows: int, device: torch.device) -> None:
        lengths = sizes + common
        self.count, self.width, self.depth = len(sizes), int(sizes.max()), int(lengths.max())
        self.queries = int(sizes.sum())
        self.keys = RowCopies(origin, rows, device)
        self.cell_q, self.cell_k = (
            (row * width + place).to(device)
            for (row, place), width in ((ragged(sizes), self.width), (ragged(lengths), self.depth))
        )
        self.mask: Tensor | None = None
        if common.any():
            seen = common[:, None] + torch.arange(self.width)
            self.mask = (torch.arange(self.depth) <= seen[..., None])[:, None].to(device)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q [N, H, d] and the whole row's k, v [T, G, d] → [N, H, d]"""
        grid_q = to_grid(q, self.cell_q, self.count, self.width)
        grid_k, grid_v = (to_grid(self.keys(x), self.cell_k, self.count, self.depth) for x in (k, v))
        return from_grid(attend_on_grid(grid_q, grid_k, grid_v, scale, self.mask), self.cell_q)
