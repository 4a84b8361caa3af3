"""Batched generation in this process, on the very base and adapters that the learner trains: no second copy of the model.

Requests wait in a queue; rows that finish leave the batch and waiting ones enter it. Live rows are kept dense at the
front. Each row has its own adapter and sampling settings. How the batch goes through the model is the stepper's: CUDA
graphs where the device and the model's family allow, else pass by pass. What a row leaves is kept for its episode's
later prompts.

Where the policy changes while rows are live, they are read again: keys of the old weights would make the next tokens
those of no policy at all.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from marft.engines.base import Adapters
from marft.engines.batch_state import BatchState
from marft.engines.eager import EagerStepper, Stepper
from marft.engines.kept_keys import KeptKeys, Prefix, Prompt
from marft.engines.stop_strings import cut_at_stop
from marft.engines.stop_tokens import StopTokens
from marft.models.attention import runs_flash
from marft.models.chat import ChatFormat, decode_texts
from marft.models.layout import AdapterTokens
from marft.models.team import TeamModel
from marft.types import (
    Completion,
    MarftError,
    PromptTooLong,
    Request,
    SpeechError,
)

Settled = Callable[[], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Entry:
    """A request and who waits for it; `policies` that drew for it, each a version and how many tokens there were before."""

    request: Request
    future: asyncio.Future[Completion]
    policies: list[tuple[int, int]] = field(default_factory=list)
    read_by: Hashable = None  # the policy of all its keys

    def runs(self, tokens: int) -> tuple[tuple[int, int], ...]:
        """Versions and how many of so many tokens each drew."""
        bounds = pairwise((*(before for _, before in self.policies), tokens))
        return tuple((version, end - start) for (version, _), (start, end) in zip(self.policies, bounds, strict=True))


async def no_wait() -> None:
    """Nothing to wait for."""


class LocalEngine:
    """`generate` from any number of coroutines; the first one to wait drives the batch for all.

    Before every step it waits for what its callers still expect from elsewhere (`settled`), so that who enters the batch
    when does not depend on anybody's speed. `memory` is the part of the device's free memory that keys may take. Of so
    many turns as `keep` says, keys are kept for the prompts that go on from them.
    """

    def __init__(
        self, team: TeamModel, slots: int, settled: Settled = no_wait, *, memory: float = 0.4, keep: int = 0
    ) -> None:
        self.team, self.slots, self.settled, self.keep = team, slots, settled, keep
        self.version = self.tokens = 0
        self.closed = False
        self.memory = int(memory * free_memory(team.device))
        self.stop_tokens = StopTokens(team)
        self.waiting: list[Entry] = []
        self.live: list[Entry] = []
        self.driver: asyncio.Task[None] | None = None
        self.encode = ChatFormat(team.tokenizer, team.end_ids).encode
        self._reset()

    def _reset(self) -> None:
        """A batch without rows, also after a failure: NaN left in an old cache would reach later rows through their masked
        positions."""
        self.spoiled = False
        self.rows = BatchState(self.slots, self.team.device, self.team.end_ids)
        self.stepper = choose_stepper(self.team, self.rows, self.memory)
        self.kept = KeptKeys(self.keep)

    async def generate(self, request: Request) -> Completion:
        """Wait in the queue for a row of the batch, and for its completion."""
        if self.closed:
            raise RuntimeError("the engine is closed")
        if len(request.prompt_ids) >= self.team.longest:
            raise PromptTooLong(len(request.prompt_ids), self.team.longest)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self.waiting.append(Entry(request=request, future=future))
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self._drive())
        return await future

    def publish(self, version: int, adapters: Adapters | None = None) -> None:
        """Steps from now on compute with what the team's tensors hold; the rest of what is under way is drawn from what a fresh
        reading of it gives."""
        if adapters is not None:
            self.team.load_adapters(adapters)
        self.version = version

    def forget(self, episode: Hashable) -> None:
        """Frees the keys that were kept for it."""
        self.kept.forget(episode)

    def close(self) -> None:
        """Frees the cache; whoever waits is told."""
        self.closed = True
        self._reset()

    async def _drive(self) -> None:
        try:
            if self.spoiled:
                self._reset()
            while self.waiting or self.live:
                await asyncio.sleep(0)  # let those who were answered ask again, so that they enter together
                await self.settled()
                if self.closed:
                    raise RuntimeError("the engine is closed")
                self.waiting = [entry for entry in self.waiting if not entry.future.done()]
                with torch.no_grad():
                    self.team.refresh()
                    self.kept.change_policy((self.version, self.team.changes))
                    if any(entry.policies[-1][0] != self.version for entry in self.live):
                        self._read_again()
                    self._admit()
                    self._step()
        except BaseException as error:
            for entry in (*self.waiting, *self.live):
                if not entry.future.done():
                    entry.future.set_exception(error)
            self.waiting, self.live, self.spoiled = [], [], True
            if not isinstance(error, Exception):  # an exception has reached those who wait; nobody waits for the driver
                raise

    def _admit(self) -> None:
        """Fill free seats, unless so few wait that their prefill would cost more than their seats are worth."""
        live, waiting = len(self.live), self.waiting[: self.slots]
        if not waiting:
            return
        longest = max(len(e.request.prompt_ids) + self._limit(e.request) for e in waiting)
        free = min(self.slots, self.stepper.cache.room(longest, live)) - live
        if min(free, len(waiting)) <= live // 8:
            return
        batch = waiting[:free]
        self.kept.shrink(self.stepper.cache.spare(longest, live))
        self.stepper.cache.reserve(longest, live)
        self.rows.reserve(max(self._limit(entry.request) for entry in batch))
        entries: dict[AdapterTokens, list[Entry]] = {}  # equal prompts are read once
        for entry in batch:
            request = entry.request
            entries.setdefault((self._adapter(request), request.prompt_ids), []).append(entry)
        prompts = [Prompt(tokens=tokens, prefix=self._find_prefix(group)) for tokens, group in entries.items()]
        for chosen in self.stepper.passes(prompts):
            self._enter([prompts[i] for i in chosen], [entries[prompts[i].tokens] for i in chosen])
        del self.waiting[: len(batch)]  # only now: a pass that fails must still find who waits for it

    def _read_again(self) -> None:
        """Keys and values of all live rows by the present weights, each pass into neighbouring seats."""
        self._release()
        if not self.live:
            return
        counts = self.rows.count[: len(self.live)].tolist()
        drawn = self.rows.ids[: len(self.live), : max(counts)].tolist()
        rows: dict[AdapterTokens, list[int]] = {}
        for row, (entry, ids, count) in enumerate(zip(self.live, drawn, counts, strict=True)):
            entry.policies.append((self.version, count))
            entry.read_by = self.kept.policy
            read = (*entry.request.prompt_ids, *ids[: count - 1])  # the last one is read by the next step
            rows.setdefault((self._adapter(entry.request), read), []).append(row)
        prompts = [Prompt(tokens=tokens) for tokens in rows]
        passes = self.stepper.passes(prompts)
        order = [row for chosen in passes for i in chosen for row in rows[prompts[i].tokens]]
        self.rows.move(range(len(order)), order)
        self.live = [self.live[row] for row in order]
        start = 0
        for chosen in passes:
            source = [place for place, i in enumerate(chosen) for _ in rows[prompts[i].tokens]]
            self.stepper.read([prompts[i] for i in chosen], range(start, start + len(source)), source)
            start += len(source)

    def _adapter(self, request: Request) -> int | None:
        """Its number; None: the base alone."""
        return None if request.adapter is None else self.team.lora.index[request.adapter]

    def _find_prefix(self, group: Sequence[Entry]) -> Prefix | None:
        """The longest that is known of the prompt that they all ask with."""
        requests = [entry.request for entry in group]
        found = [self.kept.find((each.episode, self._adapter(each)), each.prompt_ids) for each in requests]
        return max((prefix for prefix in found if prefix), key=lambda prefix: prefix.length, default=None)

    def _keep(self, row: int, ids: Sequence[int]) -> None:
        """What a row leaves that has drawn these tokens; the last one was never read."""
        entry, cache = self.live[row], self.stepper.cache
        request, owner = entry.request, (entry.request.episode, self._adapter(entry.request))
        if not self.keep or request.episode is None or entry.read_by != self.kept.policy:
            return
        read = (*request.prompt_ids, *ids[:-1])
        nbytes, room = cache.bytes(len(read)), cache.spare(0, len(self.live))
        self.kept.keep(owner, read, lambda: cache.save(row, len(read)), nbytes, room)

    def _limit(self, request: Request) -> int:
        """The most tokens to draw."""
        return min(request.sampling.max_tokens, self.team.longest - len(request.prompt_ids))

    def _enter(self, prompts: Sequence[Prompt], members: Sequence[Sequence[Entry]]) -> None:
        """Read some prompts, and draw the first token of everyone who asks with one of them."""
        entering = [entry for group in members for entry in group]
        source = [i for i, group in enumerate(members) for _ in group]
        seats = range(len(self.live), len(self.live) + len(entering))
        base = len(self.team.lora.specs)
        adapters = [base if (adapter := prompts[i].tokens[0]) is None else adapter for i in source]
        requests = [entry.request for entry in entering]
        stops = [self.stop_tokens.row(request.sampling.stop) for request in requests]
        logits = self.stepper.read(prompts, seats, source)
        where = slice(seats.start, seats.stop)
        self.rows.enter(where, requests, adapters, [self._limit(request) for request in requests], stops)
        for entry in entering:
            entry.policies.append((self.version, 0))
            entry.read_by = self.kept.policy
        self.live += entering
        self.rows.sample(logits, where, self.stop_tokens.table, truncated=self._truncated)

    @property
    def _truncated(self) -> bool:
        settings = (entry.request.sampling for entry in self.live)
        return any(sampling.top_k or sampling.top_p < 1 for sampling in settings)

    def _step(self) -> None:
        """Answer finished rows, then some tokens for each of the others."""
        self._release()
        truncated = self._truncated
        for _ in range(self.stepper.burst if self.live else 0):
            self.stepper.step(len(self.live), self.stop_tokens.table, truncated=truncated)

    def _release(self) -> None:
        """Answer the rows that are done and close the gaps that they leave, and those whom nobody waits for any more."""
        n, rows = len(self.live), self.rows
        given_up = {row for row, entry in enumerate(self.live) if entry.future.done()}
        look = sorted(given_up.union(rows.idle[:n].nonzero()[:, 0].tolist()))
        done = self._answer(look) if look else []
        gone, left = set(done), n - len(done)
        if on := [row for row in look if row not in gone]:
            rows.idle[on] = False
        if not done:
            return
        holes = [row for row in done if row < left]
        movers = [row for row in range(left, n) if row not in gone]
        if holes:
            rows.move(holes, movers)
            self.stepper.cache.move(holes, movers)
            for hole, mover in zip(holes, movers, strict=True):
                self.live[hole] = self.live[mover]
        rows.leave(slice(left, n))
        del self.live[left:]

    def _answer(self, look: Sequence[int]) -> list[int]:
        """Hand the tokens of the rows that are done to whoever asked, and say which these were.

        What all rows hold is read from the device at once.
        """
        rows, where = self.rows, torch.tensor(look, device=self.team.device)
        counts, limits = torch.stack([rows.count[where], rows.limit[where]]).tolist()
        most = max(counts)
        drawn, scored = rows.ids[where, :most].tolist(), rows.logprobs[where, :most].tolist()
        said = [ids[:count] for ids, count in zip(drawn, counts, strict=True)]
        ended = [ids[-1] in self.team.end_ids for ids in said]
        texts = decode_texts(self.team.tokenizer, [ids[: len(ids) - end] for ids, end in zip(said, ended, strict=True)])
        done: list[int] = []
        for row, ids, logprobs, end, limit, whole in zip(look, said, scored, ended, limits, texts, strict=True):
            entry = self.live[row]
            request, future = entry.request, entry.future
            if math.isnan(logprobs[len(ids) - 1]):
                self.stepper.cache.wipe([row])
                if not future.done():
                    future.set_exception(self._overflow(request))
            if future.done():  # whoever asked has gone, or cannot be answered
                done.append(row)
                continue
            text, stop = cut_at_stop(whole, request.sampling.stop)
            if stop is None and not end and len(ids) < limit:
                continue
            done.append(row)
            self._keep(row, ids)
            self.tokens += len(ids)
            versions = entry.runs(len(ids))
            future.set_result(
                Completion(
                    text=text,
                    token_ids=tuple(ids),
                    logprobs=tuple(logprobs[: len(ids)]),
                    finish="length" if stop is None and not end else "stop",
                    version=min(versions)[0],
                    versions=versions,
                    stop=stop,
                )
            )
        return done

    def _overflow(self, request: Request) -> SpeechError:
        """Why there is no distribution to draw from. One adapter with NaN in its weights spoils all rows, and every play."""
        for name in self.team.adapters:
            if not all(bool(weight.isfinite().all()) for weight in self.team.trainable_parameters(name).values()):
                raise MarftError(
                    f"adapter {name!r} has weights that are NaN or infinite; start it from other ones (init_from), or go back "
                    "to an earlier checkpoint of its run (--resume --at N) with a lower optimizer.lr"
                )
        whose = "the base model" if request.adapter is None else f"adapter {request.adapter!r}"
        return SpeechError(
            f"{whose} gave logits that are NaN or infinite, from finite weights; dtype=float32 holds more"
        )


def choose_stepper(team: TeamModel, rows: BatchState, memory: int) -> Stepper:
    """CUDA graphs for families with a decoder where flash attention runs; else pass by pass."""
    if team.decoder is None or not runs_flash(team.device, team.dtype):
        return EagerStepper(team, rows)
    from marft.engines.cuda_graphs import CudaGraphStepper

    return CudaGraphStepper(team, team.decoder, rows, memory)


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a CUDA device; elsewhere memory is not counted."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
