"""Classes and functions by name: what is found where, and what is said of what is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import toys

from marft.import_paths import bind_import_paths, find, is_importable, is_moved, name_of, numbered_name
from marft.types import MarftError


class Outer:
    class Inner:
        pass

    def method(self) -> None: ...
    @classmethod
    def made(cls) -> None: ...


def make() -> Callable[[], None]:
    def local() -> None: ...

    return local


@pytest.mark.parametrize("thing", [toys.both, toys.Echo, Outer, Outer.Inner, Outer.made, Outer.method])
def test_what_lies_in_a_module_is_found_by_its_name(thing: Any) -> None:
    name = name_of(thing)
    assert is_importable(name)
    assert find(name, "key") == thing


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (make(), "make.<locals>.local"),
        (lambda: None, "<lambda>"),
        (partial(make), "make.<locals>.partial"),
        (Outer().method, "Outer.method.<locals>"),  # whose object is not in the name
        (Outer(), "Outer.<locals>"),
    ],
)
def test_other_things_are_found_only_where_they_are_given(thing: Any, name: str) -> None:
    assert name_of(thing) == f"{__name__}:{name}"
    with pytest.raises(MarftError, match="was given from Python"):
        find(name_of(thing), "team.workflow")
    with bind_import_paths({name_of(thing): thing}):
        assert find(name_of(thing), "team.workflow") == thing
    with pytest.raises(MarftError, match="was given from Python"):
        find(name_of(thing), "team.workflow")


def test_this_very_main_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MarftError, match="'__main__:Mine' was given from Python"):
        find("__main__:Mine", "env.name")
    monkeypatch.setattr(sys.modules["__main__"], "Mine", Outer, raising=False)
    assert find("__main__:Mine", "env.name") is Outer
    assert not is_importable("__main__:Mine")


@pytest.mark.parametrize(
    ("name", "key", "remedies"),
    [
        ("__main__:Mine", "env.name", ["env.name=mine:Mine;", "marft.load(RUN, env=Mine)", "resume=True, run=RUN, env=Mine)"]),
        ("m:f.<locals>.g", "team.workflow", ["team.workflow=mine:g;", "run=RUN, workflow=g)"]),
        ("m:f.<locals>.g<2>", "team.workflow", ["team.workflow=mine:g;"]),
        ("__main__:<lambda>", "agents' script", ["team.agents.NAME.script=mine:script;", "agents={'NAME': {'script': script}}"]),
    ],
)  # fmt: skip
def test_one_line_says_what_to_do(name: str, key: str, remedies: list[str]) -> None:
    with pytest.raises(MarftError) as caught:
        find(name, key)
    line = str(caught.value)
    assert line.startswith(f"{key}: {name!r} ")
    assert "\n" not in line
    for remedy in remedies:
        assert remedy in line


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        ("__main__:Mine", "mine:Mine", True),
        ("__main__:make.<locals>.Mine", "package.mine:Mine", True),
        (numbered_name("m:make.<locals>.f", 2), "mine:f", True),
        ("__main__:<lambda>", "mine:anything", True),
        ("__main__:Mine", "mine:Yours", False),
        ("mine:Mine", "yours:Mine", False),  # one of two files: nobody knows whether they say the same
        ("mine:Mine", "__main__:Mine", False),
        ("__main__:Mine", "__main__:Mine", False),
        ("arithmetic", "mine:Mine", False),
        (None, "mine:Mine", False),
    ],
)
def test_what_has_moved_into_a_file(old: Any, new: Any, moved: bool) -> None:
    assert is_moved(old, new) is moved
