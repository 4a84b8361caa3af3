"""Thoughts: trained on, and read by nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import toys
from voices import Voice, in_turn, run, team

from marft.game.thoughts import ThoughtMarkers


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("Answer: 4", None),
        ("<think>5?</think>Answer: 4", "Answer: 4"),
        ("<think>Answer: 5</think>\n\nAnswer: 4", "Answer: 4"),
        ("<think>Answer: 4", ""),  # nobody knows what it would have answered
        ("Answer: 4 <think>or 5", ""),
        ("it is 5</think>Answer: 4", "Answer: 4"),  # the prompt may have opened it
        ("<think>a</think>So <think>b</think>4", "So 4"),
        ("<think>a<think>b</think>c</think>4", "4"),
        ("<think>\n\n</think>\n\n4", "4"),
    ],
)
def test_what_others_read(text: str, heard: str | None) -> None:
    assert ThoughtMarkers().without_thoughts(text) == heard


@pytest.mark.parametrize(("text", "heard"), [("5?</think>4", "4"), ("Answer: 4", ""), ("<think>5</think>4", "4")])
def test_a_thought_that_the_prompt_begins(text: str, heard: str) -> None:
    assert ThoughtMarkers(begun=True).without_thoughts(text) == heard


def test_markers_of_another_family() -> None:
    assert ThoughtMarkers("[THINK]", "[/THINK]").without_thoughts("[THINK]x[/THINK]<think>") == "<think>"


def test_neither_team_mates_nor_the_environment_read_thoughts() -> None:
    heard: list[str] = []

    class Hears(toys.Echo):
        def transition(self, state: Any, turn: Any) -> Any:
            heard.append(turn.text)
            return super().transition(state, turn)

    voice = Voice(in_turn("<think>secret</think>It is 4", "<think>never closed: 4", "<think>x</think>4"))
    turns = run(team("a", "b", "c", voice=voice), env=Hears()).turns
    assert heard == ["It is 4", "", "4"]
    assert turns[2].observation[-1].content.endswith("a: It is 4\n\nb: ")
    assert "secret" not in str([turn.observation for turn in turns])
    assert turns[0].completion.text == "<think>secret</think>It is 4"  # which is what is trained on


def test_an_agent_reads_its_own_thoughts_as_its_template_has_them() -> None:
    async def twice(game: Any) -> None:
        await game.act("a")
        await game.act("a")

    voice = Voice(in_turn("<think>x</think>4", "5"))
    agents = {name: replace(agent, history="conversation") for name, agent in team("a", voice=voice).items()}
    turns = run(agents, twice).turns
    assert turns[1].observation[-2].content == "<think>x</think>4"
