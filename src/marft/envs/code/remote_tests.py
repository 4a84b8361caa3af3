"""Inside the sandbox of the tests: run them against a program that lives in another sandbox.

What is not a plain value (an object of the program's own class) stays with the program, and the tests hold a `Remote`
that can be called and handed back but is equal to nothing: all comparing is done on values that this interpreter built.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from marft.envs.code.wire import Channel, Hung, NotPlain, pack, unpack

CLOSE = 1e-6
SAME = "__same__"  # what tests call `is_equal`: no task's function has such a name
ENDS = (StopIteration, StopAsyncIteration)  # from the program, they would end a loop of the tests as if all was well


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
        """Fails every comparison, so that no object of the program's can pass for a value."""
        raise NotPlain("a test compares what is not a plain value")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __len__ = __iter__ = __hash__ = not_plain


def remote_key(value: Any) -> dict[str, Any]:
    """How a Remote is named on the wire; NotPlain for any other object."""
    if type(value) is not Remote:
        raise NotPlain(type(value).__name__)
    return {"kept": object.__getattribute__(value, "_key")}


def is_close(found: float, expected: float) -> bool:
    """Numbers within 1e-6; of a decimal fraction above 1, within that part of it."""
    scale = max(1.0, abs(expected)) if isinstance(expected, float) else 1.0
    try:
        return math.isfinite(expected) and abs(found - expected) <= CLOSE * scale
    except OverflowError:  # a whole number that is no float
        return False


def is_equal(found: Any, expected: Any, wrapped: bool) -> bool:
    """Equal as JSON sees it: tuples are lists, fractions need only be close. `wrapped`: [3] may also mean 3."""
    if wrapped and type(expected) is list and len(expected) == 1 and is_equal(found, expected[0], False):
        return True
    if type(found) in (list, tuple) and type(expected) in (list, tuple):
        return len(found) == len(expected) and all(is_equal(a, b, False) for a, b in zip(found, expected, strict=True))
    if type(found) is dict and type(expected) is dict:
        return found.keys() == expected.keys() and all(is_equal(found[key], expected[key], False) for key in expected)
    if float in (type(found), type(expected)) and {type(found), type(expected)} <= {int, float}:
        return bool(found == expected or is_close(found, expected))
    return bool(found == expected)


def copy_into(held: Any, now: Any) -> None:
    """Do to a test's own list, dict or set what the program did to its copy."""
    if isinstance(held, list) and type(now) is list:
        held[:] = now
    elif (isinstance(held, dict) and type(now) is dict) or (isinstance(held, set) and type(now) is set):
        held.clear()
        held.update(now)


def import_modules(source: str, space: dict[str, Any]) -> None:
    """Give a test the modules of the standard library that it names without importing them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id not in space and node.id in sys.stdlib_module_names:
            space[node.id] = importlib.import_module(node.id)


def run_remote_tests(channel: Channel, tests: dict[str, Any], tell: Callable[[str], object]) -> None:
    """Tell "1" or "0" for each test in turn; what is not told has failed."""
    deadline = 0.0

    def ask(what: str, target: Remote, *values: Any) -> Any:
        channel.send([what, remote_key(target)["kept"], *(pack(each, remote_key) for each in values)], deadline)
        answer = channel.receive(deadline)
        if "raised" in answer:
            kind = getattr(builtins, str(answer["raised"]), None)
            if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ENDS):
                raise kind()
            raise NotPlain("it raised")
        result = unpack(answer["value"], lambda key: Remote(ask, key))
        if what == "call" and result is None:  # of a call with a result, a test may compare it with the arguments
            given = unpack(answer["given"], lambda key: Remote(ask, key))
            for held, now in zip((*values[0], *values[1].values()), given, strict=True):
                copy_into(held, now)
        return result

    space: dict[str, Any] = {"__name__": "tests"}
    exec(tests["given"], space)
    space |= {name: Remote(ask, name) for name in tests["asked"]} | {SAME: is_equal}
    waiting = [tests["setup"]]
    for test in tests["tests"]:
        deadline = time.monotonic() + tests["seconds"]
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
            if tests["stop"]:
                return
        else:
            tell("1")


if __name__ == "__main__":
    with open("/program/tests.json", encoding="utf-8") as opened:
        task_tests = json.load(opened)
    verdicts, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    for voice in (1, 2):  # what a test prints may be the program's word, and is no verdict
        os.dup2(nowhere, voice)
    run_remote_tests(Channel(int(sys.argv[1])), task_tests, lambda verdict: os.write(verdicts, verdict.encode()))
