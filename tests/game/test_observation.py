"""What an agent and a critic are shown, word for word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import toys
from voices import TASK, Voice, prompt, run, says_its_name, team

from marft.game.agent import Agent
from marft.game.observation import History, View, central_state
from marft.game.play import Game
from marft.game.workflows.built_in import sequential
from marft.types import Completion, Message, Turn


def turn(agent: str, text: str) -> Turn:
    said = Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0)
    return Turn(agent=agent, index=0, nth=0, shown="", observation=(), prompt_ids=(), completion=said)


def view(prompt: str | None, shown: str, turns: Sequence[Turn]) -> View:
    return View(agent="verifier", prompts={"verifier": prompt}, task=TASK, shown=shown, turns=turns, sees=None)


def test_a_view_word_for_word() -> None:
    said = [turn("planner", "2, +2"), turn("solver", "Answer: 4")]
    assert view("Verify.", "Board.", said).observe("flat") == (
        Message(role="system", content="Verify."),
        Message(role="user", content="What is 2 + 2?\n\nBoard.\n\nplanner: 2, +2\n\nsolver: Answer: 4"),
    )
    assert view("", "", []).observe("flat") == (
        Message(role="system", content=""),
        Message(role="user", content="What is 2 + 2?"),
    )


def test_an_anonymous_view_word_for_word() -> None:
    said = [turn("planner", "2, +2"), turn("solver", "Answer: 4")]
    assert view(None, "Board.", said).observe("flat") == (
        Message(role="user", content="What is 2 + 2?\n\nBoard.\n\n2, +2\n\nAnswer: 4"),
    )


def test_an_anonymous_team_reads_no_name_and_no_role() -> None:
    voice = Voice(lambda request: "I think it is 4")
    agents = team("planner", "solver", "judge", voice=voice)
    named = run(agents)
    assert any("planner" in prompt(request) for request in voice.requests)
    voice.requests.clear()
    nameless = run({name: replace(agent, prompt=None) for name, agent in agents.items()})
    for request in voice.requests:
        assert [message.role for message in request.messages] == ["user"]
        assert not [name for name in agents if name in prompt(request).lower()]
        assert "You are" not in prompt(request)
    assert nameless.turns[2].observation[0].content == "What is 2 + 2?\n\nI think it is 4\n\nI think it is 4"
    assert [turn.text for turn in nameless.turns] == [turn.text for turn in named.turns]


def test_one_anonymous_agent_hides_nothing_from_the_others() -> None:
    agents = team("a", "b", "c", voice=Voice(says_its_name))
    agents["b"] = replace(agents["b"], prompt=None)
    turns = run(agents).turns
    assert turns[1].observation == (Message(role="user", content="What is 2 + 2?\n\n<a>"),)
    assert turns[2].observation[1].content == "What is 2 + 2?\n\na: <a>\n\nb: <b>"


def test_central_state_shows_everything_whatever_was_hidden() -> None:
    agents = team("a", "b", "c", b=(), c=())
    episode = run({name: replace(agent, prompt=None) for name, agent in agents.items()}, env=toys.Echo())
    assert all("<" not in turn.observation[0].content for turn in episode.turns)
    system, user = central_state(task=TASK, shown="board", turns=episode.turns[:2], next_agent="c")
    assert system == Message(role="system", content="Judge how likely the team is to succeed. Next: c.")
    assert user == Message(role="user", content=f"{TASK.prompt}\n\nboard\n\na: <a>\n\nb: <b>")


# --- an agent's own turns ----------------------------------------------------------------------------------------------
def conversing(*names: str, history: History, **sees: tuple[str, ...]) -> dict[str, Agent]:
    return {name: replace(agent, history=history) for name, agent in team(*names, **sees).items()}


async def two_rounds(game: Game) -> None:
    for _ in range(2):
        for name in game.team:
            await game.act(name)


def spoken(turn: Turn) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in turn.observation]


def test_a_first_turn_is_the_same_in_a_conversation_as_in_a_transcript() -> None:
    flat, talk = (run(conversing("a", "b", history=each)).turns for each in ("flat", "conversation"))
    assert [turn.observation for turn in flat] == [turn.observation for turn in talk]


def test_own_turns_are_the_assistants_and_all_else_the_users() -> None:
    turns = run(conversing("a", "b", history="conversation"), two_rounds, env=toys.Echo()).turns
    assert spoken(turns[3]) == [
        *spoken(turns[1]),
        ("assistant", "<b>"),
        ("user", "a: <a>"),
    ]
    assert spoken(turns[1])[0] == ("system", "You are B.")


def test_what_is_shown_anew_is_said_anew() -> None:
    """What has not changed since is not repeated; where nothing is new, the agent is told to go on."""

    class Board(toys.Echo):
        def observe(self, state: Any, agent: str) -> str:
            return "the board" if agent == "a" else f"said: {len(str(state))}"

    async def again(game: Game) -> None:
        await game.act("a")
        await game.act("a")

    turns = run(conversing("a", history="conversation"), again, env=Board()).turns
    assert spoken(turns[1])[-2:] == [("assistant", "<a>"), ("user", "Continue.")]
    turns = run(conversing("a", "b", history="conversation"), two_rounds, env=Board()).turns
    assert spoken(turns[3])[-1][1] == f"{turns[3].shown}\n\na: <a>"
    assert turns[3].shown != turns[1].shown


def test_those_who_spoke_at_once_hear_each_other_afterwards() -> None:
    async def at_once(game: Game) -> None:
        await game.act("a", "b")
        await game.act("b", "a")

    turns = run(conversing("a", "b", history="conversation"), at_once).turns
    assert [turn.agent for turn in turns] == ["a", "b", "a", "b"]
    assert spoken(turns[2])[-1] == ("user", "b: <b>")
    assert spoken(turns[3])[-1] == ("user", "a: <a>")


def test_what_an_agent_may_now_see_it_is_told_though_it_is_older() -> None:
    async def later(game: Game) -> None:
        await game.act("a")
        await game.act("b", sees=())
        await game.act("b", sees=("a", "b"))

    turns = run(conversing("a", "b", history="conversation"), later).turns
    assert "<a>" not in str(spoken(turns[1]))
    assert spoken(turns[2])[-2:] == [("assistant", "<b>"), ("user", "a: <a>")]


def test_an_agent_that_does_not_see_itself_begins_anew() -> None:
    turns = run(conversing("a", "b", history="conversation", b=("a",)), two_rounds).turns
    assert [role for role, _ in spoken(turns[3])] == ["system", "user"]
    assert spoken(turns[3])[-1][1] == f"{TASK.prompt}\n\na: <a>\n\na: <a>"


def test_in_a_shared_conversation_every_turn_is_an_assistants() -> None:
    turns = run(conversing("a", "b", history="shared"), two_rounds).turns
    assert spoken(turns[3]) == [
        ("user", f"{TASK.prompt}\n\nYou are A."),
        ("assistant", "<a>"),
        ("user", "You are B."),
        ("assistant", "<b>"),
        ("user", "You are A."),
        ("assistant", "<a>"),
        ("user", "You are B."),
    ]
    for before, after in pairwise(turns):
        assert after.observation[: len(before.observation)] == before.observation


def test_in_a_shared_conversation_nobody_reads_what_is_hidden() -> None:
    turns = run(conversing("a", "b", "c", history="shared", c=("b",)), sequential).turns
    assert [content for role, content in spoken(turns[2]) if role == "assistant"] == ["<b>"]
