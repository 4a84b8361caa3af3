"""Decode steps as CUDA graphs: a whole step, from the last tokens to the drawn ones, is one launch.

One graph a batch size of a short list; it reads and writes the engine's own tensors, so a replay needs no arguments.
Rows beyond the live ones are idle. Where one of these tensors has grown and lies elsewhere, graphs are captured anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marft.engines.rows import Rows
from marft.engines.slots import SlotCache, SlotDecode, SlotPrefill
from marft.engines.stepwise import advance
from marft.models.decoder import Decoder
from marft.models.layout import Layout, Sequenced, in_common, ordered
from marft.models.team import TeamModel

PREFILL_TOKENS = 32768  # of one pass over prompts
COPIED = 128  # slots copied at once
SMALLEST = 8  # rows of the smallest graph


class Captured:
    burst = 8  # steps between two looks at who is done: a look waits for the device

    def __init__(self, team: TeamModel, decoder: Decoder, rows: Rows, memory: int) -> None:
        self.team, self.decoder, self.rows = team, decoder, rows
        self.cache = SlotCache(decoder, len(rows.idle), memory)
        self.masks = team.lora.masks(team.device)
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self.captured_at: list[int] = []  # where the tensors lay that the graphs know

    def room(self, positions: int) -> int:
        return self.cache.room(max(positions, self.cache.positions))

    def reserve(self, positions: int, live: int) -> None:
        self.cache.reserve(positions, live)

    def move(self, to: Tensor, origin: Tensor) -> None:
        self.cache.copy(to, origin, self.cache.positions)

    # --- prompts -----------------------------------------------------------------------------------------------------
    def passes(self, prompts: Sequence[Sequenced]) -> list[list[int]]:
        """Sorted as a whole, so that prompts with a common beginning are neighbours, and cut by new tokens."""
        order = ordered(prompts)
        common = in_common([prompts[i] for i in order]).tolist()
        cut: list[list[int]] = []
        used = 0
        for i, shared in zip(order, common, strict=True):
            size = len(prompts[i][1])
            if not cut or used + size - shared > PREFILL_TOKENS:
                cut.append([])
                used = shared  # what it shares lies in another pass
            cut[-1].append(i)
            used += size - shared
        return cut

    def read(self, prompts: Sequence[Sequenced], seats: range, source: Sequence[int]) -> Tensor:
        """Every prompt is read once, into its first seat, and copied to its others."""
        first: dict[int, int] = {}
        for seat, prompt in zip(seats, source, strict=True):
            first.setdefault(prompt, seat)
        slots = [first[i] for i in range(len(prompts))]
        [(adapter, ids), *others] = prompts
        begin = 0
        while not others and len(ids) - begin > PREFILL_TOKENS:  # one that is too long for a pass comes in parts
            self._pass([(adapter, ids[begin : begin + PREFILL_TOKENS])], slots, begin)
            begin += PREFILL_TOKENS
        hidden = self._pass([(adapter, ids[begin:]), *others], slots, begin)
        copies = [(seat, first[prompt]) for seat, prompt in zip(seats, source, strict=True) if seat != first[prompt]]
        for start in range(0, len(copies), COPIED):
            to, origin = zip(*copies[start : start + COPIED], strict=True)
            self.cache.copy(list(to), list(origin), max(len(ids) for _, ids in prompts))
        return self.team.logits(hidden)[torch.tensor(source, device=self.team.device)]

    def _pass(self, prompts: Sequence[Sequenced], slots: Sequence[int], begin: int) -> Tensor:
        """Last hidden states [prompts, D]; the tokens given stand at the positions from `begin` on."""
        device, layout = self.team.device, Layout.of(prompts)
        attend = SlotPrefill(layout, self.cache, slots, device, begin)
        routing = self.team.routing([adapter for adapter, _ in prompts], layout.sizes.tolist())
        ids, positions, last = (x.to(device) for x in (layout.ids, layout.positions + begin, layout.last))
        return self.team.hidden(ids[None], positions[None], attend, routing)[0, last]

    # --- steps -------------------------------------------------------------------------------------------------------
    def step(self, n: int, suspects: Tensor, *, truncated: bool) -> None:
        size = min(graph_size(n), self.cache.room(self.cache.positions))
        lies = [x.data_ptr() for x in (*self.rows.columns, self.cache.keys, self.cache.values, suspects)]
        if lies != self.captured_at:
            self.graphs.clear()
            self.captured_at = lies
        if (size, truncated) not in self.graphs:
            self.graphs[size, truncated] = self._capture(size, suspects, truncated)
        self.graphs[size, truncated].replay()

    def _capture(self, n: int, suspects: Tensor, truncated: bool) -> torch.cuda.CUDAGraph:
        """While all rows are idle a step changes nothing that counts, so it may be tried first."""
        idle = self.rows.idle.clone()
        self.rows.idle.fill_(True)
        graph, pool = torch.cuda.CUDAGraph(), next((known.pool() for known in self.graphs.values()), None)
        stream = torch.cuda.Stream(self.team.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(n, suspects, truncated)
            torch.cuda.synchronize()
            graph.capture_begin(pool=pool)
            self._step(n, suspects, truncated)
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self.rows.idle.copy_(idle)
        return graph

    def _step(self, n: int, suspects: Tensor, truncated: bool) -> None:
        attend = SlotDecode(self.cache, self.rows.length[:n])
        advance(self.team, self.masks, self.rows, n, attend, suspects, truncated=truncated)


def graph_size(rows: int) -> int:
    """The smallest of 8, 12, 16, 24, 32, 48, … that is enough."""
    size = SMALLEST
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
