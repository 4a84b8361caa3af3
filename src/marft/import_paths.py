"""Classes and functions of the user's by name: a config says `module:Name`, Python code gives the thing itself.

What lives in a module has a name by which every process finds it. What was defined in a notebook, in a script that is
being run, or inside a function has one too (`__main__:Name`, `module:function.<locals>.Name`), so that a run's config can
say what it was made with; but such a name is found only where the thing itself is given, or lies in this very `__main__`.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from marft.types import MarftError

MAIN = "__main__"
NOWHERE = ".<locals>"  # of a name that no import finds: Python's own mark of what was defined in a function
NAMELESS = ("<lambda>", "partial")
MISSING = (ImportError, AttributeError, LookupError, TypeError, ValueError)  # the last two: `:f`, `..module:f`
# by name, what the caller of the Python interface gave; a context's own, so that two runs side by side do not meet
GIVEN: ContextVar[Mapping[str, Any]] = ContextVar("GIVEN", default=MappingProxyType({}))


class NotImportable(MarftError):
    """A class or a function of the user's that this process does not find by its name."""

    def __init__(self, name: str, line: str) -> None:
        super().__init__(line)
        self.name = name


@contextmanager
def bind_import_paths(objects: Mapping[str, Any]) -> Iterator[None]:
    """Within it, these are found by their names before anything is imported."""
    token = GIVEN.set({**GIVEN.get(), **objects})
    try:
        yield
    finally:
        GIVEN.reset(token)


def find(name: str, key: str) -> Any:
    """What `name` means; `key` is where the config says it."""
    if name in GIVEN.get():
        return GIVEN.get()[name]
    try:
        return look_up(name)
    except MISSING as error:
        line = missing_import_advice(name, key) or f"{key}: cannot import {name!r}: {error}"
        raise NotImportable(name, line) from None


def look_up(name: str) -> Any:
    """The thing of that name; what is not importable can only lie in a module that is loaded already."""
    module, _, path = name.partition(":")
    return attrgetter(path)(importlib.import_module(module) if is_importable(name) else sys.modules[module])


def is_importable(name: str) -> bool:
    """Whether another process could find it: it was not defined in a notebook, a script or a function."""
    module, _, path = name.partition(":")
    return module != MAIN and "<" not in path


def missing_import_advice(name: str, key: str) -> str:
    """What to do about a name that only the Python code knows which it was given in; nothing of other names."""
    if is_importable(name):
        return ""
    own = last_part(name)
    match key:
        case "env.name":
            argument = f"env={own}"
        case "team.workflow":
            own = "workflow" if own in NAMELESS else own
            argument = f"workflow={own}"
        case "algorithm.name" | "credit.name" | "engine.name":
            argument = f"{key.partition('.')[0]}={{'name': {own}, …}}"
        case "tools":
            argument = f"agents={{'NAME': {{'tools': [{own}], …}}}}"
        case "env.reward" | "env.game" | "env.text":
            return (
                f"{key}: {name!r} lies in no file that other programs can import; put it into one, say mine.py in this "
                f"folder, and give {key}=mine:{own}"
            )
        case _:
            own = "script" if own in NAMELESS else own
            argument = f"agents={{'NAME': {{'script': {own}}}}}"
    setting = {"agents' script": "team.agents.NAME.script", "tools": "team.agents.NAME.tools"}.get(key, key)
    return (
        f"{key}: {name!r} was given from Python and lies in no file that other programs can import; put it into one, say "
        f"mine.py in this folder, and give {setting}=mine:{own}; or stay in Python: marft.load(RUN, {argument}), "
        f"marft.train(resume=True, run=RUN, {argument})"
    )


def name_of(thing: Any) -> str:
    """The name under which a config can find a class or a function again."""
    if isinstance(thing, partial):  # what it binds is not in its name
        return f"{name_of(thing.func).removesuffix(NOWHERE)}{NOWHERE}.partial"
    known = thing if hasattr(thing, "__qualname__") else type(thing)
    name = f"{known.__module__}:{known.__qualname__}"
    if not is_importable(name):
        return name
    try:
        same = look_up(name) == thing  # not `is`: a method of a class is made anew whenever it is asked for
    except MISSING:
        same = False
    return name if same else name + NOWHERE


def numbered_name(name: str, number: int) -> str:
    """The name of another thing that would have the same."""
    return f"{name}<{number}>"


def last_part(name: str) -> str:
    """`Mine` of `__main__:make.<locals>.Mine`, also where it is numbered."""
    return re.sub(r"<\d+>$", "", name.partition(":")[2]).removesuffix(NOWHERE).rpartition(".")[2]


def is_moved(old: Any, new: Any) -> bool:
    """Whether `new` is where `old` has been put so that every process finds it: `__main__:Mine`, and then `mine:Mine`."""
    if not (isinstance(old, str) and isinstance(new, str) and ":" in old and ":" in new):
        return False
    return not is_importable(old) and is_importable(new) and last_part(old) in (last_part(new), *NAMELESS)
