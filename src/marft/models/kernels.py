"""Triton kernels of the decoder: elementwise steps, each of which reads and writes its rows once, and what adapters add to
wide products in a decode step. Only CUDA runs load this."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDE = 1024  # elements of one program where a row is cut
STEP_ROWS = 16  # rows of one program that adds adapters: many small programs finish first, but for the gate …
GATE_ROWS, GATE_TILE = 64, 64  # … which reads more of B than of its rows


@triton.jit
def add_norm_kernel(
    stream, delta, delta_stride, weight, total, out, rstd, width, eps, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr
):
    """One row: the sum, its RMS norm, and 1/RMS."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(stream + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_DELTA:
        x += tl.load(delta + row * delta_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + row * width + column, x, mask=inside)
    tl.store(out + row * width + column, (x * scale * w).to(out.dtype.element_ty), mask=inside)
    tl.store(rstd + row, scale)


@triton.jit
def add_norm_backward_kernel(total, rstd, weight, d_out, d_total, d_stream, d_delta, width, BLOCK: tl.constexpr):
    """One row: the gradients of the stream and of what was added to it."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row * width + column
    x = tl.load(total + at, mask=inside, other=0.0)
    scale = tl.load(rstd + row)
    g = tl.load(d_out + at, mask=inside, other=0.0).to(tl.float32)
    g = g * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    d = scale * (g - x * scale * scale * (tl.sum(g * x, axis=0) / width))
    d += tl.load(d_total + at, mask=inside, other=0.0)
    tl.store(d_stream + at, d, mask=inside)
    tl.store(d_delta + at, d.to(d_delta.dtype.element_ty), mask=inside)


@triton.jit
def rotary_kernel(
    x, stride, positions, cos, sin, out, heads, rotated, half, sign, HEADS: tl.constexpr, HALF: tl.constexpr
):
    """One row: its first heads rotated by the angles of its position."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (column < half)
    place = head * 2 * half + column
    a = tl.load(x + row * stride + place, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + row * stride + place + half, mask=inside, other=0.0).to(tl.float32)
    angle = tl.load(positions + row) * half + column
    c = tl.load(cos + angle, mask=column < half, other=0.0)
    s = tl.load(sin + angle, mask=column < half, other=0.0) * sign
    c = tl.where(head < rotated, c, 1.0)
    s = tl.where(head < rotated, s, 0.0)
    at = row * heads * 2 * half + place
    tl.store(out + at, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
    tl.store(out + at + half, (b * c + a * s).to(out.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_kernel(both, stride, out, width, BLOCK: tl.constexpr):
    """One block of a row: silu(gate) · up."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(both + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * stride + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_backward_kernel(both, stride, d_out, d_both, width, BLOCK: tl.constexpr):
    """One block of a row: the gradients of gate and up."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(both + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * stride + width + column, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(d_out + row * width + column, mask=inside, other=0.0).to(tl.float32)
    open_ = tl.sigmoid(gate)
    d_gate = d * up * open_ * (1.0 + gate * (1.0 - open_))
    at = row * 2 * width + column
    tl.store(d_both + at, d_gate.to(d_both.dtype.element_ty), mask=inside)
    tl.store(d_both + at + width, (d * gate * open_).to(d_both.dtype.element_ty), mask=inside)


@triton.jit
def routed_part(wide, stride, row, here, mask, rank, b, out, column, inside, first, last, RANKS: tl.constexpr):
    """What the ranks from `first` to `last` add to some columns of some rows."""
    y = tl.zeros([row.shape[0], column.shape[1]], dtype=tl.float32)
    start = first
    while start < last:
        across = start + tl.arange(0, RANKS)[None, :]
        down = start + tl.arange(0, RANKS)[:, None]
        h = tl.load(wide + row * stride + out + across, mask=here & (across < last), other=0.0)
        h = h * tl.load(mask + row * rank + across % rank, mask=here & (across < last), other=0.0)
        part = tl.load(b + down * out + column, mask=(down < last) & inside, other=0.0)
        y += tl.dot(h, part, out_dtype=tl.float32, input_precision="ieee")
        start += RANKS
    return y


@triton.jit
def add_routed_kernel(
    wide, stride, mask, rank, b, out, reach, rows, TILE: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr
):
    """A tile of rows and outputs: adds what the rows' adapters contribute."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None].to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    here, inside = row < rows, column < out
    first = tl.load(reach + 2 * tl.program_id(1))
    last = tl.load(reach + 2 * tl.program_id(1) + 1)
    y = tl.load(wide + row * stride + column, mask=here & inside, other=0.0).to(tl.float32)
    y += routed_part(wide, stride, row, here, mask, rank, b, out, column, inside, first, last, RANKS)
    tl.store(wide + row * stride + column, y.to(wide.dtype.element_ty), mask=here & inside)


@triton.jit
def swiglu_routed_kernel(
    wide, stride, mask, rank, b, result, rows, width, first, middle, last,
    TILE: tl.constexpr, ROWS: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """A tile of rows and outputs: adds the adapters' parts to gate and up, then silu(gate) · up."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None].to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    here, inside, out = row < rows, column < width, 2 * width
    gate = tl.load(wide + row * stride + column, mask=here & inside, other=0.0).to(tl.float32)
    up = tl.load(wide + row * stride + width + column, mask=here & inside, other=0.0).to(tl.float32)
    gate += routed_part(wide, stride, row, here, mask, rank, b, out, column, inside, first, middle, RANKS)
    up += routed_part(wide, stride, row, here, mask, rank, b, out, width + column, inside, middle, last, RANKS)
    gate = gate.to(wide.dtype.element_ty).to(tl.float32)  # as training rounds it, where the sum is written first
    up = up.to(wide.dtype.element_ty).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    tl.store(result + row * width + column, value.to(result.dtype.element_ty), mask=here & inside)


@triton.jit
def dequantize_kernel(codes, scales, table, out, count, size, NIBBLES: tl.constexpr, BLOCK: tl.constexpr):
    """Some values: their codes, as they are or looked up, times the scale that `size` of them share."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    if NIBBLES:
        byte = tl.load(codes + place // 2, mask=inside, other=0).to(tl.int32)
        value = tl.load(table + ((byte >> (4 - 4 * (place % 2)).to(tl.int32)) & 15))
    else:
        value = tl.load(codes + place, mask=inside, other=0).to(tl.float32)
    scale = tl.load(scales + place // size, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, (value * scale).to(out.dtype.element_ty), mask=inside)


def add_norm(
    stream: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """stream [M, D] + delta, the RMS norm of the sum in `dtype`, and 1/RMS."""
    rows, width = stream.shape
    total, out = torch.empty_like(stream), torch.empty_like(stream, dtype=dtype)
    rstd = stream.new_empty(rows, dtype=torch.float32)
    block = triton.next_power_of_2(width)
    added = stream if delta is None else delta
    add_norm_kernel[(rows,)](
        stream, added, added.stride(0), weight, total, out, rstd, width, eps, HAS_DELTA=delta is not None, BLOCK=block
    )
    return total, out, rstd


def add_norm_backward(
    total: Tensor, rstd: Tensor, weight: Tensor, d_out: Tensor, d_total: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of `add_norm` by the stream and by what was added to it."""
    rows, width = total.shape
    d_stream, d_delta = torch.empty_like(total), torch.empty_like(d_out)
    block = triton.next_power_of_2(width)
    add_norm_backward_kernel[(rows,)](total, rstd, weight, d_out, d_total, d_stream, d_delta, width, BLOCK=block)
    return d_stream, d_delta


def apply_rotary(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, rotated: int, *, inverse: bool = False
) -> Tensor:
    """x [M, heads · d], its first heads rotated by the angle of each row's position (or back again), the others copied."""
    half = cos.shape[1]
    heads = x.shape[1] // (2 * half)
    out = x.new_empty(x.shape)
    blocks = {"HEADS": triton.next_power_of_2(heads), "HALF": triton.next_power_of_2(half)}
    rotary_kernel[(len(x),)](
        x, x.stride(0), positions, cos, sin, out, heads, rotated, half, -1.0 if inverse else 1.0, **blocks
    )
    return out


def swiglu(both: Tensor) -> Tensor:
    """silu(gate) · up of both [M, 2F]."""
    rows, width = both.shape[0], both.shape[1] // 2
    out = both.new_empty(rows, width)
    swiglu_kernel[(rows, triton.cdiv(width, WIDE))](both, both.stride(0), out, width, BLOCK=WIDE)
    return out


def swiglu_backward(both: Tensor, d_out: Tensor) -> Tensor:
    """The gradient of `swiglu` by its input [M, 2F]."""
    rows, width = d_out.shape
    d_both = both.new_empty(rows, 2 * width)
    swiglu_backward_kernel[(rows, triton.cdiv(width, WIDE))](both, both.stride(0), d_out, d_both, width, BLOCK=WIDE)
    return d_both


def add_routed(wide: Tensor, mask: Tensor, b: Tensor, reach: Tensor, tile: int) -> None:
    """wide [M, out + ranks] holds W x and A x: to its first columns add (A x · mask) B, in place. mask [M, Σr] repeats
    over the ranks, and `reach` tells for each tile of outputs which rows of b [ranks, out] are not all zero."""
    rows = len(wide)
    add_routed_kernel[(triton.cdiv(rows, STEP_ROWS), len(reach))](
        wide, wide.stride(0), mask, mask.shape[1], b, b.shape[1], reach, rows,
        TILE=tile, ROWS=STEP_ROWS, RANKS=ranks_of(wide),
    )  # fmt: skip


def swiglu_routed(wide: Tensor, mask: Tensor, b: Tensor, gated: int) -> Tensor:
    """silu(gate) · up of wide [M, 2F + ranks], after adding (A x · mask) B as `add_routed` does: the first `gated` ranks
    reach the gate alone, the others `up` alone."""
    rows, width = len(wide), b.shape[1] // 2
    result = wide.new_empty(rows, width)
    block = STEP_ROWS if rows <= GATE_ROWS else GATE_ROWS
    swiglu_routed_kernel[(triton.cdiv(rows, block), triton.cdiv(width, GATE_TILE))](
        wide, wide.stride(0), mask, mask.shape[1], b, result, rows, width, 0, gated, len(b),
        TILE=GATE_TILE, ROWS=block, RANKS=ranks_of(wide),
    )  # fmt: skip
    return result


def dequantize(codes: Tensor, scales: Tensor, table: Tensor | None, size: int, out: Tensor) -> None:
    """Fill `out` with codes · scales, of which `size` values share one; where there is a table, a byte of codes holds two
    places in it."""
    nibbles = table is not None
    dequantize_kernel[(triton.cdiv(out.numel(), WIDE),)](
        codes, scales, table if nibbles else scales, out, out.numel(), size, NIBBLES=nibbles, BLOCK=WIDE
    )


def ranks_of(wide: Tensor) -> int:
    """Rows of B in one product: as many as take 128 bytes of each row of A x."""
    return 128 // wide.element_size()
