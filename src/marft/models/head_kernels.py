"""Triton kernels over rows as wide as the vocabulary: log-probs, entropies, and their gradients by the logits. Only CUDA runs
load this."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LOOK = 4096  # logits of a row that are read at a time for the sums
WIDE = 1024  # logits of one program that writes gradients


@triton.jit
def token_statistics_kernel(logits, heat, token, found, entropy, top, mass, width, BLOCK: tl.constexpr):
    """One row, read once. Logits z count from the highest so far, so that nothing large cancels; where a higher one comes
    the sums of exp(z) and of exp(z) z move to it."""
    row = tl.program_id(0).to(tl.int64)
    cold = 1.0 / tl.load(heat + row)
    one = tl.arange(0, 1)
    highest = tl.load(logits + row * width + one) * cold
    total = tl.zeros([1], dtype=tl.float32)
    weighed = tl.zeros([1], dtype=tl.float32)
    start = width * 0
    while start < width:
        column = start + tl.arange(0, BLOCK)
        inside = column < width
        z = tl.load(logits + row * width + column, mask=inside, other=0.0) * cold
        higher = tl.maximum(highest, tl.max(tl.where(inside, z, float("-inf")), axis=0))
        z = tl.where(inside, z, higher)
        move = highest - higher
        part = tl.where(inside, tl.exp(z - higher), 0.0)
        weighed = tl.exp(move) * (weighed + total * move) + tl.sum(part * (z - higher), axis=0)
        total = tl.exp(move) * total + tl.sum(part, axis=0)
        highest = higher
        start += BLOCK
    chosen = tl.load(logits + row * width + tl.load(token + row)) * cold
    log_total = tl.log(total)
    tl.store(found + row + one, (chosen - highest) - log_total)
    tl.store(entropy + row + one, log_total - weighed / total)
    tl.store(top + row + one, highest)
    tl.store(mass + row + one, log_total)


@triton.jit
def logit_gradient_kernel(
    logits, heat, token, entropy, top, mass, out, width, OF_ENTROPY: tl.constexpr, BLOCK: tl.constexpr
):
    """One block of a row: the gradient of its log-prob or entropy by the logits."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    cold = 1.0 / tl.load(heat + row)
    z = tl.load(logits + row * width + column, mask=inside, other=0.0) * cold
    log_p = tl.where(inside, (z - tl.load(top + row)) - tl.load(mass + row), 0.0)
    p = tl.exp(log_p)
    if OF_ENTROPY:
        slope = -p * (log_p + tl.load(entropy + row))
    else:
        slope = tl.where(column == tl.load(token + row), 1.0, 0.0) - p
    tl.store(out + row * width + column, slope.to(out.dtype.element_ty), mask=inside)


class TokenStatistics:
    """Of each row of fp32 logits [N, V] at its temperature: `found`, the token's log-prob, and `entropy`."""

    def __init__(self, logits: Tensor, temperature: Tensor, tokens: Tensor) -> None:
        self.given = (logits, temperature, tokens)
        self.found, self.entropy, self.top, self.mass = (logits.new_empty(len(logits)) for _ in range(4))
        token_statistics_kernel[(len(logits),)](
            *self.given, self.found, self.entropy, self.top, self.mass, logits.shape[1], BLOCK=LOOK, num_warps=8
        )

    def slope(self, dtype: torch.dtype, *, of_entropy: bool) -> Tensor:
        """The gradient of the log-prob, or of the entropy, by the tempered logits [N, V]; in `dtype`."""
        logits = self.given[0]
        rows, width = logits.shape
        out = torch.empty_like(logits, dtype=dtype)
        logit_gradient_kernel[(rows, triton.cdiv(width, WIDE))](
            *self.given, self.entropy, self.top, self.mass, out, width, OF_ENTROPY=of_entropy, BLOCK=WIDE
        )
        return out
