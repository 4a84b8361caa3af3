"""What an agent and a critic are shown, word for word."""

from __future__ import annotations

from dataclasses import replace

import toys
from voices import TASK, Voice, prompt, run, says_its_name, team

from marft.game.observation import central_state, observe
from marft.types import Completion, Message, Turn


def turn(agent: str, text: str) -> Turn:
    said = Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0)
    return Turn(agent=agent, index=0, nth=0, shown="", observation=(), prompt_ids=(), completion=said)


def test_a_view_word_for_word() -> None:
    said = [turn("planner", "2, +2"), turn("solver", "Answer: 4")]
    assert observe(prompt="Verify.", task=TASK, shown="Board.", turns=said) == (
        Message(role="system", content="Verify."),
        Message(role="user", content="What is 2 + 2?\n\nBoard.\n\nplanner: 2, +2\n\nsolver: Answer: 4"),
    )
    assert observe(prompt="", task=TASK, shown="", turns=[]) == (
        Message(role="system", content=""),
        Message(role="user", content="What is 2 + 2?"),
    )


def test_an_anonymous_view_word_for_word() -> None:
    said = [turn("planner", "2, +2"), turn("solver", "Answer: 4")]
    assert observe(prompt=None, task=TASK, shown="Board.", turns=said) == (
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
