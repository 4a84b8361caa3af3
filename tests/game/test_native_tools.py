"""Tools in the formats that models know: calls in a message, answers as messages, and calls that are none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from voices import Voice, in_turn, run, team

from marft.game.agent import Agent
from marft.game.observation import History
from marft.game.play import Game
from marft.game.tool_calls import CallFormat
from marft.game.tools import NO_TOOL, AgentTool, ToolFailure, Tools
from marft.types import ChatOptions, Message, Request, Turn


async def add(asked: str) -> str:
    numbers = json.loads(asked)
    return str(numbers["a"] + numbers["b"])


async def shout(asked: str) -> str:
    return asked.upper()


async def fail(asked: str) -> str:
    raise ToolFailure("no answer within 2 seconds", "late_calls")


def tools(written: CallFormat, most: int = 4) -> Tools:
    return Tools(
        by_name={
            "add": AgentTool(help="help of add", use=add, argument=None, schema='{"name": "add"}'),
            "loud": AgentTool(help="help of loud", use=shout, argument="text", schema='{"name": "loud"}'),
            "slow": AgentTool(help="help of slow", use=fail, argument="text", schema='{"name": "slow"}'),
        },
        most=most,
        written=written,
    )


def armed(voice: Voice, written: CallFormat, *names: str, history: History = "flat", most: int = 4) -> dict[str, Agent]:
    own = tools(written, most)
    return {
        name: replace(agent, tools=own, history=history, chat=ChatOptions(tools=own.schemas))
        for name, agent in team(*(names or ("a",)), voice=voice).items()
    }


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def hermes(*calls: str) -> str:
    return "Let me see.\n" + "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in calls)


def llama(*calls: str) -> str:
    return calls[0].replace("arguments", "parameters")


def mistral(*calls: str) -> str:
    return f"[TOOL_CALLS][{', '.join(calls)}]"


def bare_mistral(*calls: str) -> str:
    return f"[{', '.join(calls)}]"  # as it is decoded, without the special token


FORMATS: Sequence[tuple[CallFormat, Callable[..., str]]] = [
    ("hermes", hermes),
    ("llama", llama),
    ("mistral", mistral),
    ("mistral", bare_mistral),
]


def test_the_template_is_told_and_the_prompt_is_not() -> None:
    own = tools("hermes")
    assert own.help == ""
    assert own.stops == ()
    assert own.schemas == ('{"name": "add"}', '{"name": "loud"}', '{"name": "slow"}')
    tags = replace(own, written=None)
    assert tags.help == "help of add\nhelp of loud\nhelp of slow"
    assert tags.stops == ("</add>", "</loud>", "</slow>")
    assert tags.schemas == ()


@pytest.mark.parametrize("history", ["flat", "conversation", "shared"])
@pytest.mark.parametrize(("written", "spell"), FORMATS)
def test_a_call_is_answered_by_a_tool_message(written: CallFormat, spell: Callable[..., str], history: History) -> None:
    said = spell(call("add", a=2, b=3))
    voice = Voice(in_turn(said, "It is 5."))
    episode = run(armed(voice, written, history=history))
    assert [(turn.agent, turn.text, turn.to) for turn in episode.turns] == [
        ("a", said, "a"),
        ("add", "5", "a"),
        ("a", "It is 5.", None),
    ]
    first, second = (request.messages for request in voice.requests)
    assert second[: len(first)] == first
    spoken, answer = second[len(first) :]
    assert answer == Message(role="tool", content="5", answers="call00000")
    if written == "mistral":
        assert [(each.id, each.name, json.loads(each.arguments)) for each in spoken.calls] == [
            ("call00000", "add", {"a": 2, "b": 3})
        ]
        assert spoken.content == ""
    else:
        assert spoken == Message(role="assistant", content=said)  # its very text, so that its tokens stay the same
    assert episode.counts == {}


@pytest.mark.parametrize(("written", "spell"), [("hermes", hermes), ("mistral", mistral)])
def test_several_calls_of_one_message_run_at_once(written: CallFormat, spell: Callable[..., str]) -> None:
    meeting = asyncio.Barrier(2)

    async def meet(asked: str) -> str:
        async with asyncio.timeout(10):
            await meeting.wait()
        return asked.upper()

    voice = Voice(in_turn(spell(call("loud", text="x"), call("loud", text="y")), "done"))
    agents = armed(voice, written)
    own = replace(agents["a"].tools, by_name={"loud": AgentTool(help="", use=meet, schema="{}")})
    episode = run({"a": replace(agents["a"], tools=own)})
    assert [turn.text for turn in episode.turns[1:]] == ["X", "Y", "done"]
    assert voice.requests[1].messages[-2:] == (
        Message(role="tool", content="X", answers="call00000"),
        Message(role="tool", content="Y", answers="call00001"),
    )


@pytest.mark.parametrize(
    ("said", "answer", "count"),
    [
        (hermes('{"name": "add", '), "error: the call is not JSON", "malformed_calls"),
        (hermes('{"function": "add"}'), "error: a call is", "malformed_calls"),
        (hermes(call("add", a=2, b=3), "{"), "error: the call is not JSON", "malformed_calls"),
        (hermes(call("divide", a=2)), "error: no tool is called 'divide'; there are add, loud, slow", "unknown_tools"),
        (hermes(call("loud", words="x")), 'error: the arguments are {"text": "a text"}', "malformed_calls"),
        (hermes(call("loud", text=3)), 'error: the arguments are {"text": "a text"}', "malformed_calls"),
        (hermes(call("slow", text="x")), "error: no answer within 2 seconds", "late_calls"),
    ],
)
def test_calls_that_fail_are_answered_and_counted(said: str, answer: str, count: str) -> None:
    voice = Voice(in_turn(said, "never mind"))
    episode = run(armed(voice, "hermes"))
    assert episode.turns[1].text.startswith(answer)
    assert episode.turns[1].agent in (NO_TOOL, "loud", "slow")
    assert episode.counts == {count: 1}
    assert voice.requests[1].messages[-1].content == episode.turns[1].text
    assert episode.turns[-1].text == "never mind"


def test_a_malformed_call_in_mistrals_format_is_answered_by_the_user() -> None:
    voice = Voice(in_turn("[TOOL_CALLS][{", "never mind"))
    run(armed(voice, "mistral"))
    assert [message.role for message in voice.requests[1].messages[-2:]] == ["assistant", "user"]
    assert not voice.requests[1].messages[-2].calls


def test_calls_in_thoughts_are_none() -> None:
    said = f"<think>{hermes(call('add', a=1, b=1))}</think>two"
    episode = run(armed(Voice(in_turn(said)), "hermes"))
    assert [(turn.agent, turn.text) for turn in episode.turns] == [("a", "two")]


def test_thoughts_stay_with_the_agent_that_calls() -> None:
    said = f"<think>Sum it.</think>{hermes(call('add', a=1, b=1))}"
    voice = Voice(in_turn(said, "two"))
    run(armed(voice, "hermes"))
    assert voice.requests[1].messages[-2].content == said


def test_past_the_limit_calls_are_not_made() -> None:
    three = hermes(*(call("loud", text=text) for text in "xyz"))
    voice = Voice(lambda request: three)
    episode = run(armed(voice, "hermes", most=2))
    assert [turn.text for turn in episode.turns[1:-1]] == ["X", "Y", "error: a turn has at most 2 calls"]
    assert (episode.turns[-1].text, episode.turns[-1].to) == (three, None)  # it stands as it is
    assert episode.counts == {"refused_calls": 1}


def test_agents_that_act_at_once_read_their_own_answers_alone() -> None:
    def script(request: Request) -> str:
        called = any(message.role == "tool" for message in request.messages)
        return "done" if called or request.adapter == "c" else hermes(call("loud", text=str(request.adapter)))

    async def workflow(game: Game) -> None:
        await game.act("a", "b", "c")
        await game.act("a")

    voice = Voice(script)
    run(armed(voice, "hermes", "a", "b", "c"), workflow)
    again = {request.adapter: request.messages for request in voice.requests[3:5]}
    assert [message.content for message in again["a"][2:]] == [hermes(call("loud", text="a")), "A"]
    assert [message.content for message in again["b"][2:]] == [hermes(call("loud", text="b")), "B"]
    later = voice.requests[5].messages[-1].content  # flat: the talk is a transcript by then
    assert "loud: A" in later
    assert "loud: B" not in later


def test_in_a_conversation_the_talk_with_tools_stays() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a")
        await game.act("a")

    voice = Voice(in_turn(hermes(call("loud", text="x")), "first", "second"))
    run(armed(voice, "hermes", history="conversation"), workflow)
    roles = [message.role for message in voice.requests[2].messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]


def test_a_replay_takes_the_recorded_answers() -> None:
    said = hermes(call("add", a=2, b=3))
    original = run(armed(Voice(in_turn(said, "five")), "hermes")).turns
    voice = Voice(in_turn("six"))
    again = run(armed(voice, "hermes"), replayed=original[:2])
    assert [turn.text for turn in again.turns] == [said, "5", "six"]
    assert voice.requests[0].messages[-1] == Message(role="tool", content="5", answers="call00000")


def test_what_a_tool_says_has_no_tokens_to_learn_from() -> None:
    turns: tuple[Turn, ...] = run(armed(Voice(in_turn(hermes(call("add", a=2, b=3)), "five")), "hermes")).turns
    assert [bool(turn.completion.token_ids) for turn in turns] == [True, False, True]
