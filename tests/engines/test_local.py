from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from asking import FREE, RANKS, WILD, ask, flat, recomputed, request, same, tokens_read
from teams import peft_of, team_of
from torch import Tensor

from marft.engines.eager import EagerStepper
from marft.engines.local import LocalEngine
from marft.models.team import TeamModel
from marft.types import Completion, MarftError, Message, PromptTooLong, Request, Sampling, SpeechError


@pytest.fixture(scope="module")
def team() -> TeamModel:
    return team_of(RANKS, std=0.01)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_sampled_logprobs_are_those_that_training_computes(team: TeamModel, temperature: float) -> None:
    sampling = replace(FREE, temperature=temperature)
    adapters = ("planner", "solver", None)
    asked = [request(i, adapter=adapters[i % 3], sampling=sampling, seed=i) for i in range(18)]
    said = ask(LocalEngine(team, 8), *asked)
    assert sum(len(c.token_ids) for c in said) > 100
    torch.testing.assert_close(flat(said), recomputed(team, asked, said), atol=1e-5, rtol=0)


def test_settings_of_one_row_are_not_those_of_another(team: TeamModel) -> None:
    asked = [request(i, sampling=replace(FREE, temperature=t), seed=i) for i, t in enumerate([0.6, 1.0, 1.4] * 4)]
    said = ask(LocalEngine(team, 16), *asked)
    torch.testing.assert_close(flat(said), recomputed(team, asked, said), atol=1e-5, rtol=0)


@pytest.mark.parametrize("slots", [40, 4])
def test_company_does_not_change_what_is_said(team: TeamModel, slots: int) -> None:
    """Alone, among 39 others, and with four slots, so that rows leave and enter and change places."""
    adapters = ("planner", "solver", None)
    asked = [
        request(i, adapter=adapters[i % 3], seed=100 + i, sampling=replace(FREE, max_tokens=5 + i % 20))
        for i in range(40)
    ]
    together = ask(LocalEngine(team, slots), *asked)
    for i in range(0, 40, 4):
        same(ask(LocalEngine(team, 1), asked[i])[0], together[i])
    assert len({c.token_ids for c in together}) > 20


def test_truncation_asked_by_a_neighbour_changes_nothing(team: TeamModel) -> None:
    mine = request(1, seed=5)
    neighbour = request(2, sampling=replace(FREE, top_k=3, top_p=0.9))
    engine = LocalEngine(team, 4)
    same(ask(engine, mine)[0], ask(engine, mine, neighbour)[0])


def test_adapters_of_one_batch_say_what_each_says_alone(team: TeamModel) -> None:
    asked = [request(3, adapter=adapter, seed=11) for adapter in ("planner", "solver", None)]
    together = ask(LocalEngine(team, 8), *asked)
    for r, c in zip(asked, together, strict=True):
        same(ask(LocalEngine(team, 8), r)[0], c)
    assert len({c.logprobs for c in together}) == 3


@pytest.mark.parametrize("adapter", ["planner", "solver"])
def test_greedy_is_what_transformers_generates(team: TeamModel, adapter: str) -> None:
    peft = peft_of(team, adapter)
    asked = [request(i, adapter=adapter, sampling=Sampling(temperature=0, max_tokens=20)) for i in range(4)]
    for r, c in zip(asked, ask(LocalEngine(team, 8), *asked), strict=True):
        ids = torch.tensor([r.prompt_ids])
        out = peft.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20, eos_token_id=2
        )
        assert c.token_ids == tuple(out[0, len(r.prompt_ids) :].tolist())
        assert set(c.logprobs) == {0.0}


def test_a_turn_ends_at_its_end_or_at_its_limit(team: TeamModel) -> None:
    said = ask(LocalEngine(team, 32), *(request(i, sampling=replace(FREE, max_tokens=6), seed=i) for i in range(24)))
    (end,) = team.end_ids
    assert {c.finish for c in said} == {"stop", "length"}
    for c in said:
        assert end not in c.token_ids[:-1]
        assert (c.token_ids[-1] == end) == (c.finish == "stop")
        assert len(c.token_ids) == 6 if c.finish == "length" else len(c.token_ids) <= 6
        words = [token for token in c.token_ids if token != end]
        assert c.text == team.tokenizer.decode(words, skip_special_tokens=True)
        assert "<|im_end|>" not in c.text


