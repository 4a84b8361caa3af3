"""The slot cache, flash attention's arguments and bursts of steps, on the CPU: with a plain attention in the kernel's
place, and steps that are run instead of captured, the engine says what it says pass by pass."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from asking import (
    FREE,
    RANKS,
    STRANGE,
    WILD,
    ask,
    check_each_version,
    publish_between_bursts,
    random_policy,
    request,
    same,
)
from teams import team_of
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from marft.engines import cuda_graphs
from marft.engines import slot_cache as slotted
from marft.engines.cuda_graphs import CudaGraphStepper, graph_size
from marft.engines.local import LocalEngine
from marft.models.team import TeamModel
from marft.types import Completion, Request

PLENTY = 1 << 30


@pytest.fixture(scope="module")
def team() -> TeamModel:
    return team_of(RANKS, std=0.01)


def plain_attention(
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
    """What the kernel is said to do, sequence by sequence."""
    out = torch.empty_like(q)
    for j in range(len(used)):
        own = slice(int(starts_q[j]), int(starts_q[j + 1]))
        seen = slice(int(starts_k[j]), int(starts_k[j]) + int(used[j]))
        assert own.stop - own.start <= most_q
        assert int(used[j]) <= most_k
        count = own.stop - own.start
        mask = torch.ones(count, int(used[j]), dtype=torch.bool).tril(int(used[j]) - count)
        found = scaled_dot_product_attention(
            q[own].transpose(0, 1),
            keys[seen].transpose(0, 1),
            values[seen].transpose(0, 1),
            attn_mask=mask,
            scale=scale,
            enable_gqa=True,
        )
        out[own] = found.transpose(0, 1)
    return out


def plain_step(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, length: Tensor, positions: int, scale: float
) -> Tensor:
    assert int(length.max()) < positions  # else a row would write into another's slot
    starts = torch.arange(len(length) + 1) * positions
    keys.index_copy_(0, starts[:-1] + length, k)
    values.index_copy_(0, starts[:-1] + length, v)
    return plain_attention(q, keys, values, torch.arange(len(q) + 1), starts, 1, positions, length + 1, scale)


class Uncaptured(CudaGraphStepper):
    """Steps of the graphs' sizes, run where they would be captured."""

    def step(self, n: int, stop_tokens: Tensor, *, truncated: bool) -> None:
        self._step(self.size(n), stop_tokens, truncated)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slotted, "flash_attention_slots", plain_attention)
    monkeypatch.setitem(sys.modules, "marft.engines.kernels", SimpleNamespace(attend_step=plain_step))


def in_slots(team: TeamModel, slots: int, memory: int = PLENTY, keep: int = 0) -> LocalEngine:
    engine = LocalEngine(team, slots, keep=keep)
    assert team.decoder is not None
    engine.stepper = Uncaptured(team, team.decoder, engine.rows, memory)
    return engine


def check(team: TeamModel, engine: LocalEngine, asked: Sequence[Request], rounding: float = 1e-5) -> list[Completion]:
    found = ask(engine, *asked)
    for one, other in zip(ask(LocalEngine(team, 8), *asked), found, strict=True):
        same(one, other, rounding)
    return found


def mixed(count: int, most: int = 20) -> list[Request]:
    adapters = ("planner", "solver", None)
    return [
        request(i, adapter=adapters[i % 3], seed=i, sampling=replace(FREE, max_tokens=1 + i * 7 % most))
        for i in range(count)
    ]


@pytest.mark.parametrize("slots", [1, 4, 40])
def test_slots_say_what_passes_say(team: TeamModel, slots: int) -> None:
    found = check(team, in_slots(team, slots), mixed(30))
    assert sum(len(one.token_ids) for one in found) > 150


