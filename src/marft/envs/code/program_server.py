"""Inside the sandbox of a program: load it, then do what the tests ask of it.

All that a hostile program can forge here are its own answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from marft.envs.code.wire import Channel, Hung, pack, unpack

ACTIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, values, named: target(*values, **named),
    "get": getattr,
    "set": setattr,
}


def serve_program(channel: Channel, *paths: str) -> None:
    """Load the files into one module, then answer until nobody asks."""
    module = type(sys)("program")
    sys.modules["program"] = module
    kept: list[Any] = []

    def keep(value: Any) -> dict[str, Any]:
        kept.append(value)
        return {"kept": len(kept) - 1}

    def recall(key: Any) -> Any:
        if isinstance(key, int):
            return kept[key]
        found = getattr(module, key, None)
        solution = getattr(module, "Solution", None)  # a method, for tasks in LeetCode's manner
        return getattr(solution(), key) if found is None and solution is not None else getattr(module, key)

    failed: BaseException | None = None
    try:
        for path in paths:
            with open(path, "rb") as file:
                exec(compile(file.read(), path, "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        failed = error
    while True:
        try:
            what, key, *rest = channel.receive()
        except Hung:
            return
        try:
            if failed is not None:
                raise failed
            target, values = recall(key), [unpack(each, recall) for each in rest]
            result = ACTIONS[what](target, *values)
            answer = {"value": pack(result, keep)}
            if what == "call" and result is None:
                given = (*values[0], *values[1].values())  # the call may have changed them
                answer["given"] = [pack(each, keep) if type(each) in (list, dict, set) else None for each in given]
        except BaseException as error:
            answer = {"raised": type(error).__name__}
        channel.send(answer)


if __name__ == "__main__":
    serve_program(Channel(int(sys.argv[1])), "/program/given.py", "/program/program.py")
