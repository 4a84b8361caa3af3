"""What the engine knows of each row of its batch, one entry a row in every tensor, and how a drawn token changes it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from marft.engines.kv_cache import round_up
from marft.engines.sampling import apply_temperature, sample_seeded, truncate_logits
from marft.types import Request

GROW = 64  # room for drawn tokens grows in steps of this many


class BatchState:
    """Tensors with an entry a row. Rows that are `idle` draw nothing that counts: seats that nobody has, and rows that may
    be done until someone looks."""

    def __init__(self, slots: int, device: torch.device, ends: Collection[int]) -> None:
        def column(dtype: torch.dtype) -> Tensor:
            return torch.zeros(slots, dtype=dtype, device=device)

        self.adapter, self.seed = column(torch.int64), column(torch.int64)
        self.length = column(torch.int64)  # keys in the cache
        self.token = column(torch.int64)  # the last one drawn, whose key is not in the cache yet
        self.count, self.limit = column(torch.int64), column(torch.int64)  # tokens drawn, and the most to draw
        self.temperature, self.top_p = column(torch.float32), column(torch.float32)
        self.top_k, self.stop = (
            column(torch.int64),
            column(torch.int64),
        )  # the latter: its row of the stop tokens' table
        self.idle = torch.ones(slots, dtype=torch.bool, device=device)
        self.ids = torch.zeros(slots, 1, dtype=torch.int64, device=device)  # one column more than anybody may draw
        self.logprobs = torch.zeros(slots, 1, dtype=torch.float32, device=device)
        self._ends = torch.tensor(sorted(ends), device=device)

    @property
    def columns(self) -> list[Tensor]:
        """All tensors with an entry a row."""
        return [tensor for name, tensor in vars(self).items() if not name.startswith("_")]

    def move(self, to: Sequence[int], origin: Sequence[int]) -> None:
        """Copy rows `origin` into rows `to`."""
        for tensor in self.columns:
            tensor[list(to)] = tensor[list(origin)]

    def reserve(self, tokens: int) -> None:
        """Room for this many sampled tokens a row."""
        missing = tokens + 1 - self.ids.shape[1]
        if missing > 0:
            more = (0, round_up(missing, GROW))
            self.ids, self.logprobs = (torch.nn.functional.pad(each, more) for each in (self.ids, self.logprobs))

    def enter(
        self,
        seats: slice,
        requests: Sequence[Request],
        adapters: Sequence[int],
        limits: Sequence[int],
        stops: Sequence[int],
    ) -> None:
        """Requests take their seats; their prompts' keys are, or will be, in the cache."""
        whole = {
            "adapter": adapters,
            "seed": [request.seed for request in requests],
            "length": [len(request.prompt_ids) for request in requests],
            "limit": limits,
            "stop": stops,
            "top_k": [request.sampling.top_k for request in requests],
        }
        real = {
            "temperature": [request.sampling.temperature for request in requests],
            "top_p": [request.sampling.top_p for request in requests],
        }
        for numbers, dtype in ((whole, torch.int64), (real, torch.float32)):
            table = torch.tensor(list(numbers.values()), dtype=dtype).to(self.idle.device)
            for name, column in zip(numbers, table, strict=True):
                getattr(self, name)[seats] = column
        self.count[seats] = 0
        self.idle[seats] = False

    def leave(self, seats: slice) -> None:
        """Nobody has these seats any more. A step writes a key for idle rows too, at their length, and the next cache's slots
        may be shorter."""
        self.idle[seats] = True
        self.length[seats] = 0

    def sample(self, logits: Tensor, seats: slice, stop_tokens: Tensor, *, truncated: bool) -> None:
        """A token for each of these rows from its logits, and whether it may be the last: one whose log-prob is NaN always
        is. Nothing here waits for the device, so that it can be captured."""
        temperature, count, idle = self.temperature[seats], self.count[seats], self.idle[seats]
        if truncated:
            logits = truncate_logits(apply_temperature(logits, temperature), self.top_k[seats], self.top_p[seats])
            temperature = temperature.clamp(max=1.0).ceil()  # done already; greedy rows stay greedy
        token, logprob = sample_seeded(logits, temperature, self.seed[seats], count)
        self.ids[seats].scatter_(1, count[:, None], token[:, None])
        self.logprobs[seats].scatter_(1, count[:, None], logprob[:, None])
        self.token[seats] = torch.where(idle, self.token[seats], token)
        count += ~idle
        ended = (token[:, None] == self._ends).any(1)
        idle |= ended | (count >= self.limit[seats]) | stop_tokens[self.stop[seats], token] | logprob.isnan()
