"""A cache of keys and values in torch's own operations, and the two kinds of attention that fill it: prompts and steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from marft.models.attention import Packed
from marft.models.layout import Layout

GROW = 64  # the cache grows in steps of this many positions


class Cache:
    """Keys [slots, heads, d, positions] and values [slots, heads, positions, d] of every layer, made when the first keys
    come: as a step's two products read them."""

    def __init__(self, slots: int) -> None:
        self.slots, self.positions = slots, 0
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def reserve(self, positions: int) -> None:
        if positions > self.positions:
            more = rounded(positions, GROW) - self.positions
            self.positions += more
            self.keys = {layer: pad(old, (0, more)) for layer, old in self.keys.items()}
            self.values = {layer: pad(old, (0, 0, 0, more)) for layer, old in self.values.items()}

    def layer(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        if layer not in self.keys:
            _, heads, _, size = like.shape
            self.keys[layer] = like.new_zeros(self.slots, heads, size, self.positions)
            self.values[layer] = like.new_zeros(self.slots, heads, self.positions, size)
        return self.keys[layer], self.values[layer]

    def move(self, to: Sequence[int], origin: Sequence[int]) -> None:
        for side in (self.keys, self.values):
            for tensor in side.values():
                tensor[to] = tensor[origin]


class Prefill:
    """Attention over the prompts of one pass, which leaves their keys and values in the cache: prompt `source[j]` in
    slot j.

    Everything but the attention product works on one row of distinct tokens. For that product the row is spread to a
    grid [S, L] of whole prompts; right-padding needs no mask, since a causal query never looks right.
    """

    def __init__(self, layout: Layout, cache: Cache, slots: slice, source: Tensor) -> None:
        device = source.device
        self.cache, self.slots, self.source = cache, slots, source
        self.count, self.longest = len(layout.lengths), int(layout.lengths.max())
        place = torch.arange(self.longest)
        grid = torch.zeros(self.count, self.longest, dtype=torch.int64)
        grid[place < layout.lengths[:, None]] = layout.origin
        fresh = (place >= layout.common[:, None]) & (place < layout.lengths[:, None])
        self.origin = grid.flatten().to(device)  # which token of the row stands in each cell of the grid
        self.cells = fresh.flatten().nonzero()[:, 0].to(device)  # where on the grid each token of the row stands first

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = (self.spread(x) for x in (q, k, v))
        keys, values = self.cache.layer(layer, k)
        keys[self.slots, :, :, : self.longest] = k[self.source].transpose(2, 3)
        values[self.slots, :, : self.longest] = v[self.source]
        out = Packed.on_grid(q, k, v, scale)  # [S, H, L, d]
        return out.transpose(1, 2).flatten(0, 1).index_select(0, self.cells)[None]

    def spread(self, x: Tensor) -> Tensor:
        """[1, H, T, d] → [S, H, L, d]"""
        grid = x[0].transpose(0, 1).index_select(0, self.origin)
        return grid.view(self.count, self.longest, *grid.shape[1:]).transpose(1, 2)


class Decode:
    """One new token a live row: its key and value join the cache, its query looks at all keys of its own row.

    Two products and a softmax, in fp32 whatever the dtype: with one query a row they are faster than SDPA on a CPU.
    """

    def __init__(self, cache: Cache, length: Tensor) -> None:
        self.cache, self.length = cache, length
        self.rows = torch.arange(len(length), device=length.device)
        self.longest = int(length.max()) + 1
        unseen = torch.arange(self.longest, device=length.device) > length[:, None]
        self.mask = torch.zeros(unseen.shape, device=length.device).masked_fill_(unseen, -torch.inf)[:, None, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        keys, values = self.cache.layer(layer, k)
        keys[self.rows, :, :, self.length] = k[:, :, 0]
        values[self.rows, :, self.length] = v[:, :, 0]
        n, heads, groups = len(self.rows), q.shape[1], k.shape[1]
        live_keys, live_values = keys[:n, ..., : self.longest].float(), values[:n, :, : self.longest].float()
        # the heads that share a key become queries of one product: [n, G, H/G, d]
        grouped = q.reshape(n, groups, heads // groups, -1).float() * scale
        chances = (grouped @ live_keys).add_(self.mask).softmax(-1)
        return (chances @ live_values).to(q.dtype).reshape(n, 1, heads, -1)


def rounded(size: int, step: int) -> int:
    """Up to a multiple of the step."""
    return -(-size // step) * step