def test_equal_prompts_are_read_once_and_copied(team: TeamModel) -> None:
    asked = [request(i // 4, sampling=WILD, seed=i) for i in range(12)]
    found = check(team, in_slots(team, 12), asked)
    assert len({one.token_ids for one in found}) > 6


def go_on(asked: Sequence[Request], said: Sequence[Completion]) -> list[Request]:
    return [
        replace(one, prompt_ids=(*one.prompt_ids, *other.token_ids, 60, 61, 62))
        for one, other in zip(asked, said, strict=True)
    ]


@pytest.mark.parametrize("part", [12, 32768])
@pytest.mark.parametrize("slots", [4, 16])
def test_conversations_go_on_from_kept_slots(
    team: TeamModel, monkeypatch: pytest.MonkeyPatch, slots: int, part: int
) -> None:
    monkeypatch.setattr(cuda_graphs, "PREFILL_TOKENS", part)
    engine = in_slots(team, slots, keep=64)
    asked = [replace(one, episode=i) for i, one in enumerate(mixed(14))]
    for turn in range(4):
        said = check(team, engine, asked, STRANGE)
        assert len(engine.kept) == len(asked), turn
        asked = go_on(asked, said)


def test_kept_slots_leave_rows_their_memory(team: TeamModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots grow as conversations do, and what is kept gives way, before anything is allocated."""
    monkeypatch.setattr(slotted, "GROW", 16)
    assert team.decoder is not None
    memory = 6 * slotted.SlotCache(team.decoder, 4, PLENTY).bytes(120)
    engine = in_slots(team, 4, memory, keep=64)
    cache, make, held = engine.stepper.cache, slotted.SlotCache._make, []

    def made(self: slotted.SlotCache) -> tuple[Tensor, Tensor]:
        found = make(self)
        held.append(engine.kept.nbytes + sum(side.nbytes for side in found))
        return found

    monkeypatch.setattr(slotted.SlotCache, "_make", made)
    asked = [replace(one, episode=i) for i, one in enumerate(mixed(10))]
    counts = []
    for _ in range(6):
        asked = go_on(asked, check(team, engine, asked, STRANGE))
        counts.append(len(engine.kept))
        assert engine.kept.nbytes + cache.nbytes <= memory
    assert max(held) <= memory
    assert counts[0] == 10
    assert 0 < counts[-1] < 10


@pytest.mark.parametrize("slots", [4, 40])
def test_every_token_is_its_own_versions_in_slots(slots: int) -> None:
    team = team_of(RANKS, std=0.01)
    policies = {version: random_policy(team, version) for version in (1, 2, 3)}
    engine = in_slots(team, slots)
    publish_between_bursts(engine, policies, {0: 1, 1: 2, 2: 3, 5: 1})
    asked = [replace(one, sampling=replace(WILD, max_tokens=40)) for one in mixed(30)]
    said = ask(engine, *asked)
    assert sum(len(one.versions) > 1 for one in said) > 4
    check_each_version(team, policies, asked, said)


def test_long_prompts_come_in_parts(team: TeamModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "PREFILL_TOKENS", 12)
    asked = mixed(9)
    assert max(len(one.prompt_ids) for one in asked) > 24
    check(team, in_slots(team, 6), asked)


def test_a_longer_request_makes_slots_longer_and_loses_nothing(
    team: TeamModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slotted, "GROW", 8)
    asked = [*mixed(6, most=12), *[replace(one, sampling=replace(FREE, max_tokens=60)) for one in mixed(4)], *mixed(8)]
    check(team, in_slots(team, 5), asked)


def test_no_more_rows_than_memory_holds(team: TeamModel) -> None:
    assert team.decoder is not None
    layers, (_, heads) = len(team.decoder.layers), team.decoder.shape.heads
    slot = slotted.GROW * 2 * layers * heads * team.decoder.shape.dim * 4
    engine = in_slots(team, 16, memory=3 * slot)
    check(team, engine, mixed(10))
    assert isinstance(engine.stepper, CudaGraphStepper)
    assert engine.stepper.cache.keys.shape[1] == 3 * slotted.GROW


def test_one_long_request_takes_seats_only_while_it_lasts(team: TeamModel) -> None:
    assert team.decoder is not None
    slot = slotted.SlotCache(team.decoder, 16, PLENTY).bytes(slotted.GROW)
    engine = in_slots(team, 16, memory=8 * slot)
    assert isinstance(engine.stepper, CudaGraphStepper)
    cache = engine.stepper.cache
    check(team, engine, mixed(20))
    assert (cache.slots, cache.positions) == (8, slotted.GROW)
    held: list[int] = []
    step = engine.stepper.step

    def watched(n: int, stop_tokens: Tensor, *, truncated: bool) -> None:
        held.append(cache.slots)
        step(n, stop_tokens, truncated=truncated)

    engine.stepper.step = watched  # type: ignore[method-assign]
    long = replace(request(0), sampling=replace(WILD, max_tokens=3 * slotted.GROW))
    check(team, engine, [*mixed(20), long, *mixed(20)])
    assert min(held) < 8
    check(team, engine, mixed(20))
    assert (cache.slots, cache.positions) == (8, slotted.GROW)


def test_rows_that_left_write_nothing_outside_their_new_slots(team: TeamModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few long slots become many short ones; the step's other rows, which nobody has, were long before."""
    monkeypatch.setattr(slotted, "GROW", 8)
    assert team.decoder is not None
    long = [replace(request(i, seed=i), sampling=replace(WILD, max_tokens=200)) for i in range(9)]
    longest = max(len(each.prompt_ids) for each in long) + 208
    engine = in_slots(team, 8, memory=3 * slotted.SlotCache(team.decoder, 8, PLENTY).bytes(longest))
    engine.rows._ends.fill_(-1)  # all draw as many as they may
    ask(engine, *long)
    assert isinstance(engine.stepper, CudaGraphStepper)
    assert engine.stepper.cache.slots == 3
    short = replace(request(0), sampling=replace(WILD, max_tokens=4))
    ask(engine, short)
    assert engine.stepper.cache.slots == 8


def test_growing_beside_live_rows_stays_within_memory(team: TeamModel) -> None:
    """The old slots are held until they are copied: there is room for fewer new ones, or for none yet."""
    assert team.decoder is not None
    cache = slotted.SlotCache(team.decoder, 16, 0)
    cache.memory = 10 * cache.bytes(slotted.GROW)
    assert [cache.room(positions, 0) for positions in (1, 256, 257, 600, 10_000)] == [10, 10, 5, 3, 1]
    cache.reserve(200, 0)
    assert (cache.slots, cache.positions) == (10, 256)
    assert [cache.room(positions, 4) for positions in (100, 256, 257)] == [10, 10, 0]
    cache.memory *= 2
    cache.keys.fill_(1.0)
    assert cache.room(512, 4) == 5
    cache.reserve(512, 4)
    assert cache.keys.shape[1] == 5 * 512
    assert cache.by_slot(cache.keys)[:, :4, :256].eq(1).all()
    assert cache.by_slot(cache.keys)[:, 4:].eq(0).all()


def test_a_row_may_draw_every_token_that_there_is_room_for(team: TeamModel) -> None:
    """65 tokens fill the columns of drawn tokens to the last but one; idle rows go on writing behind them."""
    asked = [replace(one, sampling=replace(WILD, max_tokens=65)) for one in mixed(16)]
    engine = in_slots(team, 8)
    engine.stepper.burst = 5  # so that a burst goes on past the last token
    found = check(team, engine, asked)
    assert max(len(one.token_ids) for one in found) == 65


def test_weights_that_change_under_live_rows_count_at_once(team: TeamModel) -> None:
    """What is captured reads copies of the adapters: they are renewed before every burst."""
    own = team_of(RANKS, std=0.01)
    engine = in_slots(own, 4)
    seen: list[bool] = []

    async def settled() -> None:
        if engine.live and not seen:
            with torch.no_grad():
                for parameter in own.trainable_parameters("planner").values():
                    parameter.mul_(1.5)
            seen.append(True)

    engine.settled = settled
    burst = engine.stepper.step

    def step(n: int, stop_tokens: Tensor, *, truncated: bool) -> None:
        assert not [pair for product in own.products for pair in product.refresh()]
        burst(n, stop_tokens, truncated=truncated)

    engine.stepper.step = step  # type: ignore[method-assign]
    ask(engine, request(0, sampling=WILD), request(1, sampling=WILD))
    assert seen


def test_stop_strings_end_rows_in_the_middle_of_a_burst(team: TeamModel) -> None:
    asked = [replace(one, sampling=replace(FREE, stop=("e", "1 "), max_tokens=40)) for one in mixed(12)]
    found = check(team, in_slots(team, 8), asked)
    assert {one.stop for one in found} > {"e"}


def test_truncated_rows_and_greedy_ones(team: TeamModel) -> None:
    kinds = (replace(FREE, top_k=3), replace(FREE, temperature=0.0), replace(FREE, top_p=0.5, temperature=1.3))
    check(team, in_slots(team, 8), [replace(one, sampling=kinds[i % 3]) for i, one in enumerate(mixed(12))])


def test_changed_adapters_count_at_the_next_step(team: TeamModel) -> None:
    own, asked = team_of(RANKS, std=0.01), mixed(6)
    engine = in_slots(own, 6)
    before = check(own, engine, asked)
    with torch.no_grad():
        for parameter in own.trainable_parameters("planner").values():
            parameter.mul_(3.0)
    after = check(own, engine, asked)
    assert [one.logprobs for one in before[::3]] != [one.logprobs for one in after[::3]]
    assert [one.logprobs for one in before[2::3]] == [one.logprobs for one in after[2::3]]


def test_graph_sizes() -> None:
    sizes = {1: 8, 8: 8, 9: 12, 12: 12, 13: 16, 16: 16, 17: 24, 25: 32, 1000: 1024, 1025: 1536}
    assert {n: graph_size(n) for n in sizes} == sizes
