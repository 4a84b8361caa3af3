"""Graphs of agents: who is ready when, what a join sees, and cycles by name."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from voices import Voice, run, team, views

from marft.game.play import Game
from marft.game.workflows import find_workflow
from marft.game.workflows.dag import layers
from marft.types import Completion, MarftError, Request

DIAMOND = {"top": (), "left": ("top",), "right": ("top",), "bottom": ("left", "right")}


def test_layers_worked_by_hand() -> None:
    assert layers(DIAMOND) == [["top"], ["left", "right"], ["bottom"]]
    assert layers({"z": ["a"], "a": []}) == [["a"], ["z"]]
    assert layers({"a": [], "b": [], "c": []}) == [["a", "b", "c"]]
    assert layers({"a": [], "b": ["a"], "c": ["a", "b"], "d": []}) == [["a", "d"], ["b"], ["c"]]
    assert layers({}) == []


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
    found = layers(sees)
    place = {name: i for i, layer in enumerate(found) for name in layer}
    assert sorted(name for layer in found for name in layer) == sorted(sees)
    for name, parents in sees.items():
        assert place[name] == max((place[parent] + 1 for parent in parents), default=0)


@given(st.dictionaries(st.sampled_from("abcde"), st.lists(st.sampled_from("abcde"), max_size=3)))
def test_a_cycle_is_named(sees: dict[str, list[str]]) -> None:
    """Either there is an order, or the names in the message really wait for one another."""
    sees = {name: [parent for parent in parents if parent in sees] for name, parents in sees.items()}
    try:
        assert sorted(name for layer in layers(sees) for name in layer) == sorted(sees)
    except ValueError as error:
        *path, last = str(error).removesuffix(" wait for one another for ever").split(" → ")
        assert last == path[0]
        assert len(set(path)) == len(path)
        for name, parent in zip(path, [*path[1:], last], strict=True):
            assert parent in sees[name]


@pytest.mark.parametrize(
    ("sees", "cycle"),
    [
        ({"a": ["b"], "b": ["a"]}, "a → b → a"),
        ({"a": ["a"]}, "a → a"),
        ({"s": [], "x": ["s", "y"], "y": ["z"], "z": ["y", "s"]}, "y → z → y"),
    ],
)
def test_cycles_by_name(sees: dict[str, list[str]], cycle: str) -> None:
    with pytest.raises(ValueError, match=f"^{cycle} wait for one another"):
        layers(sees)


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


def test_a_team_that_waits_for_itself_is_one_line() -> None:
    with pytest.raises(MarftError, match=r"^team\.workflow: dag: a → b → a wait for one another for ever$"):
        run(team("a", "b", a=("b",), b=("a",)), find_workflow("dag"))
