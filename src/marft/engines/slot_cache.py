"""A cache of keys and values in slots, and flash attention that reads only the keys that exist. CUDA, half precision.

The cache of a layer is one long row of positions; slot s has those from s · L on. A query is told where its keys begin
and how many there are, so rows of any length share one kernel whose shape never changes: it can be captured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from marft.engines.kept_keys import Prefix, Sides
from marft.engines.kv_cache import round_up
from marft.models.attention import cumulative_lengths, ragged
from marft.models.decoder import Decoder
from marft.models.layout import Layout

GROW = 256  # slots grow in steps of this many positions
COPIED = 16  # slots copied at once


class SlotCache:
    """Keys and values [layers, slots · positions, heads, d] for as many slots as `memory` bytes hold, `most` at most."""

    def __init__(self, decoder: Decoder, most: int, memory: int) -> None:
        self.most, self.memory = most, memory
        self.slots = self.positions = 0
        self.shape = (len(decoder.layers), decoder.shape.heads[1], decoder.shape.dim)
        self.like = decoder.embedding
        self.keys, self.values = self._make()

    def _make(self) -> tuple[Tensor, Tensor]:
        layers, heads, dim = self.shape
        shape = (layers, self.slots * self.positions, heads, dim)
        return self.like.new_zeros(shape), self.like.new_zeros(shape)

    @property
    def nbytes(self) -> int:
        """Of all keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def bytes(self, positions: int) -> int:
        """Of one slot."""
        return 2 * math.prod(self.shape) * self.like.element_size() * positions

    def room(self, positions: int, live: int) -> int:
        """How many slots of this length there would be. What live rows hold stays until it has been copied."""
        if live and positions <= self.positions:
            return self.slots
        spare = self.memory - (self.slots * self.bytes(self.positions) if live else 0)
        made = min(self.most, spare // self.bytes(round_up(positions, GROW)))
        if not live and positions <= self.positions:
            made = max(made, self.slots)
        return made if live else max(1, made)

    def reserve(self, positions: int, live: int) -> None:
        """Room for this many positions in every slot; the first `live` slots keep what they hold."""
        slots = self.room(positions, live)
        if positions <= self.positions and slots == self.slots:
            return
        old, before = (self.keys, self.values) if live else (), self.positions
        self.slots = self.positions = 0
        self.keys, self.values = self._make()  # what nobody needs goes before the new is made
        self.slots, self.positions = slots, round_up(positions, GROW)
        self.keys, self.values = self._make()
        for new, given in zip((self.keys, self.values), old, strict=False):
            kept = given.view(given.shape[0], -1, before, *given.shape[2:])
            self.by_slot(new)[:, :live, :before] = kept[:, :live]

    def spare(self, positions: int, live: int) -> int:
        """What is left of `memory`, before and after `reserve`."""
        slots = self.room(positions, live)
        if positions <= self.positions and slots == self.slots:
            return self.memory - self.nbytes
        held = self.nbytes if live else 0
        return self.memory - held - slots * self.bytes(round_up(positions, GROW))

    def save(self, slot: int, positions: int) -> Sides:
        """[layers, positions, heads, d] of a slot's first positions, twice."""
        keys, values = (self.by_slot(side)[:, slot, :positions].clone() for side in (self.keys, self.values))
        return keys, values

    def load(self, slots: Sequence[int], prefix: Prefix) -> None:
        """Into the first positions of some slots."""
        for side, saved in zip((self.keys, self.values), prefix.sides, strict=True):
            for slot in slots:
                self.by_slot(side)[:, slot, : prefix.length] = saved[:, : prefix.length]

    def by_slot(self, side: Tensor) -> Tensor:
        """[layers, slots, positions, heads, d]"""
        return side.view(side.shape[0], self.slots, self.positions, *side.shape[2:])

    def move(self, to: Sequence[int], origin: Sequence[int]) -> None:
        """Copy whole slots into others."""
        self.copy(to, origin, self.positions)

    def wipe(self, slots: Sequence[int]) -> None:
        """Nothing to do: positions that a row has not reached are never read."""

    def copy(self, to: Sequence[int], origin: Sequence[int], positions: int) -> None:
        """The first positions of some slots into others, a few at a time: they are held twice meanwhile."""
        for start in range(0, len(to), COPIED):
            few = slice(start, start + COPIED)
            for side in (self.by_slot(self.keys), self.by_slot(self.values)):
                side[:, to[few], :positions] = side[:, origin[few], :positions]


class SlotPrefillAttention:
    """Attention of prompts' new tokens, sequence j of the layout in slot `slots[j]`, which holds what of it is known."""

    def __init__(self, layout: Layout, cache: SlotCache, slots: Sequence[int], device: torch.device) -> None:
        self.cache = cache
        begins = torch.tensor(slots) * cache.positions
        sequence, place = ragged(layout.lengths - layout.known)
        self.longest = int(layout.sizes.max())
        self.origin = layout.origin.to(device)
        self.cells = (begins[sequence] + layout.known[sequence] + place).to(device)
        self.starts_q = cumulative_lengths(layout.sizes).to(device)
        self.starts_k = torch.cat([begins, begins[-1:]]).to(device, torch.int32)
        self.used = layout.lengths.to(device, torch.int32)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys.index_copy_(0, self.cells, k.index_select(0, self.origin))
        values.index_copy_(0, self.cells, v.index_select(0, self.origin))
        out = flash_attention_slots(
            q, keys, values, self.starts_q, self.starts_k, self.longest, self.cache.positions, self.used, scale
        )
        return out[None]


class SlotDecodeAttention:
    """One new token a row: its key and value join the cache, its query looks at all keys of its own slot."""

    def __init__(self, cache: SlotCache, length: Tensor) -> None:
        self.cache, self.length = cache, length

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = (x[:, :, 0] for x in (q, k, v))
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        from marft.engines.kernels import attend_step

        return attend_step(q, k, v, keys, values, self.length, self.cache.positions, scale)[:, None]


def flash_attention_slots(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    starts_q: Tensor,
    starts_k: Tensor,
    most_q: int,
    most_k: int,
    used: Tensor,
    scale: float,
) -> Tensor:
    """q [M, H, d] over keys [N, G, d] → [M, H, d]. Sequence j has the queries from starts_q[j] to starts_q[j + 1], which
    are the last of its used[j] positions, and keys from starts_k[j] on."""
    causal = most_q > 1
    found = torch.ops.aten._flash_attention_forward(
        q, keys, values, starts_q, starts_k, most_q, most_k, 0.0, causal, False, scale=scale, seqused_k=used
    )
    out: Tensor = found[0]
    return out
