"""Agents: their kinds, the adapters they share, and cycles of who waits for whom."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mistakes import DUO, read

from marft.config import AgentConfig, parse
from marft.config.team import find_cycle
from marft.types import Sampling

REMOTE = {"url": "http://h/v1", "model": "m"}


def agent(**keys: Any) -> AgentConfig:
    return parse({**DUO, "team": {"agents": {"a": keys}}}).team.agents["a"]


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"prompt": "x"}, "trained"),
        ({"prompt": "x", "trainable": True}, "trained"),
        ({"prompt": "x", "model": "m", "init_from": "x"}, "trained"),
        ({"prompt": "x", "trainable": False}, "frozen"),
        ({"prompt": "x", "trainable": False, "model": "m", "init_from": "x"}, "frozen"),
        ({"script": "m:f"}, "scripted"),
        ({"prompt": "x", "script": "m:f", "trainable": False}, "scripted"),
        ({"prompt": "x", "remote": REMOTE}, "remote"),
        ({"prompt": "x", "remote": REMOTE, "trainable": False}, "remote"),
    ],
)
def test_kinds(keys: dict[str, Any], kind: str) -> None:
    assert agent(**keys).kind == kind


def test_an_agents_sampling() -> None:
    assert agent(prompt="x").sampling == Sampling()
    given = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "max_tokens": 7, "stop": ["\n", "END"]}
    assert agent(prompt="x", trainable=False, **given).sampling == Sampling(
        temperature=0.5, top_p=0.9, top_k=3, max_tokens=7, stop=("\n", "END")
    )


# --- adapters ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "trained"),
    [
        ([], {"a": "a", "b": "b"}),
        (["a.adapter=team", "b.adapter=team"], {"a": "team", "b": "team"}),
        (["b.adapter=a"], {"a": "a", "b": "a"}),
        (["a.adapter=b"], {"a": "b", "b": "b"}),
        (["a.adapter=a", "b.adapter=a"], {"a": "a", "b": "a"}),
        (["a.trainable=false"], {"b": "b"}),
        (["a.script=m:f", "b.adapter=x"], {"b": "x"}),
        (["a.trainable=false", "b.trainable=false"], {}),
    ],
)
def test_who_learns_with_which_adapter(given: list[str], trained: dict[str, str]) -> None:
    assert read([f"team.agents.{each}" for each in given]).team.trained == trained


def test_agents_with_one_adapter_still_sample_as_they_like() -> None:
    team = read([f"team.agents.{name}.adapter=team" for name in "ab"] + ["team.agents.a.temperature=0.5"]).team
    assert [agent.temperature for agent in team.agents.values()] == [0.5, 1.0]


# --- cycles -----------------------------------------------------------------------------------------------------------
@st.composite
def views(draw: st.DrawFn) -> dict[str, tuple[str, ...]]:
    names = list("abcdef"[: draw(st.integers(1, 6))])
    return {name: tuple(draw(st.lists(st.sampled_from(names), max_size=2))) for name in names}


@settings(max_examples=300, deadline=None)
@given(views())
@example({"a": ("b",), "b": ("a",)})
@example({"a": ("a",)})
@example({"a": ("b", "c"), "b": ("d",), "c": ("d",), "d": ()})  # a diamond is none
def test_a_cycle_is_found_if_and_only_if_there_is_one(sees: dict[str, tuple[str, ...]]) -> None:
    try:
        TopologicalSorter(sees).prepare()
    except CycleError:
        cycle = find_cycle(sees)
        assert len(cycle) > 1
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        assert all(after in sees[before] for before, after in pairwise(cycle))
    else:
        assert find_cycle(sees) == []


def test_many_ways_without_a_cycle_are_walked_once() -> None:
    names = [f"a{i}" for i in range(60)]  # a0 … a59, each sees all before it: 2⁵⁸ paths
    assert find_cycle({name: tuple(names[:i]) for i, name in enumerate(names)}) == []
