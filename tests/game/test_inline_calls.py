"""Calls in the middle of a message: the answer stands behind the call, and the same message goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from voices import Voice, in_turn, run, team

from marft.game.agent import Agent
from marft.game.observation import History
from marft.game.play import Game
from marft.game.tools import AgentTool, InlineCall, ToolFailure, Tools
from marft.types import Completion, Message, Request

LINE = InlineCall(opening="", closing="=")
GSM8K = InlineCall(opening="<<", closing="=")


class Stopped(Voice):
    """Is stopped at "=", as an engine does that knows it as a stop string."""

    async def generate(self, request: Request) -> Completion:
        said = await super().generate(request)
        return replace(said, text=said.text[:-1], stop="=") if said.text.endswith("=") else said


async def double(asked: str) -> str:
    if not asked.strip().isdigit():
        raise ToolFailure("no number", "failed_calls")
    return str(2 * int(asked))


def armed(voice: Voice, *names: str, inline: InlineCall = LINE, history: History = "flat") -> dict[str, Agent]:
    tools = Tools(by_name={"double": AgentTool(help="help", use=double)}, most=2, inline=inline)
    return {
        name: replace(agent, tools=tools, history=history)
        for name, agent in team(*(names or ("a",)), voice=voice).items()
    }


@pytest.mark.parametrize(
    ("inline", "said", "asked"),
    [(LINE, "1+2", "1+2"), (LINE, "so\n1+2", "1+2"), (LINE, "", ""), (GSM8K, "so <<1+2", "1+2"), (GSM8K, "1+2", None)],
)
def test_where_a_call_begins(inline: InlineCall, said: str, asked: str | None) -> None:
    assert inline.asked(said) == asked


@given(before=st.text(), asked=st.text().filter(lambda text: "<" not in text))
def test_a_call_is_what_stands_behind_the_last_opening(before: str, asked: str) -> None:
    assert GSM8K.asked(f"{before}<<{asked}") == asked


def test_nothing_is_told_and_the_closing_stops() -> None:
    tools = armed(Voice())["a"].tools
    assert (tools.help, tools.stops, tools.schemas) == ("", ("=",), ())


def test_the_message_goes_on_behind_the_answer_and_is_heard_whole() -> None:
    voice = Stopped(in_turn("4=", "\n8=", "\nAnswer: 16", "fine"))
    episode = run(armed(voice, "a", "b"))
    assert [(turn.agent, turn.text, turn.to) for turn in episode.turns] == [
        ("a", "4=", "double"),
        ("double", "8", "double"),
        ("a", "4=8\n8=", "double"),
        ("double", "16", "double"),
        ("a", "4=8\n8=16\nAnswer: 16", None),
        ("b", "fine", None),
    ]
    first, second, third, other = (request.messages for request in voice.requests)
    assert second == (*first, Message(role="assistant", content="4=8", open=True))
    assert third == (*first, Message(role="assistant", content="4=8\n8=16", open=True))
    assert other[-1].content.count("4=8") == 1  # the message once, not its pieces
    assert episode.calls == {"a": {"calls": 2}}


def test_a_failure_is_written_into_the_message_and_counted() -> None:
    episode = run(armed(Stopped(in_turn("x=", " never mind"))))
    assert episode.turns[-1].text == "x=error: no number never mind"
    assert episode.calls == {"a": {"calls": 1, "failed_calls": 1}}
    assert episode.counts == {"failed_calls": 1}


def test_thoughts_stay_in_the_message_and_out_of_what_is_heard() -> None:
    voice = Stopped(in_turn("<think>twice</think>\n4=", "."))
    episode = run(armed(voice))
    assert voice.requests[1].messages[-1].content == "<think>twice</think>\n4=8"
    assert episode.turns[-1].text == "4=8."


@pytest.mark.parametrize("history", ["flat", "conversation", "shared"])
def test_later_an_agent_reads_its_whole_message_once(history: History) -> None:
    async def twice(game: Game) -> None:
        await game.act("a")
        await game.act("a")

    voice = Stopped(in_turn("4=", ".", "done"))
    run(armed(voice, history=history), twice)
    read = voice.requests[2].messages
    assert not any(message.open for message in read)
    assert "\n".join(message.content for message in read).count("4=8.") == 1
    assert sum(message.content.count("4=") for message in read) == 1


def test_a_replay_goes_on_from_the_recorded_answer() -> None:
    original = run(armed(Stopped(in_turn("4=", "!")))).turns
    voice = Stopped(in_turn("?"))
    again = run(armed(voice), replayed=original[:2])
    assert [turn.text for turn in again.turns] == ["4=", "8", "4=8?"]
