"""`game.chat`: an agent answers the workflow's own messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import toys
from voices import TASK, Voice, in_turn, run, says_its_name, team

from marft.game.messages import read_messages, read_tools
from marft.game.play import Game
from marft.game.tool_calls import format_of, take_apart
from marft.types import Completion, FunctionCall, MarftError, Message, PromptTooLong, Request, Turn

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}]


def test_an_agent_reads_the_messages_and_nothing_else() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a")
        turn = await game.chat("b", ASKED, max_tokens=7, stop=["."])
        assert turn is game.turns[1]

    voice = Voice()
    turns = run(team("a", "b", voice=voice), workflow).turns
    assert turns[1].observation == (Message(role="system", content="Be brief."), Message(role="user", content="2 + 2?"))
    assert (turns[1].agent, turns[1].index, turns[1].step) == ("b", 1, "next")
    request = voice.requests[1]
    assert (request.adapter, request.sampling.max_tokens, request.sampling.stop) == ("b", 7, (".",))
    assert request.sampling.temperature == 1.0


def test_it_may_not_say_more_than_its_profile_allows() -> None:
    voice = Voice()

    async def workflow(game: Game) -> None:
        await game.chat("a", ASKED, max_tokens=10_000)

    run(team("a", voice=voice), workflow)
    assert voice.requests[0].sampling.max_tokens == 99


def test_the_environment_hears_it_unless_it_is_aside() -> None:
    async def workflow(game: Game) -> None:
        await game.chat("a", ASKED, aside=True)
        assert (await game.reward()).team == (await game.reward()).team == 0.0
        await game.chat("a", ASKED)
        assert (await game.reward()).team > 0

    assert [turn.aside for turn in run(team("a"), workflow, env=toys.Echo()).turns] == [True, False]


class Slow(Voice):
    """Answers when it is told to, in any order."""

    def __init__(self) -> None:
        super().__init__(says_its_name)
        self.gates: dict[str, asyncio.Event] = {}

    async def generate(self, request: Request) -> Completion:
        word = request.messages[-1].content
        await self.gates.setdefault(word, asyncio.Event()).wait()
        return await super().generate(request)


def test_calls_that_overlap_are_one_step_and_each_is_recorded_once() -> None:
    voice = Slow()

    def ask(game: Game, word: str) -> Awaitable[Turn]:
        return asyncio.ensure_future(game.chat("a", [{"role": "user", "content": word}]))

    async def workflow(game: Game) -> None:
        long, short = ask(game, "long"), ask(game, "short")
        await asyncio.sleep(0)
        voice.gates.setdefault("short", asyncio.Event()).set()
        await short
        voice.gates["next"] = asyncio.Event()
        voice.gates["next"].set()
        await ask(game, "next")
        voice.gates["long"].set()
        await long

    turns = run(team("a", voice=voice), workflow, env=toys.Echo()).turns
    assert [turn.observation[-1].content for turn in turns] == ["short", "next", "long"]
    assert [(turn.index, turn.nth, turn.step) for turn in turns] == [(0, 0, "next"), (1, 1, "next"), (2, 2, "same")]


def test_seeds_belong_to_the_messages_not_to_the_order() -> None:
    def seeds(order: list[str]) -> dict[tuple[str, int], int]:
        voice = Voice()

        async def workflow(game: Game) -> None:
            await asyncio.gather(*(game.chat("a", [{"role": "user", "content": word}]) for word in order))

        run(team("a", voice=voice), workflow)
        found: dict[tuple[str, int], int] = {}
        for request in voice.requests:
            word = request.messages[-1].content
            found[word, sum(key[0] == word for key in found)] = request.seed
        return found

    one, other = seeds(["x", "y", "x"]), seeds(["y", "x", "x"])
    assert one == other
    assert len(set(one.values())) == 3


def test_a_call_that_is_given_up_leaves_nothing() -> None:
    async def workflow(game: Game) -> None:
        call = asyncio.ensure_future(game.chat("a", [{"role": "user", "content": "never"}]))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await game.act("b")

    turns = run(team("a", voice=Slow()) | team("b"), workflow).turns
    assert [(turn.agent, turn.index) for turn in turns] == [("b", 0)]


def test_a_prompt_that_is_too_long_may_be_made_shorter() -> None:
    class Short(Voice):
        async def generate(self, request: Request) -> Completion:
            if len(request.prompt_ids) > 40:
                raise PromptTooLong(len(request.prompt_ids), 40)
            return await super().generate(request)

    async def patient(game: Game) -> None:
        await game.chat("a", [{"role": "user", "content": "x"}])
        try:
            await game.chat("a", [{"role": "user", "content": "x" * 100}])
        except PromptTooLong:
            await game.chat("a", [{"role": "user", "content": "x" * 9}])

    async def careless(game: Game) -> None:
        await game.chat("a", [{"role": "user", "content": "x"}])
        await game.chat("a", [{"role": "user", "content": "x" * 100}])

    assert len(run(team("a", voice=Short()), patient).turns) == 2
    assert (
        run(team("a", voice=Short()), careless, ended="overflow").error
        == "the prompt has 107 tokens, the model reads 40"
    )


async def two_at_once(game: Game) -> None:
    await asyncio.gather(*(game.chat("a", [{"role": "user", "content": word}]) for word in ("x", "y")))
    await game.chat("b", ASKED)


def test_calls_that_overlap_are_repeated_by_what_they_ask() -> None:
    whole = run(team("a", "b"), two_at_once, env=toys.Echo())
    swapped = (whole.turns[1], whole.turns[0])
    again = run(team("a", "b"), two_at_once, env=toys.Echo(), replayed=swapped, trunk=0)
    assert sorted(turn.observation[-1].content for turn in again.turns[:2]) == ["x", "y"]
    assert [turn.index for turn in again.turns] == [0, 1, 2]


def test_a_workflow_that_asks_otherwise_is_told() -> None:
    async def first(game: Game) -> None:
        await game.chat("a", [{"role": "user", "content": "x"}])

    async def other(game: Game) -> None:
        await game.chat("a", [{"role": "user", "content": "y"}])

    whole = run(team("a"), first)
    with pytest.raises(MarftError, match="did not repeat itself: turn 0 was a's and is now somebody else's"):
        run(team("a"), other, replayed=whole.turns, trunk=0)


def test_the_base_answers_in_place_of_the_adapter() -> None:
    voice = Voice()

    async def workflow(game: Game) -> None:
        await game.chat("a", ASKED)

    run(team("a", voice=voice), workflow, base_at=0)
    assert voice.requests[0].adapter is None


def test_who_was_asked_aside_has_not_seen_the_others() -> None:
    async def workflow(game: Game) -> None:
        await game.act("b")
        await game.chat("a", ASKED)
        await game.act("a")

    agents = {name: replace(agent, history="conversation") for name, agent in team("a", "b").items()}
    assert run(agents, workflow).turns[2].observation[-1].content == "b: <b>"


async def unknown(game: Game) -> None:
    await game.chat("nobody", ASKED)


async def no_list(game: Game) -> None:
    await game.chat("a", "hello")  # type: ignore[arg-type]


async def while_acting(game: Game) -> None:
    await asyncio.gather(game.act("a"), game.chat("a", ASKED))


async def acting_while(game: Game) -> None:
    await asyncio.gather(game.chat("a", ASKED), game.act("a"))


@pytest.mark.parametrize(
    ("workflow", "line"),
    [
        (unknown, "names 'nobody'"),
        (no_list, "messages are a list, not str"),
        (while_acting, "game.chat while game.act is under way"),
        (acting_while, "game.act while another is under way"),
    ],
)
def test_what_a_workflow_does_wrong(workflow: Callable[[Game], Awaitable[None]], line: str) -> None:
    with pytest.raises(MarftError, match=line):
        run(team("a", voice=Slow()), workflow)


# --- messages and tools as clients write them ---------------------------------------------------------------------------
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_every_form_of_a_message() -> None:
    found = read_messages(
        [
            {"role": "developer", "content": "d"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            Message(role="user", content="u"),
        ]
    )
    assert found == (
        Message(role="system", content="d"),
        Message(role="assistant", content="", calls=(FunctionCall(id="c1", name="add", arguments='{"a": 1}'),)),
        Message(role="tool", content="2", answers="c1"),
        Message(role="user", content="u"),
    )


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ([], "messages are empty"),
        (None, "messages are a list"),
        ([3], r"messages\[0\] is int, not a message"),
        ([{"role": "king", "content": ""}], r"messages\[0\].role is none of"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content is int"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] is no text"),
        ([{"role": "user", "content": "\ud800"}], "half of a surrogate pair"),
        ([{"role": "assistant", "tool_calls": [{"id": "x"}]}], r"tool_calls\[0\] has no function"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "is not JSON"),
        ([{"role": "tool", "tool_call_id": 3, "content": ""}], "tool_call_id is int"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}], "not a JSON object"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": "\\ud800"}'}}]}],
            "surrogate",
        ),
    ],
)
def test_messages_that_cannot_be_read(given: Any, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        read_messages(given)


def test_tools_that_cannot_be_read() -> None:
    assert read_tools(None) == ()
    assert read_tools([{"type": "function", "function": {"name": "f"}, "strict": True}]) == (
        '{"type": "function", "function": {"name": "f"}}',
    )
    for given in ("f", [{"name": "f"}], [{"type": "function", "function": {"name": "f", "x": object()}}]):
        with pytest.raises(ValueError, match="tools"):
            read_tools(given)


@pytest.mark.parametrize(
    ("text", "written", "content", "calls", "malformed"),
    [
        ("plain", "hermes", "plain", [], 0),
        (
            'So:\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
            "hermes",
            "So:",
            [("f", '{"x": 1}')],
            0,
        ),
        (
            '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name"</tool_call>',
            "hermes",
            "",
            [("f", "{}")],
            1,
        ),
        ('<tool_call>{"name": "f", "arguments": {}}', "hermes", "", [("f", "{}")], 0),  # cut before it was closed
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "hermes", "", [], 1),
        ('{"name": "f", "parameters": {"x": 1}}', "llama", "", [("f", '{"x": 1}')], 0),
        ("{no", "llama", "", [], 1),
        ('ok [TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, 3]', "mistral", "ok", [("f", '{"x": 1}')], 1),
        (
            '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
            None,
            '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
            [],
            0,
        ),
    ],
)
def test_calls_in_each_family_s_format(text: str, written: Any, content: str, calls: Any, malformed: int) -> None:
    found = take_apart(text, written)
    assert (found.content, [(call.name, call.arguments) for call in found.calls]) == (content, calls)
    assert len(found.malformed) == malformed
    assert [call.id for call in found.calls] == [f"call{i:05d}" for i in range(len(calls))]


def test_the_format_that_a_template_asks_for() -> None:
    assert format_of("{% for m in messages %}") is None
    assert format_of("{% if tools %}<tool_call>") == "hermes"
    assert format_of("{% if tools %}[TOOL_CALLS]") == "mistral"
    assert format_of("{% if tools %}Environment: ipython") == "llama"


def test_the_task_is_there_for_programs_that_want_it() -> None:
    async def workflow(game: Game) -> None:
        await game.chat("a", [{"role": "user", "content": game.task.prompt}])

    assert run(team("a", voice=Voice(in_turn("4"))), workflow).turns[0].observation[0].content == TASK.prompt
