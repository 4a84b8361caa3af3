"""The decoder's elementwise steps: by Triton kernels on CUDA, elsewhere in torch's own words, which say what is meant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu


def add_norm(
    stream: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The residual stream [M, D] plus what a block adds to it, in fp32; and the RMS norm of the sum, in `dtype`."""
    if stream.is_cuda:
        total, normed = AddNorm.apply(stream, delta, weight, eps, dtype)
        return total, normed
    total = stream if delta is None else stream + delta
    return total, rms_norm(total, total.shape[-1:], weight.to(total.dtype), eps).to(dtype)


def apply_rotary(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, rotated: int) -> Tensor:
    """x [M, heads · d], its first `rotated` heads rotated by the angle of each row's position, the others as they are."""
    out: Tensor = ApplyRotary.apply(x, positions, cos, sin, rotated)
    return out


def rotate_heads(
    x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, rotated: int, *, inverse: bool = False
) -> Tensor:
    """`apply_rotary` without a graph; `inverse`: by the opposite angle, which is its gradient."""
    if x.is_cuda:
        from marft.models import kernels

        return kernels.apply_rotary(x, positions, cos, sin, rotated, inverse=inverse)
    out, sign = x.to(torch.float32, copy=True), -1.0 if inverse else 1.0
    (a, b), (to_a, to_b) = (each.view(len(x), -1, 2, cos.shape[1])[:, :rotated].unbind(2) for each in (x, out))
    c, s = (table[positions][:, None] for table in (cos, sin))
    to_a.mul_(c).addcmul_(b, s, value=-sign)
    to_b.mul_(c).addcmul_(a, s, value=sign)
    return out.to(x.dtype)


def swiglu(both: Tensor) -> Tensor:
    """silu(gate) · up of [M, 2F]; without gradient."""
    if both.is_cuda:
        from marft.models import kernels

        return kernels.swiglu(both)
    one, other = both.chunk(2, dim=-1)
    return silu(one) * other


def swiglu_backward(both: Tensor, d_out: Tensor) -> Tensor:
    """The gradient of `swiglu` by its input [M, 2F]."""
    if both.is_cuda:
        from marft.models import kernels

        return kernels.swiglu_backward(both, d_out)
    one, other = both.chunk(2, dim=-1)
    opened: Tensor = torch.ops.aten.silu_backward(d_out * other, one)
    return torch.cat([opened, d_out * silu(one)], dim=-1)


class AddNorm(torch.autograd.Function):
    """`add_norm` by Triton kernels, with its gradient."""

    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        from marft.models import kernels

        total, normed, rstd = kernels.add_norm(stream, delta, weight, eps, dtype)
        ctx.save_for_backward(total, rstd, weight)
        ctx.alone = delta is None
        return total, normed

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, d_normed: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        from marft.models import kernels

        total, rstd, weight = ctx.saved_tensors
        d_stream, d_delta = kernels.add_norm_backward(total, rstd, weight, d_normed.contiguous(), d_total.contiguous())
        return d_stream, None if ctx.alone else d_delta, None, None, None


class ApplyRotary(torch.autograd.Function):
    """`apply_rotary` with its gradient, the rotation back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, rotated: int) -> Tensor:
        ctx.save_for_backward(positions, cos, sin)
        ctx.rotated = rotated
        return rotate_heads(x, positions, cos, sin, rotated)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None, None, None, None]:
        positions, cos, sin = ctx.saved_tensors
        return rotate_heads(d_out.contiguous(), positions, cos, sin, ctx.rotated, inverse=True), None, None, None, None
