"""What every engine promises (`marft.engines.base.Engine`), whatever makes its tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from hostile import Handler, says, serving
from teams import team_of
from vllm_fake import Speaker

from marft.engines.base import Engine
from marft.engines.local import LocalEngine
from marft.engines.openai import OpenAIEngine
from marft.engines.scripted import ScriptedEngine
from marft.engines.vllm.engine import VllmEngine
from marft.game.agent import TextEngine
from marft.models.team import TeamModel
from marft.types import Completion, Message, PromptTooLong, Request, Sampling

MESSAGES = (Message(role="system", content="You add."), Message(role="user", content="Start with 3. Add 4."))
MARKERS = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")


@dataclass(frozen=True, kw_only=True)
class Case:
    """An engine, the most tokens it reads (None: it has no limit), and whether it holds nothing any more."""

    engine: Engine
    has_ids: bool = True
    longest: int | None = None
    team: TeamModel | None = None
    is_free: Callable[[], bool] = lambda: True


@contextmanager
def local() -> Iterator[Case]:
    team = team_of({"solver": 4}, std=0.01)
    engine = LocalEngine(team, slots=4)
    yield Case(
        engine=engine,
        longest=team.longest,
        team=team,
        is_free=lambda: not (engine.stepper.cache.nbytes or engine.live or engine.waiting),
    )


@contextmanager
def scripted() -> Iterator[Case]:
    yield Case(
        engine=ScriptedEngine(
            lambda request: f"{request.adapter} {request.seed} heard {len(request.messages)}; naïve → Answer: 7"
        )
    )


@contextmanager
def vllm() -> Iterator[Case]:
    team = team_of({"solver": 4}, std=0.01)
    backend = Speaker(team.tokenizer, min(team.end_ids))
    engine = VllmEngine(team, backend)
    yield Case(
        engine=engine,
        longest=backend.longest,
        team=team,
        is_free=lambda: backend.closed == 1 and not engine.adapter_versions.folder.exists(),
    )


@contextmanager
def remote() -> Iterator[Case]:
    def answer(handler: Handler) -> None:
        """As the protocol has it: the stop string is left out, and a limit is told."""
        body = handler.body
        text = f"with {body['seed']} to {json.dumps(body['messages'])}: naïve → Answer: 7"
        text = text[: min([len(text), *(at for stop in body.get("stop", ()) if (at := text.find(stop)) >= 0)])]
        cut = text[: body["max_tokens"]]
        says(cut, "length" if len(cut) < len(text) else "stop")(handler)

    with serving(answer) as endpoint:
        engine = OpenAIEngine(endpoint.url, "gpt-x", key_env=None, pause=0.001)
        yield Case(engine=engine, has_ids=False, is_free=lambda: not engine._connections.by_loop)


CASES = [local, scripted, vllm, remote]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(params=CASES, ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    with request.param() as made:
        yield made


def requests(engine: Engine, max_tokens: int, count: int = 8, stop: tuple[str, ...] = ()) -> list[Request]:
    prompt, sampling = engine.encode(MESSAGES), Sampling(max_tokens=max_tokens, stop=stop)
    return [
        Request(adapter="solver", messages=MESSAGES, prompt_ids=prompt, sampling=sampling, seed=i) for i in range(count)
    ]


def ask(engine: Engine, max_tokens: int, count: int = 8, stop: tuple[str, ...] = ()) -> list[Completion]:
    async def play() -> list[Completion]:
        async with asyncio.timeout(120):  # vLLM on a CPU takes its time at first
            return await asyncio.gather(*map(engine.generate, requests(engine, max_tokens, count, stop)))

    return asyncio.run(play())


def test_an_agent_speaks_with_any_of_them(case: Case) -> None:
    voice: TextEngine = case.engine
    assert voice.encode(MESSAGES) == case.engine.encode(MESSAGES)


def test_encode_gives_ids_that_depend_on_the_messages(case: Case) -> None:
    ids = case.engine.encode(MESSAGES)
    assert isinstance(ids, tuple)
    assert bool(ids) == case.has_ids
    assert all(type(i) is int for i in ids)
    assert case.engine.encode(list(MESSAGES)) == ids
    assert (case.engine.encode(MESSAGES[1:]) != ids) == case.has_ids


def test_a_completion_is_whole(case: Case) -> None:
    for said in ask(case.engine, max_tokens=64):
        assert isinstance(said.text, str)
        assert len(said.token_ids) == len(said.logprobs)
        assert bool(said.token_ids) == case.has_ids
        assert all(type(i) is int for i in said.token_ids)
        assert all(type(x) is float and x <= 0 for x in said.logprobs)
        assert said.finish in ("stop", "length")
        assert (said.version, said.newest) == (0, 0)
        assert not any(marker in said.text for marker in MARKERS)


def test_tokens_are_those_of_all_completions(case: Case) -> None:
    said = [*ask(case.engine, 5), *ask(case.engine, 64)]
    assert case.engine.tokens == sum(len(each.token_ids) for each in said)


@pytest.mark.parametrize("limit", [1, 2, 5, 21])
def test_a_completion_keeps_to_its_limit_and_says_so(case: Case, limit: int) -> None:
    said = ask(case.engine, limit)
    whole = ask(case.engine, max_tokens=64)
    assert any(c.finish == "length" for c in said) or limit > 20
    for short, long in zip(said, whole, strict=True):
        assert len(short.token_ids) <= limit
        assert short.token_ids == long.token_ids[:limit]  # a limit cuts, and changes nothing before it
        assert long.text.startswith(short.text.rstrip("�"))
        if short.finish == "length":
            assert len(short.token_ids or short.text) == limit


def test_the_same_request_has_the_same_answer(case: Case) -> None:
    assert ask(case.engine, 32) == ask(case.engine, 32)


def test_the_seed_decides_and_nobody_else_in_the_batch(case: Case) -> None:
    together = ask(case.engine, 32, count=20)  # more than there are slots
    alone = [asyncio.run(case.engine.generate(request)) for request in requests(case.engine, 32, count=20)]
    assert [said.text for said in together] == [said.text for said in alone]
    assert [said.token_ids for said in together] == [said.token_ids for said in alone]
    assert len({said.text for said in together}) > 1


@pytest.mark.parametrize("limit", [3, 64])
def test_a_completion_ends_before_its_stop_string(case: Case, limit: int) -> None:
    """Of the whole reply: its third and fourth letter; what is drawn up to there is what is drawn without it."""
    free = ask(case.engine, max_tokens=64)
    stop = (free[0].text[2:4], "never said")
    for whole, said in zip(free, ask(case.engine, limit, stop=stop), strict=True):
        assert stop[0] not in said.text
        assert whole.text.startswith(said.text.rstrip("�"))
        assert said.token_ids == whole.token_ids[: len(said.token_ids)]
        assert said.finish == "stop" or len(said.token_ids or said.text) == limit
        if limit == 64 and stop[0] in whole.text:
            assert said.finish == "stop"
            assert said.text == whole.text[: whole.text.index(stop[0])]
            assert len(said.token_ids) < len(whole.token_ids) or not case.has_ids


def test_a_prompt_that_is_too_long_is_refused_and_none_other(case: Case) -> None:
    longest = case.longest or 10_000
    [asked] = requests(case.engine, 4, count=1)

    def generate(size: int) -> Completion:
        prompt = (5,) * size
        return asyncio.run(
            case.engine.generate(
                Request(adapter=None, messages=MESSAGES, prompt_ids=prompt, sampling=asked.sampling, seed=0)
            )
        )

    if case.longest is None:
        assert generate(longest).text
        return
    assert len(generate(longest - 1).token_ids) == 1
    for size in (longest, longest + 1):
        with pytest.raises(PromptTooLong, match=rf"the prompt has {size} tokens, .* reads {longest}$"):
            generate(size)


def test_completions_carry_the_version_that_was_published(case: Case) -> None:
    for version in (5, 6, 3):  # a run may go back
        case.engine.publish(version)
        assert {(said.version, said.newest) for said in ask(case.engine, 8)} == {(version, version)}


def test_tensors_that_are_published_are_the_policy(case: Case) -> None:
    if case.team is None:
        case.engine.publish(1, {"solver": {}})  # there is nothing to change
        assert ask(case.engine, 8)[0].version == 1
        return
    before = {key: p.detach().clone() for key, p in case.team.trainable_parameters("solver").items()}
    given = {key: torch.randn_like(tensor) for key, tensor in before.items()}
    first = ask(case.engine, 16)
    case.engine.publish(1, {"solver": given})
    after = case.team.trainable_parameters("solver")
    assert all(torch.equal(after[key], tensor) and after[key].requires_grad for key, tensor in given.items())
    ask(case.engine, 16)
    case.engine.publish(2, {"solver": before})
    again = ask(case.engine, 16)
    assert [said.token_ids for said in again] == [said.token_ids for said in first]


def test_who_publishes_while_others_generate_disturbs_nobody(case: Case) -> None:
    async def play() -> list[Completion]:
        async with asyncio.timeout(30):
            asked = [asyncio.create_task(case.engine.generate(each)) for each in requests(case.engine, 24)]
            for version in range(1, 4):
                await asyncio.sleep(0.001)
                case.engine.publish(version)
            return await asyncio.gather(*asked)

    for said in asyncio.run(play()):
        assert 0 <= said.version <= said.newest <= 3


def test_what_is_closed_is_free_and_may_be_closed_again(case: Case) -> None:
    ask(case.engine, 8)
    case.engine.close()
    case.engine.close()
    assert case.is_free()
    with pytest.raises(RuntimeError, match="the engine is closed"):
        ask(case.engine, 8)


def test_nobody_waits_for_ever_for_what_is_closed(case: Case) -> None:
    async def play() -> list[Completion | BaseException]:
        async with asyncio.timeout(10):
            asked = [asyncio.create_task(case.engine.generate(each)) for each in requests(case.engine, 24)]
            await asyncio.sleep(0.001)
            case.engine.close()
            return await asyncio.gather(*asked, return_exceptions=True)

    for said in asyncio.run(play()):
        assert isinstance(said, Completion | Exception)
    assert case.is_free()
