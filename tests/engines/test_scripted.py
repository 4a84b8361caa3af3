from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from marft.engines.scripted import END, Script, ScriptedEngine, find_script
from marft.types import Completion, MarftError, Message, Request, Sampling, SpeechError

MESSAGES = (Message(role="system", content="You add."), Message(role="user", content="3 + 4"))
PLAIN = Sampling()


def say(script: Script, sampling: Sampling = PLAIN) -> Completion:
    engine = ScriptedEngine(script)
    ids = engine.encode(MESSAGES)
    request = Request(adapter="adder", messages=MESSAGES, prompt_ids=ids, sampling=sampling, seed=1)
    return asyncio.run(engine.generate(request))


def test_a_script_sees_the_request_and_its_text_is_bytes_and_an_end() -> None:
    said = say(lambda request: f"{request.adapter}: {request.messages[-1].content} é")
    assert said.text == "adder: 3 + 4 é"
    assert said.token_ids == (*said.text.encode(), END)
    assert said.logprobs == (0.0,) * len(said.token_ids)
    assert (said.finish, said.version) == ("stop", 0)


def test_a_script_may_be_awaited() -> None:
    async def slow(request: Request) -> str:
        await asyncio.sleep(0.001)
        return request.messages[0].content

    assert say(slow).text == "You add."


def test_saying_nothing_is_a_turn_too() -> None:
    assert say(lambda _: "") == Completion(text="", token_ids=(END,), logprobs=(0.0,), finish="stop", version=0)


@pytest.mark.parametrize(
    ("stop", "limit", "text", "spelled", "finish"),
    [
        ((), 64, "say 7; say 8", None, "stop"),
        ((";",), 64, "say 7", "say 7;", "stop"),
        (("; say", "7"), 64, "say ", "say 7", "stop"),
        (("; say", ";"), 64, "say 7", "say 7;", "stop"),  # complete first
        (("; say", " say"), 64, "say 7", "say 7; say", "stop"),  # complete together: the earliest
        ((";",), 6, "say 7", "say 7;", "stop"),
        ((";",), 5, "say 7", "say 7", "length"),
        (("never",), 64, "say 7; say 8", None, "stop"),
        (("never",), 12, "say 7; say 8", "say 7; say 8", "length"),
    ],
)
def test_stops_and_limits_by_hand(
    stop: tuple[str, ...], limit: int, text: str, spelled: str | None, finish: str
) -> None:
    said = say(lambda _: "say 7; say 8", Sampling(stop=stop, max_tokens=limit))
    assert (said.text, said.finish) == (text, finish)
    assert said.token_ids == ((*text.encode(), END) if spelled is None else tuple(spelled.encode()))


def test_half_a_surrogate_pair_is_said_and_heard_as_a_question_mark() -> None:
    assert say(lambda _: "a\ud800b").text == "a?b"
    assert ScriptedEngine(lambda _: "").encode([Message(role="user", content="\udc00")]) == tuple(b"<user> ?")


def test_a_script_that_raises_is_an_agent_that_cannot_speak() -> None:
    def broken(request: Request) -> str:
        raise KeyError("seven")

    async def broken_later(request: Request) -> str:
        await asyncio.sleep(0)
        raise KeyError("seven")

    for script in (broken, broken_later):
        with pytest.raises(SpeechError, match=r"^the script raised KeyError: 'seven'$") as caught:
            say(script)
        assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(("said", "kind"), [(None, "NoneType"), (7, "int"), (b"7", "bytes"), (["7"], "list")])
def test_a_script_that_says_no_text_is_told_what_it_said(said: Any, kind: str) -> None:
    with pytest.raises(SpeechError, match=rf"^the script returned {kind}, not str$"):
        say(lambda _: said)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    code = (
        "def echo(messages):\n    return f'{len(messages)}: {messages[-1].content}'\n"
        "async def later(messages):\n    return messages[0].role\n"
        "number = 7\n"
    )
    (tmp_path / "my_scripts.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_scripts", raising=False)
    return "my_scripts"


def test_the_function_of_a_user_sees_the_messages(module: str) -> None:
    assert say(find_script(f"{module}:echo")).text == "2: 3 + 4"
    assert say(find_script(f"{module}:later")).text == "system"


@pytest.mark.parametrize(
    "name", ["", ":", ":echo", "echo", "no_such_module:echo", "my_scripts", "my_scripts:", "my_scripts:ehco", "..a:b"]
)
def test_a_script_that_is_not_there_is_one_line(module: str, name: str) -> None:
    with pytest.raises(MarftError, match=r"^agents' script: cannot import ") as caught:
        find_script(name)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_script_is_a_function(module: str) -> None:
    with pytest.raises(MarftError, match=r"^agents' script: 'my_scripts:number' is not a function; write `def "):
        find_script(f"{module}:number")


def test_a_team_mates_words_have_no_ids() -> None:
    request = Request(adapter=None, prompt_ids=(), sampling=Sampling(max_tokens=99), seed=0)
    said = asyncio.run(ScriptedEngine(lambda request: "héllo", ids=False).generate(request))
    assert (said.text, said.token_ids, said.logprobs, said.finish) == ("héllo", (), (), "stop")
