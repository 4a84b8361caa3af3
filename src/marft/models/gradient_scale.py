"""Gradients that float16 can hold. A token's part of a loss is often below 6e-8, where float16 ends, so that nothing would
come back through the base; scaled up on its way in, it does, and adapters' gradients are scaled down again in fp32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marft.models.lora import Routing


class ScaledGradients(torch.autograd.Function):
    """A pass's hidden states in fp32. Their gradient is multiplied by a power of two, the same for the whole pass, that brings
    its largest number to between 1/2 and 1: layers may make it 65,504 times as large before float16 overflows. Products
    with adapters find the factor in the pass's routing, and divide by it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, routing: Routing) -> Tensor:
        ctx.routing, ctx.dtype = routing, hidden.dtype
        return hidden.float()

    @staticmethod
    def backward(ctx: Any, d_hidden: Tensor) -> tuple[Tensor, None]:
        largest = d_hidden.abs().amax()
        # of what is not finite nothing finite is left, which the learner finds
        scale = torch.exp2(-largest.clamp(min=2.0**-120).log2().ceil())
        ctx.routing.gradient_scale = scale
        return (d_hidden * scale).to(ctx.dtype), None


def scale_gradients(hidden: Tensor, routing: Routing | None) -> Tensor:
    """Hidden states whose gradient survives float16; as they are in other precisions, and where no adapter learns."""
    if hidden.dtype != torch.float16 or routing is None or not hidden.requires_grad:
        return hidden
    scaled: Tensor = ScaledGradients.apply(hidden, routing)
    return scaled
