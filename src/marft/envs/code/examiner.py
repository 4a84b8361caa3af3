"""Inside the sandbox of the tests: run them against a program that lives in another sandbox.

What is not a plain value (an object of the program's own class) stays with the program, and the tests hold a `Remote`
that can be called and handed back but is equal to nothing: all comparing is done on values that this interpreter built.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from marft.envs.code.wire import Channel, Hung, NotPlain, pack, unpack

CLOSE = 1e-6


class Remote:
    """Something that lives beside the program. It says nothing about itself that a test could believe."""

    def __init__(self, ask: Callable[..., Any], key: Any) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_key", key)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return object.__getattribute__(self, "_ask")("call", self, list(values), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object.__getattribute__(self, "_ask")("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_ask")("set", self, name, value)

    def not_plain(self, *_: Any) -> NoReturn:
        raise NotPlain("a test compares what is not a plain value")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __len__ = __iter__ = __hash__ = not_plain


def key_of(value: Any) -> dict[str, Any]:
    if type(value) is not Remote:
        raise NotPlain(type(value).__name__)
    return {"kept": object.__getattribute__(value, "_key")}


def same(found: Any, expected: Any, wrapped: bool) -> bool:
    """Equal as JSON sees it: tuples are lists, numbers may differ by 1e-6. `wrapped`: [3] may also mean 3."""
    if wrapped and type(expected) is list and len(expected) == 1 and same(found, expected[0], False):
        return True
    if type(found) in (list, tuple) and type(expected) in (list, tuple):
        return len(found) == len(expected) and all(same(a, b, False) for a, b in zip(found, expected, strict=True))
    if type(found) is dict and type(expected) is dict:
        return found.keys() == expected.keys() and all(same(found[key], expected[key], False) for key in expected)
    if float in (type(found), type(expected)) and {type(found), type(expected)} <= {int, float}:
        return bool(found == expected or abs(found - expected) <= CLOSE)
    return bool(found == expected)


def import_modules(source: str, space: dict[str, Any]) -> None:
    """Give a test the modules of the standard library that it names without importing them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id not in space and node.id in sys.stdlib_module_names:
            space[node.id] = importlib.import_module(node.id)


def examine(channel: Channel, exam: dict[str, Any], tell: Callable[[str], object]) -> None:
    """Tell "1" or "0" for each test in turn; what is not told has failed."""
    deadline = 0.0

    def ask(what: str, target: Remote, *values: Any) -> Any:
        channel.send([what, key_of(target)["kept"], *(pack(each, key_of) for each in values)], deadline)
        answer = channel.receive(deadline)
        if "raised" in answer:
            kind = getattr(builtins, str(answer["raised"]), None)
            raise kind() if isinstance(kind, type) and issubclass(kind, Exception) else NotPlain("it raised")
        return unpack(answer["value"], lambda key: Remote(ask, key))

    space: dict[str, Any] = {"__name__": "tests", "same": same}
    exec(exam["given"], space)
    space |= {name: Remote(ask, name) for name in exam["asked"]}
    waiting = [exam["setup"]]
    for test in exam["tests"]:
        deadline = time.monotonic() + exam["seconds"]
        try:
            for source in (*waiting, test):
                import_modules(source, space)
                exec(source, space)
                waiting = []
        except Hung:
            tell("0")
            return  # what the program says from now on may answer an earlier question
        except Exception:
            tell("0")
            if exam["stop"]:
                return
        else:
            tell("1")


if __name__ == "__main__":
    with open("/program/exam.json", encoding="utf-8") as opened:
        paper = json.load(opened)
    examine(Channel(int(sys.argv[1])), paper, lambda verdict: print(verdict, end="", flush=True))
