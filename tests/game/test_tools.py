"""Tools in an agent's turn: the call, the answer in the next observation, who sees it, and the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import toys
from voices import Voice, in_turn, prompt, run, team

import marft
from marft.game import play as playing
from marft.game.agent import Agent
from marft.game.play import Game
from marft.game.tools import AgentTool, ToolCall, Tools
from marft.types import Completion, Request, Turn


def said(text: str, stop: str | None) -> Completion:
    return Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0, stop=stop)


class Calls(Voice):
    """Ends a message at the closing tag of whatever tag it leaves open, as an engine does that knows it as a stop string."""

    async def generate(self, request: Request) -> Completion:
        completion = await super().generate(request)
        _, opened, tag = completion.text.rpartition("<")
        return replace(completion, stop=f"</{tag.partition('>')[0]}>") if opened else completion


async def reverse(text: str) -> str:
    return text[::-1]


async def shout(text: str) -> str:
    return text.upper()


TOOLS = Tools(
    by_name={
        "mirror": AgentTool(help="Write <mirror>text</mirror> to have it reversed.", use=reverse),
        "loud": AgentTool(help="Write <loud>text</loud> to have it shouted.", use=shout),
    },
    most=2,
)


def armed(agents: dict[str, Agent], *names: str) -> dict[str, Agent]:
    return {name: replace(agent, tools=TOOLS) if name in names else agent for name, agent in agents.items()}


@pytest.mark.parametrize(
    ("text", "stop", "call"),
    [
        ("Hm. <mirror>abc", "</mirror>", ToolCall(tool="mirror", asked="abc", text="Hm. <mirror>abc</mirror>")),
        (
            "<mirror>a</mirror>",
            "</mirror>",
            ToolCall(tool="mirror", asked="a", text="<mirror>a</mirror>"),
        ),  # played again
        ("<loud>a<mirror>b", "</mirror>", ToolCall(tool="mirror", asked="b", text="<loud>a<mirror>b</mirror>")),
        ("<mirror>a<loud>b", "</mirror>", ToolCall(tool="mirror", asked="a<loud>b", text="<mirror>a<loud>b</mirror>")),
        ("<mirror>", "</mirror>", ToolCall(tool="mirror", asked="", text="<mirror></mirror>")),
        ("<mirror>abc", None, None),  # it ended without the closing tag: what it says is its answer
        ("<mirror>abc", "</loud>", None),
        ("<mirror>abc", "###", None),
        ("<Mirror>abc", "</mirror>", None),
        ("", "</mirror>", None),
    ],
)
def test_what_is_a_call(text: str, stop: str | None, call: ToolCall | None) -> None:
    assert TOOLS.find_call(said(text, stop)) == call


def test_an_agent_without_tools_calls_nothing() -> None:
    assert Tools().find_call(said("<mirror>abc", "</mirror>")) is None


def test_a_turn_stops_at_the_closing_tag() -> None:
    assert TOOLS.stops == ("</mirror>", "</loud>")


def test_the_answer_is_seen_by_the_caller_alone_and_the_environment_hears_the_last_message() -> None:
    voice = Calls(in_turn("Let me see. <mirror>abc", "It is cba.", "fine"))
    episode = run(armed(team("a", "b", voice=voice), "a"), env=toys.Echo())
    assert [(turn.agent, turn.text, turn.to) for turn in episode.turns] == [
        ("a", "Let me see. <mirror>abc</mirror>", "a"),
        ("mirror", "cba", "a"),
        ("a", "It is cba.", None),
        ("b", "fine", None),
    ]
    assert episode.reward == toys.Echo().reward("It is cba.fine")
    first, second, other = (prompt(request) for request in voice.requests)
    assert TOOLS.help in first
    assert TOOLS.help in second
    assert TOOLS.help not in other
    assert second.endswith("a: Let me see. <mirror>abc</mirror>\n\nmirror: cba")
    assert "mirror" not in other
    assert other.endswith("a: It is cba.")


def test_what_a_tool_says_has_no_tokens_to_learn_from() -> None:
    voice = Calls(in_turn("<mirror>abc", "cba"))
    call, answer, last = run(armed(team("a", voice=voice), "a")).turns
    assert call.completion.token_ids
    assert last.completion.token_ids
    assert answer.completion.token_ids == answer.prompt_ids == ()
    assert (call.nth, last.nth) == (0, 1)


def test_a_profile_that_sees_nobody_still_sees_its_own_tools() -> None:
    voice = Calls(in_turn("<mirror>abc", "done"))
    run(armed(team("a", voice=voice, a=()), "a"))
    assert prompt(voice.requests[1]).endswith("a: <mirror>abc</mirror>\n\nmirror: cba")


def test_past_the_limit_the_message_stands_as_it_is() -> None:
    voice = Calls(lambda request: "<mirror>abc")
    episode = run(armed(team("a", voice=voice), "a"))
    assert [turn.agent for turn in episode.turns] == ["a", "mirror", "a", "mirror", "a"]
    assert (episode.turns[-1].text, episode.turns[-1].to) == ("<mirror>abc", None)


def test_agents_that_act_at_once_use_their_tools_at_once() -> None:
    def script(request: Request) -> str:
        text = prompt(request)
        return f"<loud>{request.adapter}" if "loud: " not in text else f"{request.adapter} has it"

    made: list[Sequence[Turn]] = []

    async def workflow(game: Game) -> None:
        made.append(await game.act("b", "c", "a"))

    episode = run(armed(team("a", "b", "c", voice=Calls(script)), "a", "b"), workflow)
    assert [(turn.agent, turn.text) for turn in episode.turns] == [
        ("a", "<loud>a</loud>"), ("b", "<loud>b</loud>"), ("c", "<loud>c"),
        ("loud", "A"), ("loud", "B"), ("a", "a has it"), ("b", "b has it"),
    ]  # fmt: skip
    assert [turn.text for turn in made[0]] == ["b has it", "<loud>c", "a has it"]
    assert "loud: B" not in episode.turns[5].observation[-1].content


def test_a_replay_takes_the_recorded_answers() -> None:
    used: list[str] = []

    async def dice(text: str) -> str:
        used.append(text)
        return str(len(used))

    tools = Tools(by_name={"dice": AgentTool(help="", use=dice)}, most=1)

    def agents(*texts: str) -> dict[str, Agent]:
        return {"a": replace(team("a", voice=Calls(in_turn(*texts)))["a"], tools=tools)}

    original = run(agents("<dice>d6", "so be it"))
    again = run(agents("otherwise"), replayed=original.turns[:2])
    assert [turn.text for turn in again.turns] == ["<dice>d6</dice>", "1", "otherwise"]
    assert used == ["d6"]


def test_a_call_that_reaches_the_limit_of_turns_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "MAX_TURNS", 2)
    voice = Calls(lambda request: "<mirror>abc")
    episode = run(armed(team("a", voice=voice), "a"), ended="cut_off")
    assert (len(episode.turns), episode.cut_before) == (2, "a")


class Whispers(toys.Echo):
    def observe(self, state: str, agent: str) -> str:
        return f"for {agent} only"

    def whose_turn(self, state: str) -> str | None:
        return {0: "b", 1: "a"}.get(len(state))

    def transition(self, state: str, turn: marft.Turn) -> str:
        return state + "x"


def test_an_environment_may_show_each_agent_something_else_and_say_whose_turn_it_is() -> None:
    from marft.game.workflows import find_workflow

    episode = run(team("a", "b"), find_workflow("turns"), env=Whispers())
    assert [(turn.agent, turn.shown) for turn in episode.turns] == [("b", "for b only"), ("a", "for a only")]
    assert "<b>" not in episode.turns[1].observation[-1].content
