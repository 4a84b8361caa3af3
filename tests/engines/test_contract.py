"""What every engine promises, whatever makes its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from teams import team_of

from marft.engines.local import LocalEngine
from marft.engines.scripted import ScriptedEngine
from marft.types import Completion, Message, Request, Sampling

Engine = LocalEngine | ScriptedEngine
MESSAGES = (Message(role="system", content="You add."), Message(role="user", content="Start with 3. Add 4."))
MARKERS = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")


def local() -> Engine:
    return LocalEngine(team_of({"solver": 4}, std=0.01), slots=4)


def scripted() -> Engine:
    return ScriptedEngine(lambda request: f"{request.adapter} heard {len(request.messages)}; naïve → Answer: 7")


@pytest.fixture(params=[local, scripted], scope="module")
def engine(request: pytest.FixtureRequest) -> Engine:
    make: Callable[[], Engine] = request.param
    return make()


def ask(engine: Engine, max_tokens: int, count: int = 8, stop: tuple[str, ...] = ()) -> list[Completion]:
    prompt = engine.encode(MESSAGES)
    sampling = Sampling(max_tokens=max_tokens, stop=stop)
    asked = [
        Request(adapter="solver", messages=MESSAGES, prompt_ids=prompt, sampling=sampling, seed=i) for i in range(count)
    ]

    async def play() -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, asked))

    return asyncio.run(play())


def test_encode_gives_ids_that_depend_on_the_messages(engine: Engine) -> None:
    ids = engine.encode(MESSAGES)
    assert isinstance(ids, tuple)
    assert ids
    assert all(type(i) is int for i in ids)
    assert engine.encode(list(MESSAGES)) == ids
    assert engine.encode(MESSAGES[1:]) != ids


def test_a_completion_is_whole(engine: Engine) -> None:
    engine.version = 5
    for said in ask(engine, max_tokens=64):
        assert isinstance(said.text, str)
        assert len(said.token_ids) == len(said.logprobs) > 0
        assert all(type(i) is int for i in said.token_ids)
        assert all(type(x) is float and x <= 0 for x in said.logprobs)
        assert said.finish in ("stop", "length")
        assert said.version == 5
        assert not any(marker in said.text for marker in MARKERS)


@pytest.mark.parametrize("limit", [1, 2, 5, 21])
def test_a_completion_keeps_to_its_limit_and_says_so(engine: Engine, limit: int) -> None:
    said = ask(engine, limit)
    whole = ask(engine, max_tokens=64)
    assert any(c.finish == "length" for c in said) or limit > 20
    for short, long in zip(said, whole, strict=True):
        assert len(short.token_ids) <= limit
        assert short.token_ids == long.token_ids[:limit]  # a limit cuts, and changes nothing before it
        assert long.text.startswith(short.text.rstrip("�"))
        if short.finish == "length":
            assert len(short.token_ids) == limit


def test_the_same_request_has_the_same_answer(engine: Engine) -> None:
    assert ask(engine, 32) == ask(engine, 32)


@pytest.mark.parametrize("limit", [3, 64])
def test_a_completion_ends_before_its_stop_string(engine: Engine, limit: int) -> None:
    """Of the whole reply: its third and fourth letter; what is drawn up to there is what is drawn without it."""
    free = ask(engine, max_tokens=64)
    stop = (free[0].text[2:4], "never said")
    for whole, said in zip(free, ask(engine, limit, stop=stop), strict=True):
        assert stop[0] not in said.text
        assert whole.text.startswith(said.text.rstrip("�"))
        assert said.token_ids == whole.token_ids[: len(said.token_ids)]
        assert said.finish == "stop" or len(said.token_ids) == limit
        if limit == 64 and stop[0] in whole.text:
            assert said.finish == "stop"
            assert said.text == whole.text[: whole.text.index(stop[0])]
            assert len(said.token_ids) < len(whole.token_ids)