def test_one_token_is_enough(team: TeamModel) -> None:
    said = ask(LocalEngine(team, 4), *(request(i, sampling=replace(FREE, max_tokens=1), seed=i) for i in range(9)))
    assert [len(c.token_ids) for c in said] == [1] * 9


def test_a_prompt_that_fills_the_model_is_too_long(team: TeamModel) -> None:
    engine = LocalEngine(team, 4)
    with pytest.raises(PromptTooLong, match="1024"):
        ask(engine, replace(request(), prompt_ids=(50,) * 1024))
    assert ask(engine, request())[0].token_ids


def test_max_tokens_are_cut_to_what_fits(team: TeamModel) -> None:
    ids = tuple(50 + i % 300 for i in range(1021))
    asked = [replace(request(), prompt_ids=ids[:n], seed=n) for n in (1021, 1023)]
    said = ask(LocalEngine(team, 4), *asked)
    assert len(said[0].token_ids) <= 3
    assert len(said[1].token_ids) <= 3
    one = ask(LocalEngine(team, 4), replace(request(), prompt_ids=(*ids, 50, 51)))[0]
    assert len(one.token_ids) == 1
    torch.testing.assert_close(flat(said), recomputed(team, asked, said), atol=2e-5, rtol=0)


def test_equal_prompts_are_read_once_and_answered_apart(team: TeamModel) -> None:
    asked = [request(5, seed=i, sampling=WILD) for i in range(12)] + [request(5, adapter="solver", sampling=WILD)]
    seen, said = tokens_read(team, LocalEngine(team, 16), *asked)
    assert seen[0] == 2 * len(asked[0].prompt_ids)  # once an adapter
    assert len({c.token_ids for c in said[:12]}) == 12
    torch.testing.assert_close(flat(said), recomputed(team, asked, said), atol=1e-5, rtol=0)


def test_what_prompts_have_in_common_is_read_once(team: TeamModel) -> None:
    """Beginnings are shared inside an adapter and never between two; a prompt may be the beginning of another."""
    stem = request(0).prompt_ids
    n = len(stem)
    prompts = [(*stem, 60, 61, 62), (*stem, 60, 71), stem, stem[:-2], (*stem[:-2], 80), (90, *stem)]
    asked = [replace(request(seed=i), prompt_ids=ids) for i, ids in enumerate(prompts)]
    asked += [replace(request(seed=9, adapter=adapter), prompt_ids=prompts[0]) for adapter in ("solver", None)]
    seen, said = tokens_read(team, LocalEngine(team, 16), *asked)
    assert seen[0] == (n + 3) + 1 + 1 + (n + 1) + 2 * (n + 3)
    torch.testing.assert_close(flat(said), recomputed(team, asked, said), atol=1e-5, rtol=0)
    for r, c in zip(asked, said, strict=True):
        same(ask(LocalEngine(team, 1), r)[0], c)


def test_the_same_seed_says_the_same_and_another_does_not(team: TeamModel) -> None:
    engine = LocalEngine(team, 8)
    asked = [request(2, seed=seed, sampling=WILD) for seed in (1, 1, 2)]
    first, again, other = ask(engine, *asked)
    assert first == again
    assert first.token_ids != other.token_ids
    same(ask(engine, asked[0])[0], first)


