"""Graphs of agents: who is ready when, and what a join sees."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st
from voices import Voice, run, team, views

from marft.game.play import Game
from marft.game.workflows import find_workflow
from marft.game.workflows.built_in import layers
from marft.types import Completion, Request

DIAMOND = {"top": (), "left": ("top",), "right": ("top",), "bottom": ("left", "right")}


def at_once(sees: Mapping[str, Sequence[str]]) -> list[list[str]]:
    return [sorted(layer) for layer in layers(sees)]


def test_layers_worked_by_hand() -> None:
    assert at_once(DIAMOND) == [["top"], ["left", "right"], ["bottom"]]
    assert at_once({"z": ["a"], "a": []}) == [["a"], ["z"]]
    assert at_once({"a": [], "b": [], "c": []}) == [["a", "b", "c"]]
    assert at_once({"a": [], "b": ["a"], "c": ["a", "b"], "d": []}) == [["a", "d"], ["b"], ["c"]]
    assert at_once({}) == []


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Acyclic ones, listed in any order: everybody's parents come earlier in a hidden order."""
    hidden = draw(st.permutations("abcdef"))
    sees = {
        name: draw(st.lists(st.sampled_from(hidden[:i]), unique=True)) if i else [] for i, name in enumerate(hidden)
    }
    return {name: sees[name] for name in draw(st.permutations("abcdef"))}


@given(graphs())
def test_everybody_acts_once_and_right_after_the_last_parent(sees: dict[str, list[str]]) -> None:
    found = at_once(sees)
    place = {name: i for i, layer in enumerate(found) for name in layer}
    assert sorted(name for layer in found for name in layer) == sorted(sees)
    for name, parents in sees.items():
        assert place[name] == max((place[parent] + 1 for parent in parents), default=0)


def test_dag_prompt_by_prompt() -> None:
    voice = Voice(lambda request: f"<{request.adapter}>")
    episode = run(team("bottom", "right", "left", "top", voice=voice, **DIAMOND), find_workflow("dag"))
    assert views(episode) == [
        ("top", "What is 2 + 2?"),
        ("right", "What is 2 + 2?\n\ntop: <top>"),
        ("left", "What is 2 + 2?\n\ntop: <top>"),
        ("bottom", "What is 2 + 2?\n\nright: <right>\n\nleft: <left>"),  # its parents, not theirs
    ]


def test_a_layer_really_acts_at_once() -> None:
    class Together(Voice):
        """Left and right speak only once both were asked."""

        async def generate(self, request: Request) -> Completion:
            if request.adapter in ("left", "right"):
                asked.append(request.adapter)
                while len(asked) < 2:
                    await asyncio.sleep(0)
            return await super().generate(request)

    asked: list[str] = []

    async def in_time(game: Game) -> None:
        await asyncio.wait_for(find_workflow("dag")(game), 5)

    episode = run(team("top", "left", "right", "bottom", voice=Together(), **DIAMOND), in_time)
    assert [turn.agent for turn in episode.turns] == ["top", "left", "right", "bottom"]
