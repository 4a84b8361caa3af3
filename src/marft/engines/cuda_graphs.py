"""Decode steps as CUDA graphs: a whole step, from the last tokens to the drawn ones, is one launch.

One graph a batch size of a short list; it reads and writes the engine's own tensors, so a replay needs no arguments.
Rows beyond the live ones are idle. Where one of these tensors has grown and lies elsewhere, graphs are captured anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from marft.engines.batch_state import BatchState
from marft.engines.eager import read_prompts, sample_next_tokens
from marft.engines.kept_keys import Prompt
from marft.engines.slot_cache import SlotCache, SlotDecodeAttention, SlotPrefillAttention
from marft.models.decoder import Decoder
from marft.models.layout import AdapterTokens, Layout, shared_prefix_lengths, sharing_order, spared_lengths
from marft.models.team import TeamModel

PREFILL_TOKENS = 32768  # of one pass over prompts
SMALLEST = 8  # rows of the smallest graph


class CudaGraphStepper:
    """A `Stepper` whose decode steps are CUDA graphs, on a cache of slots."""

    burst = 8  # steps between two looks at who is done: a look waits for the device

    def __init__(self, team: TeamModel, decoder: Decoder, rows: BatchState, memory: int) -> None:
        self.team, self.decoder, self.rows = team, decoder, rows
        self.cache = SlotCache(decoder, len(rows.idle), memory)
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self.known: list[tuple[int, torch.Size]] = []  # where the tensors lie that the graphs read and write

    # --- prompts -----------------------------------------------------------------------------------------------------
    def passes(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Sorted as a whole, so that prompts with a common beginning are neighbours, and cut by new tokens."""
        order = sharing_order([prompt.tokens for prompt in prompts])
        shared = shared_prefix_lengths([prompts[i].tokens for i in order])
        spared = spared_lengths(shared, torch.tensor([prompts[i].known for i in order]))
        cut: list[list[int]] = []
        used = 0
        for i, old in zip(order, spared.tolist(), strict=True):
            prompt = prompts[i]
            new = len(prompt.tokens[1]) - old
            if not cut or used + new > PREFILL_TOKENS:
                cut.append([])
                used = old - prompt.known  # what it shares lies in another pass
            cut[-1].append(i)
            used += new
        return cut

    def read(self, prompts: Sequence[Prompt], seats: range, source: Sequence[int]) -> Tensor:
        """Every prompt is read once, into its first seat, and copied to its others."""
        first: dict[int, int] = {}
        for seat, i in zip(seats, source, strict=True):
            first.setdefault(i, seat)
        slots = [first[i] for i in range(len(prompts))]
        for slot, prompt in zip(slots, prompts, strict=True):
            if prompt.prefix is not None:
                self.cache.load([slot], prompt.prefix)
        sequences, known = [prompt.tokens for prompt in prompts], [prompt.known for prompt in prompts]
        [(adapter, ids), *others] = sequences
        while not others and len(ids) - known[0] > PREFILL_TOKENS:  # one that is too long for a pass comes in parts
            end = known[0] + PREFILL_TOKENS
            self._pass([(adapter, ids[:end])], slots, known)
            known = [end]
        hidden = self._pass(sequences, slots, known)
        copies = [(seat, first[i]) for seat, i in zip(seats, source, strict=True) if seat != first[i]]
        longest = max((len(sequences[source[seat - seats.start]][1]) for seat, _ in copies), default=0)
        self.cache.copy([seat for seat, _ in copies], [origin for _, origin in copies], longest)
        return self.team.logits(hidden)[torch.tensor(source, device=self.team.device)]

    def _pass(self, sequences: Sequence[AdapterTokens], slots: Sequence[int], known: Sequence[int]) -> Tensor:
        """Last hidden states [sequences, D]; so many first keys of each are in its slot already."""
        layout = Layout.of(sequences, known=known)
        attend = SlotPrefillAttention(layout, self.cache, slots, self.team.device)
        return read_prompts(self.team, sequences, layout, attend)

    # --- steps -------------------------------------------------------------------------------------------------------
    def step(self, n: int, stop_tokens: Tensor, *, truncated: bool) -> None:
        """One more token for the first n rows, by the graph of their size."""
        size = self.size(n)
        known = [(x.data_ptr(), x.shape) for x in (*self.rows.columns, self.cache.keys, self.cache.values, stop_tokens)]
        if known != self.known:
            self.graphs.clear()
            self.known = known
        if (size, truncated) not in self.graphs:
            self.graphs[size, truncated] = self._capture(size, stop_tokens, truncated)
        self.graphs[size, truncated].replay()

    def size(self, n: int) -> int:
        """Rows of the graph that serves n."""
        return min(graph_size(n), self.cache.slots)

    @cached_property
    def stream(self) -> torch.cuda.Stream:
        """The stream on which graphs are captured."""
        return torch.cuda.Stream(self.team.device)

    def _capture(self, n: int, stop_tokens: Tensor, truncated: bool) -> torch.cuda.CUDAGraph:
        """While all rows are idle a step changes nothing that counts, so it may be tried first."""
        idle = self.rows.idle.clone()
        self.rows.idle.fill_(True)
        graph, pool = torch.cuda.CUDAGraph(), next((known.pool() for known in self.graphs.values()), None)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._step(n, stop_tokens, truncated)
        with torch.cuda.graph(graph, pool=pool, stream=self.stream):
            self._step(n, stop_tokens, truncated)
        self.rows.idle.copy_(idle)
        return graph

    def _step(self, n: int, stop_tokens: Tensor, truncated: bool) -> None:
        attend = SlotDecodeAttention(self.cache, self.rows.length[:n])
        sample_next_tokens(self.team, self.rows, n, attend, stop_tokens, truncated=truncated)


def graph_size(rows: int) -> int:
    """The smallest of 8, 12, 16, 24, 32, 48, … that is enough."""
    size = SMALLEST
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size
