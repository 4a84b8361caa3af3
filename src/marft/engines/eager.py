"""Passes over prompts and single steps in torch's own operations, on any device and for any model.

It is what CPUs run, and the reference for what CUDA graphs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from marft.engines.batch_state import BatchState
from marft.engines.kv_cache import DecodeAttention, KVCache, PrefillAttention
from marft.models.attention import AttentionFn
from marft.models.layout import AdapterTokens, Layout, sharing_order
from marft.models.lora import Routing
from marft.models.team import TeamModel

PREFILL_TOKENS = 8192  # of one pass over prompts, padding included


class Stepper(Protocol):
    """How the engine's batch goes through the model. Rows that are live are dense at the front."""

    burst: int  # steps between two looks at who is done

    @property
    def held(self) -> int:
        """Bytes of keys and values."""
        ...

    def room(self, positions: int, live: int) -> int:
        """How many rows of this length fit, while so many are live."""
        ...

    def reserve(self, positions: int, live: int) -> None:
        """Room for rows of this length; the first `live` rows keep what they hold."""
        ...

    def move(self, to: Sequence[int], origin: Sequence[int]) -> None:
        """Copy the keys and values of some rows into others."""
        ...

    def wipe(self, seats: Sequence[int]) -> None:
        """No NaN in what these rows held reaches whoever has their seats next."""
        ...

    def passes(self, prompts: Sequence[AdapterTokens]) -> list[list[int]]:
        """Which prompts go through the model together, each pass in the order in which they share most."""
        ...

    def read(self, prompts: Sequence[AdapterTokens], seats: range, source: Sequence[int]) -> Tensor:
        """Logits [seats, V] after prompt `source[j]` of seat j, whose keys are in the cache then."""
        ...

    def step(self, n: int, stop_tokens: Tensor, *, truncated: bool) -> None:
        """One more token for the first n rows."""
        ...


class EagerStepper:
    """A `Stepper` that launches every operation by itself."""

    burst = 1

    def __init__(self, team: TeamModel, rows: BatchState) -> None:
        self.team, self.rows = team, rows
        self.cache = KVCache(len(rows.idle))

    @property
    def held(self) -> int:
        """Bytes of keys and values."""
        return sum(side.nbytes for side in (*self.cache.keys.values(), *self.cache.values.values()))

    def room(self, positions: int, live: int) -> int:
        """As many rows as the batch has: the cache grows as it must."""
        return self.cache.slots

    def reserve(self, positions: int, live: int) -> None:
        """Room for rows of this length."""
        self.cache.reserve(positions)

    def move(self, to: Sequence[int], origin: Sequence[int]) -> None:
        """Copy the keys and values of some rows into others."""
        self.cache.move(to, origin)

    def wipe(self, seats: Sequence[int]) -> None:
        """Zero what these rows held."""
        self.cache.wipe(seats)

    def passes(self, prompts: Sequence[AdapterTokens]) -> list[list[int]]:
        """Of like length, since they are padded."""
        cut: list[list[int]] = []
        for i in sorted(range(len(prompts)), key=lambda i: len(prompts[i][1])):
            if not cut or len(prompts[i][1]) * (len(cut[-1]) + 1) > PREFILL_TOKENS:
                cut.append([])
            cut[-1].append(i)
        return [[chunk[i] for i in sharing_order([prompts[i] for i in chunk])] for chunk in cut]

    def read(self, prompts: Sequence[AdapterTokens], seats: range, source: Sequence[int]) -> Tensor:
        """Every prompt in one pass; its keys and values go to each seat that asked with it."""
        device = self.team.device
        layout, whose = Layout.of(prompts), torch.tensor(source, device=device)
        attend = PrefillAttention(layout, self.cache, slice(seats.start, seats.stop), whose)
        routing = self.team.routing([adapter for adapter, _ in prompts], layout.sizes.tolist())
        ids, positions, last = (x.to(device) for x in (layout.ids, layout.positions, layout.last))
        hidden = self.team(ids[None], positions[None], attend, routing)
        return self.team.logits(hidden[0, last])[whose]

    def step(self, n: int, stop_tokens: Tensor, *, truncated: bool) -> None:
        """One more token for the first n rows."""
        attend = DecodeAttention(self.cache, self.rows.length[:n])
        sample_next_tokens(self.team, self.rows, n, attend, stop_tokens, truncated=truncated)


def sample_next_tokens(
    team: TeamModel, rows: BatchState, n: int, attend: AttentionFn, stop_tokens: Tensor, *, truncated: bool
) -> None:
    """One more token for the first n rows, each through its own adapter."""
    hidden = team(rows.token[:n, None], rows.length[:n, None], attend, Routing(team.masks[rows.adapter[:n]]))
    rows.length[:n] += ~rows.idle[:n]
    rows.sample(team.logits(hidden[:, 0]), slice(n), stop_tokens, truncated=truncated)
