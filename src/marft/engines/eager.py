"""Passes over prompts and single steps in torch's own operations, on any device and for any model.

It is what CPUs run, and the reference for what CUDA graphs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from marft.engines.batch_state import BatchState
from marft.engines.kept_keys import Prompt
from marft.engines.kv_cache import Cache, ContinuedPrefillAttention, DecodeAttention, KVCache, PrefillAttention
from marft.models.attention import AttentionFn
from marft.models.layout import AdapterTokens, Layout, sharing_order
from marft.models.lora import Routing
from marft.models.team import TeamModel

PREFILL_TOKENS = 8192  # of one pass over prompts, padding included
COPIED_TOKENS = 65536  # of one pass over prompts that go on, padding and what is known included


class Stepper(Protocol):
    """How the engine's batch goes through the model. Rows that are live are dense at the front."""

    burst: int  # steps between two looks at who is done

    @property
    def cache(self) -> Cache:
        """Where the rows' keys and values are."""
        ...

    def passes(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Which prompts go through the model together, each pass in the order in which they share most."""
        ...

    def read(self, prompts: Sequence[Prompt], seats: range, source: Sequence[int]) -> Tensor:
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

    def passes(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Of like length, since they are padded; those of which nothing is known by themselves. The others' keys are copied
        out of the cache, as many as the longest has."""
        cut: list[list[int]] = []
        longest = 0  # of the last pass
        for i in sorted(range(len(prompts)), key=lambda i: (prompts[i].known > 0, prompts[i].rest)):
            prompt, rows = prompts[i], 1 + (len(cut[-1]) if cut else 0)
            longest = max(longest, len(prompt.tokens[1]))
            fits = cut and prompt.rest * rows <= PREFILL_TOKENS
            if prompt.known:
                fits = fits and prompts[cut[-1][0]].known > 0 and longest * rows <= COPIED_TOKENS
            if not fits:
                cut.append([])
                longest = len(prompt.tokens[1])
            cut[-1].append(i)
        return [[chunk[i] for i in sharing_order([prompts[i].tokens for i in chunk])] for chunk in cut]

    def read(self, prompts: Sequence[Prompt], seats: range, source: Sequence[int]) -> Tensor:
        """Every prompt in one pass; its keys and values go to each seat that asked with it."""
        for i, prompt in enumerate(prompts):
            if prompt.prefix is not None:
                self.cache.load([seat for seat, j in zip(seats, source, strict=True) if j == i], prompt.prefix)
        sequences, whose = [prompt.tokens for prompt in prompts], torch.tensor(source, device=self.team.device)
        layout = Layout.of(sequences, known=[prompt.known for prompt in prompts])
        attention = ContinuedPrefillAttention if layout.known.any() else PrefillAttention
        attend = attention(layout, self.cache, slice(seats.start, seats.stop), whose)
        return self.team.logits(read_prompts(self.team, sequences, layout, attend))[whose]

    def step(self, n: int, stop_tokens: Tensor, *, truncated: bool) -> None:
        """One more token for the first n rows."""
        attend = DecodeAttention(self.cache, self.rows.length[:n])
        sample_next_tokens(self.team, self.rows, n, attend, stop_tokens, truncated=truncated)


def read_prompts(team: TeamModel, sequences: Sequence[AdapterTokens], layout: Layout, attend: AttentionFn) -> Tensor:
    """Last hidden states [sequences, D] of a pass over their layout."""
    routing = team.routing([adapter for adapter, _ in sequences], layout.sizes.tolist())
    ids, positions, last = (x.to(team.device) for x in (layout.ids, layout.positions, layout.last))
    hidden: Tensor = team(ids[None], positions[None], attend, routing)
    return hidden[0, last]


def sample_next_tokens(
    team: TeamModel, rows: BatchState, n: int, attend: AttentionFn, stop_tokens: Tensor, *, truncated: bool
) -> None:
    """One more token for the first n rows, each through its own adapter."""
    hidden = team(rows.token[:n, None], rows.length[:n, None], attend, Routing(team.masks[rows.adapter[:n]]))
    rows.length[:n] += ~rows.idle[:n]
    rows.sample(team.logits(hidden[:, 0]), slice(n), stop_tokens, truncated=truncated)
