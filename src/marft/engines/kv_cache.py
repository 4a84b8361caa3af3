"""A cache of keys and values in torch's own operations, and the two kinds of attention that fill it: prompts and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from marft.engines.kept_keys import Prefix, Sides
from marft.models.attention import attend_on_grid, from_grid, ragged, to_grid
from marft.models.layout import Layout

GROW = 64  # the cache grows in steps of this many positions
KEPT_BYTES = 2 << 30  # of turns that are over


class Cache(Protocol):
    """Keys and values of the engine's rows, which have a slot each; those that are live are dense at the front."""

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        ...

    def room(self, positions: int, live: int) -> int:
        """How many rows of this length fit, while so many are live."""
        ...

    def reserve(self, positions: int, live: int) -> None:
        """Room for rows of this length; the first `live` rows keep what they hold."""
        ...

    def spare(self, positions: int, live: int) -> int:
        """Bytes that are left for others, before and after `reserve`."""
        ...

    def bytes(self, positions: int) -> int:
        """Of so many positions of a slot."""
        ...

    def save(self, slot: int, positions: int) -> Sides:
        """A copy of a slot's first positions."""
        ...

    def load(self, slots: Sequence[int], prefix: Prefix) -> None:
        """Into the first positions of some slots."""
        ...

    def move(self, to: Sequence[int], origin: Sequence[int]) -> None:
        """Copy slots `origin` into slots `to`."""
        ...

    def wipe(self, slots: Sequence[int]) -> None:
        """No NaN in what these slots hold reaches whoever has them next."""
        ...