@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_an_exception_reaches_everyone_and_the_engine_works_again(
    team: TeamModel, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Some are live, some are entering and some wait for a slot when it happens; and the driver dies in silence."""
    engine = LocalEngine(team, 4)
    expected = ask(engine, request(1))
    forward = team.forward
    calls = 0

    def failing(ids: torch.Tensor, *rest: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if (ids.shape[0] == 1 and ids.shape[1] > 1) == (where == "prefill") and calls > 2:
            raise RuntimeError("out of something")
        return forward(ids, *rest)  # type: ignore[arg-type]

    complaints: list[object] = []

    async def play() -> list[Completion | BaseException]:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(20):
            return await asyncio.gather(
                *(engine.generate(request(i, seed=i)) for i in range(10)), return_exceptions=True
            )

    with monkeypatch.context() as patch:
        patch.setattr(team, "forward", failing)
        found = asyncio.run(play())
    assert any(isinstance(each, RuntimeError) for each in found)
    assert all(isinstance(each, Completion | RuntimeError) for each in found)
    assert complaints == []
    assert ask(engine, request(1)) == expected


def test_an_unknown_adapter_leaves_nobody_waiting(team: TeamModel) -> None:
    engine = LocalEngine(team, 4)
    with pytest.raises(KeyError):
        ask(engine, request(0), request(1, adapter="nobody"))
    assert ask(engine, request(0))


def test_numbers_that_broke_once_do_not_stay(team: TeamModel) -> None:
    """Rows of different lengths have masked positions, and what lies there in the cache must be a number."""
    engine = LocalEngine(team, 4)
    asked = (request(0), request(3))
    expected = ask(engine, *asked)
    weight = team.lora.adapter_parameters("planner")["model.layers.0.self_attn.v_proj.b"]
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
        with pytest.raises(MarftError, match="adapter 'planner' has weights that are NaN or infinite; start it from"):
            ask(engine, *(replace(request(i), prompt_ids=request(i).prompt_ids * 3) for i in (0, 3)))
        weight.copy_(kept)
    assert ask(engine, *asked) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("after", [0, 3])
def test_one_row_that_overflows_is_one_that_cannot_speak(
    team: TeamModel, monkeypatch: pytest.MonkeyPatch, temperature: float, after: int
) -> None:
    """Its keys are NaN, and whoever has its seat next must not meet them; nobody else may notice."""
    sampling = Sampling(temperature=temperature, max_tokens=8)
    asked = [replace(request(i, seed=i), sampling=sampling) for i in range(6)]
    expected = [ask(LocalEngine(team, 1), each)[0] for each in asked]
    engine, logits, calls = LocalEngine(team, 2), team.logits, itertools.count()

    def overflowing(hidden: Tensor) -> Tensor:
        found = logits(hidden)
        if next(calls) == after:
            assert len(found) == 2
            found[1] = float("inf")
            assert isinstance(engine.stepper, EagerStepper)
            for tensor in (*engine.stepper.cache.keys.values(), *engine.stepper.cache.values.values()):
                tensor[1] = float("nan")  # as it would be, had the keys overflowed first
        return found

    async def play() -> list[Completion | BaseException]:
        return await asyncio.gather(*(engine.generate(each) for each in asked), return_exceptions=True)

    monkeypatch.setattr(team, "logits", overflowing)
    found = asyncio.run(play())
    broken = [each for each in found if isinstance(each, BaseException)]
    assert [(type(each), str(each)) for each in broken] == [
        (
            SpeechError,
            "adapter 'planner' gave logits that are NaN or infinite, from finite weights; dtype=float32 holds more",
        )
    ]
    for completion, alone in zip(found, expected, strict=True):
        if isinstance(completion, Completion):
            same(completion, alone)


def test_who_gives_up_waiting_holds_nobody_back(team: TeamModel) -> None:
    engine = LocalEngine(team, 2)

    async def play() -> list[Completion]:
        tasks = [asyncio.create_task(engine.generate(request(i, seed=i))) for i in range(5)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()
        tasks[4].cancel()
        async with asyncio.timeout(20):
            return await asyncio.gather(*tasks[1:4])

    found = asyncio.run(play())
    for i, completion in enumerate(found, start=1):
        same(completion, ask(LocalEngine(team, 1), request(i, seed=i))[0])


def test_rows_that_nobody_waits_for_leave_the_batch_at_once(team: TeamModel) -> None:
    engine = LocalEngine(team, 4)
    endless = replace(request(0), sampling=Sampling(max_tokens=400, temperature=5.0))  # it hardly ever ends by itself
    steps = 0

    async def play() -> Completion:
        nonlocal steps
        given_up = [
            asyncio.create_task(engine.generate(replace(endless, seed=i))) for i in range(8)
        ]  # some of them wait
        kept = asyncio.create_task(engine.generate(replace(request(1), seed=1)))
        while not engine.live:
            await asyncio.sleep(0)
        for task in given_up:
            task.cancel()
        while engine.live or engine.waiting:
            steps += 1
            await asyncio.sleep(0)
        return await kept

    same(asyncio.run(play()), ask(LocalEngine(team, 1), replace(request(1), seed=1))[0])
    assert steps < 100


def test_requests_may_come_while_others_run(team: TeamModel) -> None:
    """Conversations of three turns each: the next request is made from the answer to the one before."""
    engine = LocalEngine(team, 4)

    async def talk(engine: LocalEngine, number: int) -> list[Completion]:
        said: list[Completion] = []
        asked = request(number, seed=number)
        for turn in range(3):
            await asyncio.sleep(0.001 * (number % 3))
            said.append(await engine.generate(asked))
            ids = (*asked.prompt_ids, *said[-1].token_ids)
            asked = replace(asked, prompt_ids=ids, seed=asked.seed + 100, adapter="solver" if turn else None)
        return said

    async def play() -> list[list[Completion]]:
        async with asyncio.timeout(30):
            return await asyncio.gather(*(talk(engine, i) for i in range(9)))

    together = asyncio.run(play())
    for i in (0, 4, 8):
        for one, other in zip(asyncio.run(talk(LocalEngine(team, 1), i)), together[i], strict=True):
            same(one, other)
    assert not engine.waiting
    assert not engine.live


def test_an_update_of_the_adapter_is_seen_at_once() -> None:
    team = team_of(RANKS, std=0.01)
    engine = LocalEngine(team, 4)
    before = ask(engine, request(1))[0]
    with torch.no_grad():
        for key, parameter in team.lora.adapter_parameters("planner").items():
            if key.endswith(".b"):
                parameter.mul_(-2)
    after = ask(engine, request(1))[0]
    assert before.logprobs != after.logprobs
    torch.testing.assert_close(flat([after]), recomputed(team, [request(1)], [after]), atol=1e-5, rtol=0)


def test_tokens_are_counted_and_the_version_is_noted(team: TeamModel) -> None:
    engine = LocalEngine(team, 4)
    engine.publish(3)
    said = ask(engine, *(request(i, seed=i) for i in range(6)))
    assert engine.tokens == sum(len(c.token_ids) for c in said)
    assert {c.version for c in said} == {3}


def push(team: TeamModel, adapter: str, seed: int) -> None:
    """An update in place, large enough to change what is said."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in team.lora.adapter_parameters(adapter).items():
            if key.endswith(".b"):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)


