"""Batched generation in this process, on the very tensors the learner trains: no copy, no weight sync.

Requests wait in a queue; rows that finish leave the batch and waiting ones enter it. Live rows are kept dense at the
front of the cache, so that every decode step works on views of it. Each row has its own adapter and sampling settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import torch
from torch import Tensor

from marft.engines.cache import Cache, Decode, Prefill
from marft.engines.sampling import draw, temper, truncate, uniform
from marft.engines.stopping import cut
from marft.engines.suspects import Suspects
from marft.models.loading import render
from marft.models.lora import Mask
from marft.models.team import TeamModel, segments
from marft.types import Completion, Message, PromptTooLong, Request

PREFILL_TOKENS = 8192  # of one prefill pass
Settled = Callable[[], Awaitable[None]]


async def at_once() -> None:
    """Nothing to wait for."""


class Rows:
    """What the engine knows of each live row, one entry a row in every tensor."""

    def __init__(self, slots: int, device: torch.device) -> None:
        def column(dtype: torch.dtype) -> Tensor:
            return torch.zeros(slots, dtype=dtype, device=device)

        self.adapter, self.seed = column(torch.int64), column(torch.int64)
        self.length = column(torch.int64)  # keys in the cache
        self.count, self.limit = column(torch.int64), column(torch.int64)  # tokens drawn, and the most to draw
        self.temperature, self.top_p = column(torch.float32), column(torch.float32)
        self.top_k, self.stop = column(torch.int64), column(torch.int64)  # the latter: which row of the suspects' table
        self.ids = torch.zeros(slots, 0, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(slots, 0, dtype=torch.float32, device=device)

    def move(self, to: Tensor, origin: Tensor) -> None:
        for tensor in vars(self).values():
            tensor[to] = tensor[origin]

    def reserve(self, tokens: int) -> None:
        missing = tokens - self.ids.shape[1]
        if missing > 0:
            self.ids = torch.nn.functional.pad(self.ids, (0, missing))
            self.logprobs = torch.nn.functional.pad(self.logprobs, (0, missing))


class LocalEngine:
    """`generate` from any number of coroutines; the first one to wait drives the batch for all.

    Before every step it waits for what its callers still expect from elsewhere (`settled`), so that who enters the batch
    when does not depend on anybody's speed.
    """

    def __init__(self, team: TeamModel, slots: int, settled: Settled = at_once) -> None:
        self.team, self.slots, self.settled = team, slots, settled
        self.version = 0
        self.tokens = 0  # drawn so far
        self.rows = Rows(slots, team.device)
        self.cache = Cache(slots)
        self.masks = team.lora.masks(team.device)
        self.suspects = Suspects(team)
        self.ends = torch.tensor(sorted(team.end_ids), device=team.device)
        self.waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self.live: list[tuple[Request, asyncio.Future[Completion]]] = []
        self.driver: asyncio.Task[None] | None = None
        self.encoded: dict[tuple[Message, ...], tuple[int, ...]] = {}

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        key = tuple(messages)
        if key not in self.encoded:
            if len(self.encoded) > 4096:
                self.encoded.clear()
            self.encoded[key] = render(self.team.tokenizer, messages)
        return self.encoded[key]

    async def generate(self, request: Request) -> Completion:
        if len(request.prompt_ids) >= self.team.longest:
            raise PromptTooLong(f"the prompt has {len(request.prompt_ids)} tokens, the model reads {self.team.longest}")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self._drive())
        return await future

    async def _drive(self) -> None:
        try:
            while self.waiting or self.live:
                await asyncio.sleep(0)  # let those who were answered ask again, so that they enter together
                await self.settled()
                with torch.no_grad():
                    self._admit()
                    self._step()
        except BaseException as error:
            for _, future in (*self.waiting, *self.live):
                if not future.done():
                    future.set_exception(error)
            self.waiting, self.live = [], []
            self.cache = Cache(self.slots)  # NaN left in it would reach later rows through their masked positions
            if not isinstance(error, Exception):  # an exception has reached those who wait; nobody waits for the driver
                raise

    def _admit(self) -> None:
        """Fill free slots, unless so few wait that their prefill would cost more than their seats are worth."""
        free = self.slots - len(self.live)
        if not self.waiting or min(free, len(self.waiting)) <= len(self.live) // 8:
            return
        batch = self.waiting[:free]
        prompts: dict[tuple[int, tuple[int, ...]], list[int]] = {}  # equal prompts are computed once
        for j, (request, _) in enumerate(batch):
            prompts.setdefault((self._adapter(request), request.prompt_ids), []).append(j)
        ordered = sorted(prompts.items(), key=lambda item: len(item[0][1]))
        while ordered:
            longest, take = 0, 0
            for (_, ids), _ in ordered:
                longest = max(longest, len(ids))
                if take and longest * (take + 1) > PREFILL_TOKENS:
                    break
                take += 1
            chunk, ordered = sorted(ordered[:take], key=lambda item: item[0]), ordered[take:]
            self._prefill([key for key, _ in chunk], [[batch[j] for j in members] for _, members in chunk])
        del self.waiting[: len(batch)]  # only now: a prefill that fails must still find who waits for it

    def _adapter(self, request: Request) -> int:
        return len(self.masks) - 1 if request.adapter is None else self.team.lora.index[request.adapter]

    def _prefill(
        self,
        prompts: Sequence[tuple[int, tuple[int, ...]]],
        members: Sequence[Sequence[tuple[Request, asyncio.Future[Completion]]]],
    ) -> None:
        entering = [entry for group in members for entry in group]
        device, start = self.team.device, len(self.live)
        slots = torch.arange(start, start + len(entering), device=device)
        source = torch.tensor([i for i, group in enumerate(members) for _ in group], device=device)
        requests = [request for request, _ in entering]
        limits = [min(r.sampling.max_tokens, self.team.longest - len(r.prompt_ids)) for r in requests]
        self.cache.reserve(max(len(r.prompt_ids) + n for r, n in zip(requests, limits, strict=True)))
        self.rows.reserve(max(limits))

        base = len(self.masks) - 1
        attend = Prefill(prompts, self.cache, slots, source)
        routing = segments([None if adapter == base else adapter for adapter, _ in prompts], attend.sizes)
        hidden = self.team.hidden(attend.ids, attend.position_ids, attend, routing)
        logits = self.team.logits(hidden[0, attend.last])[source]

        rows = self.rows
        rows.adapter[slots] = torch.tensor([prompts[i][0] for i in source.tolist()], device=device)
        rows.seed[slots] = torch.tensor([r.seed for r in requests], device=device)
        rows.length[slots] = torch.tensor([len(r.prompt_ids) for r in requests], device=device)
        rows.count[slots] = 0
        rows.limit[slots] = torch.tensor(limits, device=device)
        real = torch.float32  # said, because a temperature of 0 or a top_p of 1 may come as integers
        rows.temperature[slots] = torch.tensor([r.sampling.temperature for r in requests], dtype=real, device=device)
        rows.top_p[slots] = torch.tensor([r.sampling.top_p for r in requests], dtype=real, device=device)
        rows.top_k[slots] = torch.tensor([r.sampling.top_k for r in requests], device=device)
        rows.stop[slots] = torch.tensor([self.suspects.row(r.sampling.stop) for r in requests], device=device)
        self.live += entering
        self._draw(logits, slots)

    def _step(self) -> None:
        """Answer finished rows, then one token for each of the others."""
        self._release()
        n = len(self.live)
        if not n:
            return
        rows = self.rows
        attend = Decode(self.cache, rows.length[:n])
        ids = rows.ids[:n].gather(1, rows.count[:n, None] - 1)
        routing = Mask(self.masks[rows.adapter[:n]])
        hidden = self.team.hidden(ids, rows.length[:n, None], attend, routing)
        rows.length[:n] += 1
        self._draw(self.team.logits(hidden[:, 0]), torch.arange(n, device=self.team.device))

    def _draw(self, logits: Tensor, slots: Tensor) -> None:
        rows = self.rows
        logits = temper(logits, rows.temperature[slots])
        if any(r.sampling.top_k or r.sampling.top_p < 1 for r, _ in self.live):
            logits = truncate(logits, rows.top_k[slots], rows.top_p[slots])
        step = rows.count[slots]
        token, logprob = draw(logits, rows.temperature[slots] == 0, uniform(rows.seed[slots], step))
        rows.ids[slots, step] = token
        rows.logprobs[slots, step] = logprob
        rows.count[slots] += 1
        self.tokens += len(slots)

    def _release(self) -> None:
        """Answer the rows that are done and close the gaps they leave."""
        n, rows = len(self.live), self.rows
        if not n:
            return
        last = rows.ids[:n].gather(1, rows.count[:n, None] - 1)[:, 0]
        ended = torch.isin(last, self.ends)
        full = rows.count[:n] >= rows.limit[:n]
        look = (ended | full | self.suspects.table[rows.stop[:n], last]).nonzero()[:, 0]
        done = self._answer(look, ended[look], full[look]) if len(look) else []
        if not done:
            return
        gone = set(done)
        left = n - len(done)
        holes = [row for row in done if row < left]
        movers = [row for row in range(left, n) if row not in gone]
        if holes:
            to, origin = (torch.tensor(side, device=self.team.device) for side in (holes, movers))
            self.rows.move(to, origin)
            self.cache.move(to, origin)
            for hole, mover in zip(holes, movers, strict=True):
                self.live[hole] = self.live[mover]
        del self.live[left:]

    def _answer(self, look: Tensor, ended: Tensor, full: Tensor) -> list[int]:
        """Hand the tokens of the rows that are done to whoever asked, and say which these were.

        What all rows hold is read from the device at once.
        """
        rows = self.rows
        columns = (look, rows.count[look], rows.ids[look], rows.logprobs[look], ended, full)
        done: list[int] = []
        for row, count, ids, logprobs, at_end, at_limit in zip(*(column.tolist() for column in columns), strict=True):
            request, future = self.live[row]
            if future.done():  # whoever asked has gone
                done.append(row)
                continue
            text = self.team.tokenizer.decode(ids[: count - at_end], skip_special_tokens=True)
            text, stop = cut(text, request.sampling.stop)
            if stop is None and not (at_end or at_limit):
                continue
            done.append(row)
            future.set_result(
                Completion(
                    text=text,
                    token_ids=tuple(ids[:count]),
                    logprobs=tuple(logprobs[:count]),
                    finish="length" if stop is None and not at_end else "stop",
                    version=self.version,
                    stop=stop,
                )
            )
        return done