class KVCache:
    """Keys and values [slots, heads, positions, d] of every layer, made when the first keys come.

    In fp32 the positions of keys lie side by side in memory, as a step's product reads them.
    """

    def __init__(self, slots: int) -> None:
        self.slots, self.positions = slots, 0
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Of all layers' keys and values."""
        return sum(side.nbytes for side in (*self.keys.values(), *self.values.values()))

    def room(self, positions: int, live: int) -> int:
        """As many rows as there are slots: the cache grows as it must."""
        return self.slots

    def reserve(self, positions: int, live: int) -> None:
        """Room for this many positions in every slot; what is there is kept."""
        if positions <= self.positions:
            return
        before, self.positions = self.positions, round_up(positions, GROW)
        for layer in self.keys:  # one after another, so that little is held twice
            old = self.keys[layer], self.values[layer]
            self.keys[layer], self.values[layer] = self._make(old[0])
            self.keys[layer][:, :, :before], self.values[layer][:, :, :before] = old

    def spare(self, positions: int, live: int) -> int:
        """The same however long rows are, so that what is kept never depends on what was played before."""
        return KEPT_BYTES

    def bytes(self, positions: int) -> int:
        """Of so many positions of a slot."""
        return self.nbytes * positions // (self.slots * self.positions)

    def save(self, slot: int, positions: int) -> Sides:
        """[layers, heads, positions, d] of a slot's first positions, twice."""
        keys, values = (
            torch.stack([side[layer][slot, :, :positions] for layer in sorted(side)])
            for side in (self.keys, self.values)
        )
        return keys, values

    def load(self, slots: Sequence[int], prefix: Prefix) -> None:
        """Into the first positions of some slots."""
        for side, saved in zip((self.keys, self.values), prefix.sides, strict=True):
            for layer, part in zip(sorted(side), saved, strict=True):
                side[layer][list(slots), :, : prefix.length] = part[:, : prefix.length]

    def layer(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """One layer's keys and values, made like `like` when first asked for."""
        if layer not in self.keys:
            self.keys[layer], self.values[layer] = self._make(like)
        return self.keys[layer], self.values[layer]

    def _make(self, like: Tensor) -> tuple[Tensor, Tensor]:
        slots, heads, positions, size = self.slots, like.shape[1], self.positions, like.shape[3]
        values = like.new_zeros(slots, heads, positions, size)
        if like.dtype == torch.float32:
            return like.new_zeros(slots, heads, size, positions).transpose(2, 3), values
        return torch.zeros_like(values), values

    def move(self, to: Sequence[int], origin: Sequence[int]) -> None:
        """Copy slots `origin` into slots `to`."""
        for side in (self.keys, self.values):
            for tensor in side.values():
                tensor[to] = tensor[origin]

    def wipe(self, slots: Sequence[int]) -> None:
        """Zeros: masked positions count nothing in a product, but for NaN, which nothing makes 0."""
        for side in (self.keys, self.values):
            for tensor in side.values():
                tensor[list(slots)] = 0.0


class PrefillAttention:
    """Attention over the prompts of one pass, which leaves their keys and values in the cache: prompt `source[j]` in
    slot j.

    Everything but the attention product works on one row of distinct tokens. For that product the row is spread to a
    grid [S, L] of whole prompts; right-padding needs no mask, since a causal query never looks right.
    """

    def __init__(self, layout: Layout, cache: KVCache, slots: slice, source: Tensor) -> None:
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
        keys[self.slots, :, : self.longest] = k[self.source]
        values[self.slots, :, : self.longest] = v[self.source]
        out = attend_on_grid(q, k, v, scale)  # [S, H, L, d]
        return out.transpose(1, 2).flatten(0, 1).index_select(0, self.cells)[None]

    def spread(self, x: Tensor) -> Tensor:
        """[1, H, T, d] → [S, H, L, d]"""
        grid = x[0].transpose(0, 1).index_select(0, self.origin)
        return grid.view(self.count, self.longest, *grid.shape[1:]).transpose(1, 2)


class ContinuedPrefillAttention:
    """`PrefillAttention` for prompts whose first keys and values lie in their slots already.

    Queries of the tokens that are new are spread to a grid [S, Q], and look at what their prompt's first slot holds.
    """

    def __init__(self, layout: Layout, cache: KVCache, slots: slice, source: Tensor) -> None:
        device, prompts = source.device, source.tolist()
        self.cache, self.longest = cache, int(layout.lengths.max())
        self.first = torch.tensor([slots.start + prompts.index(i) for i in range(len(layout.lengths))], device=device)
        sizes, width = layout.sizes, int(layout.sizes.max())
        sequence, place = ragged(sizes)
        self.shape = len(sizes), width
        self.cells = (sequence * width + place).to(device)
        seen = torch.arange(self.longest) <= (layout.common[:, None] + torch.arange(width))[:, :, None]
        self.seen = seen[:, None].to(device)
        unknown = layout.lengths - layout.known
        ends = unknown.cumsum(0)
        seat, place = ragged(unknown[prompts])
        self.seat = (seat + slots.start).to(device)
        self.place = (place + layout.known[prompts][seat]).to(device)
        self.origin = layout.origin[(ends - unknown)[prompts][seat] + place].to(device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        keys, values = self.cache.layer(layer, k)
        for side, new in ((keys, k), (values, v)):
            side[self.seat, :, self.place] = new[0].transpose(0, 1).index_select(0, self.origin)
        grid = to_grid(q[0].transpose(0, 1), self.cells, *self.shape)
        keys, values = (side[self.first, :, : self.longest] for side in (keys, values))
        return from_grid(attend_on_grid(grid, keys, values, scale, self.seen), self.cells)[None]


class DecodeAttention:
    """One new token a live row: its key and value join the cache, its query looks at all keys of its own row.

    In fp32 two products and a softmax, which with one query a row are faster than SDPA on a CPU; else SDPA.
    """

    def __init__(self, cache: KVCache, length: Tensor) -> None:
        self.cache, self.length = cache, length
        self.rows = torch.arange(len(length), device=length.device)
        self.longest = int(length.max()) + 1
        seen = torch.arange(self.longest, device=length.device) <= length[:, None]
        self.seen = seen[:, None, None, :]
        self.unseen = ~self.seen

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        keys, values = self.cache.layer(layer, k)
        keys[self.rows, :, self.length] = k[:, :, 0]
        values[self.rows, :, self.length] = v[:, :, 0]
        n, heads, groups = len(self.rows), q.shape[1], k.shape[1]
        # the heads that share a key become queries of one product: [n, G, H/G, d]
        grouped = q.reshape(n, groups, heads // groups, -1)
        keys, values = keys[:n, :, : self.longest], values[:n, :, : self.longest]
        if q.dtype == torch.float32:
            scores = (grouped * scale) @ keys.transpose(2, 3)
            out = scores.masked_fill_(self.unseen, -torch.inf).softmax(-1) @ values
        else:
            out = scaled_dot_product_attention(grouped, keys, values, attn_mask=self.seen, scale=scale)
        return out.reshape(n, 1, heads, -1)


def round_up(size: int, step: int) -> int:
    """Up to a multiple of the step."""
    return -(-size // step) * step
