"""Frozen weights in 8 or 4 bits, and their numbers in the compute dtype when a product needs them.

`int8`: each row has a scale, its largest value / 127. `nf4` (QLoRA, arXiv:2305.14314): each block of 64 values has its
largest as a scale, and a value is the nearest of 16 quantiles of a normal distribution; two stand in a byte, the first
in its upper half. Every product dequantises anew, forwards and backwards: what is drawn and what is learnt from are
computed with the same numbers, and nothing of full size is held for longer than a product takes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["int8", "nf4"]

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
BLOCK = 64  # values that share a scale in nf4
AT_ONCE = 1 << 24  # values that are quantised at once: what is in between takes several times their size


class QuantizedWeight(nn.Module):
    """A matrix [out, in] in few bits: `codes`, a byte each or two in a byte, and a scale for every `block` of its values."""

    codes: Tensor
    scales: Tensor
    table: Tensor

    def __init__(self, weight: Tensor, kind: Kind, device: torch.device) -> None:
        super().__init__()
        self.kind, self.shape, self.dtype = kind, weight.shape, weight.dtype
        self.block = BLOCK if kind == "nf4" else weight.shape[1]
        to_codes = nf4_codes if kind == "nf4" else int8_codes
        # whole blocks, wherever rows end
        parts = weight.detach().flatten().split(max(1, AT_ONCE // self.block) * self.block)
        codes, scales = zip(*(to_codes(part.to(device), self.block) for part in parts), strict=True)
        self.register_buffer("codes", torch.cat(codes), persistent=False)
        self.register_buffer("scales", torch.cat(scales), persistent=False)
        self.register_buffer("table", torch.tensor(NF4, device=device), persistent=False)

    @property
    def nbytes(self) -> int:
        """Of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def dequantize(self, rows_below: int = 0) -> Tensor:
        """The matrix in its own dtype, with room for more rows below it, which are not filled."""
        rows, width = self.shape
        out = torch.empty(rows + rows_below, width, dtype=self.dtype, device=self.codes.device)
        if self.codes.is_cuda:
            from marft.models.kernels import dequantize

            dequantize(self.codes, self.scales, self.table if self.kind == "nf4" else None, self.block, out[:rows])
        else:
            out[:rows].copy_(self._by_torch())
        return out

    def _by_torch(self) -> Tensor:
        """Of fp32 products, as the kernel has them."""
        if self.kind == "int8":
            return self.codes.view(self.shape) * self.scales[:, None]
        pairs = torch.stack([self.table.repeat_interleave(16), self.table.repeat(16)], dim=1)  # of every byte
        found = pairs.view(torch.int64).flatten().index_select(0, self.codes.int())  # both values of a byte in one look
        return (
            found.view(torch.float32)
            .view(-1, self.block)
            .mul_(self.scales[:, None])
            .flatten()[: self.shape.numel()]
            .view(self.shape)
        )


def int8_codes(values: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Codes and the scale of each block, in fp32."""
    blocks = values.view(-1, block).float()
    scales = blocks.abs().amax(1) / 127
    codes = (blocks / scales.clamp(min=1e-30)[:, None]).round_()
    return codes.to(torch.int8).flatten(), scales


def nf4_codes(values: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Bytes and the scale of each block, in fp16; the last block is filled up with zeros."""
    padded = torch.nn.functional.pad(values.float(), (0, -len(values) % block)).view(-1, block)
    scales = padded.abs().amax(1).to(torch.float16)
    table = torch.tensor(NF4, device=values.device)
    borders = (table[1:] + table[:-1]) / 2
    shares = padded / scales.float().clamp(min=1e-30)[:, None]
    codes = torch.bucketize(shares, borders, out_int32=True).to(torch.uint8).flatten()
    return codes[::2] << 4 | codes[1::2], scales