def copy_of(team: TeamModel) -> TeamModel:
    copy = team_of(RANKS)
    with torch.no_grad():
        for adapter in RANKS:
            for key, parameter in copy.lora.adapter_parameters(adapter).items():
                parameter.copy_(team.lora.adapter_parameters(adapter)[key])
    return copy


def test_defect_15_no_keys_of_an_old_adapter_are_reused() -> None:
    """The same prompt and seed before and after an update, greedily and with sampling: an engine that has answered it
    before says what a fresh one with the new weights says. Also where the update comes while it waits for a seat."""
    team = team_of(RANKS, std=0.01)
    engine = LocalEngine(team, 2)
    messages = (Message(role="user", content="Start with 8. Add 5. Subtract 1."),)
    samplings = (FREE, WILD, replace(FREE, temperature=0))

    def asked() -> list[Request]:
        ids = engine.encode(messages)
        return [Request(adapter="planner", prompt_ids=ids, sampling=sampling, seed=3) for sampling in samplings]

    def check(said: Sequence[Completion], old: Sequence[Completion]) -> None:
        fresh = LocalEngine(copy_of(team), 2)
        for each, completion, before in zip(asked(), said, old, strict=True):
            same(completion, ask(fresh, each)[0])
            assert completion.token_ids != before.token_ids  # else nothing would be proven
        torch.testing.assert_close(flat(said[:2]), recomputed(team, asked()[:2], said[:2]), atol=3e-5, rtol=0)

    async def while_others_play() -> list[Completion]:
        others = [asyncio.create_task(engine.generate(request(i, adapter="solver", seed=i))) for i in range(4)]
        ours = [asyncio.create_task(engine.generate(each)) for each in asked()]
        async with asyncio.timeout(30):
            await others[0]
            assert len(engine.live) + len(engine.waiting) >= 5  # the others are at it, and ours wait
            assert all(each.request.adapter == "solver" for each in engine.live)
            push(team, "planner", seed=2)
            return (await asyncio.gather(*others, *ours))[len(others) :]

    first = [ask(engine, each)[0] for each in asked()]
    push(team, "planner", seed=1)
    second = [ask(engine, each)[0] for each in asked()]
    check(second, first)
    check(asyncio.run(while_others_play()), second)
