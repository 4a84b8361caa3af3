"""The local engine's cache of keys and values, and the two kinds of attention that fill it: prompts and single steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from marft.models.attention import Packed

GROW = 64  # the cache grows in steps of this many positions


class Cache:
    """Keys and values [slots, heads, positions, d] of every layer, made when the first keys come."""

    def __init__(self, slots: int) -> None:
        self.slots, self.positions = slots, 0
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def reserve(self, positions: int) -> None:
        if positions > self.positions:
            self.positions = -(-positions // GROW) * GROW
            for side in (self.keys, self.values):
                for layer, old in side.items():
                    side[layer] = torch.nn.functional.pad(old, (0, 0, 0, self.positions - old.shape[2]))

    def layer(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        if layer not in self.keys:
            shape = (self.slots, like.shape[1], self.positions, like.shape[3])
            self.keys[layer], self.values[layer] = like.new_zeros(shape), like.new_zeros(shape)
        return self.keys[layer], self.values[layer]

    def move(self, to: Tensor, origin: Tensor) -> None:
        for side in (self.keys, self.values):
            for tensor in side.values():
                tensor[to] = tensor[origin]


class Prefill:
    """Attention over the prompts of one pass, which leaves their keys and values in the cache: prompt `source[j]` in
    slot j.

    Prompts come sorted, each with its adapter, and the tokens a prompt has in common with the one before it are read
    only once: everything but the attention product works on one row of distinct tokens. For that product the row is
    spread to a grid [S, L] of whole prompts; right-padding needs no mask, since a causal query never looks right.
    """

    def __init__(
        self, prompts: Sequence[tuple[int, tuple[int, ...]]], cache: Cache, slots: Tensor, source: Tensor
    ) -> None:
        self.cache, self.slots, self.source = cache, slots, source
        self.count, self.longest = len(prompts), max(len(ids) for _, ids in prompts)
        tokens: list[int] = []
        positions: list[int] = []
        cells: list[int] = []  # where on the grid each token of the row stands, the first time
        origin: list[list[int]] = []  # which token of the row stands in each cell of the grid
        self.sizes = [0] * self.count  # new tokens of each prompt
        for r, (_, ids) in enumerate(prompts):
            old = common(prompts[r - 1], prompts[r]) if r else 0
            new = range(len(tokens), len(tokens) + len(ids) - old)
            origin.append([*(origin[-1][:old] if r else []), *new])
            tokens += ids[old:]
            positions += range(old, len(ids))
            cells += range(r * self.longest + old, r * self.longest + len(ids))
            self.sizes[r] = len(new)
        whole = [[*row, *[0] * (self.longest - len(row))] for row in origin]
        self.ids, self.position_ids, self.cells, self.origin, self.last = (
            torch.tensor(data, device=slots.device)
            for data in ([tokens], [positions], cells, whole, [row[-1] for row in origin])
        )

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = (self.spread(x) for x in (q, k, v))
        keys, values = self.cache.layer(layer, k)
        keys[self.slots, :, : self.longest] = k[self.source]
        values[self.slots, :, : self.longest] = v[self.source]
        out = Packed.on_grid(q, k, v, scale)  # [S, H, L, d]
        return out.transpose(1, 2).flatten(0, 1).index_select(0, self.cells)[None]

    def spread(self, x: Tensor) -> Tensor:
        """[1, H, T, d] → [S, H, L, d]"""
        grid = x[0].transpose(0, 1).index_select(0, self.origin.flatten())
        return grid.view(self.count, self.longest, *grid.shape[1:]).transpose(1, 2)


def common(one: tuple[int, tuple[int, ...]], other: tuple[int, tuple[int, ...]]) -> int:
    """How many first tokens two prompts share. In sorted order, with none twice, the second always has more."""
    most = min(len(one[1]), len(other[1])) if one[0] == other[0] else 0
    return next((i for i in range(most) if one[1][i] != other[1][i]), most)


class Decode:
    """One new token a live row: its key and value join the cache, its query looks at all keys of its own row."""

    def __init__(self, cache: Cache, length: Tensor) -> None:
        self.cache, self.length = cache, length
        self.rows = torch.arange(len(length), device=length.device)
        self.longest = int(length.max()) + 1
        seen = torch.arange(self.longest, device=length.device) <= length[:, None]
        self.mask = seen[:, None, None, :]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        keys, values = self.cache.layer(layer, k)
        keys[self.rows, :, self.length] = k[:, :, 0]
        values[self.rows, :, self.length] = v[:, :, 0]
        n, heads, groups = len(self.rows), q.shape[1], k.shape[1]
        # the heads that share a key become queries of one attention: [n, G, H/G, d]
        grouped = q.view(n, groups, heads // groups, -1)
        live_keys, live_values = keys[:n, :, : self.longest], values[:n, :, : self.longest]
        out = scaled_dot_product_attention(grouped, live_keys, live_values, attn_mask=self.mask, scale=scale)
        return out.reshape(n, 1, heads, -1)
