"""What an agent may use in the middle of its turn: it writes a call, reads the result, and speaks on."""

from __future__ import annotations

import re
from typing import Protocol

from marft import import_paths
from marft.types import MarftError
from marft.untrusted_values import described

SHOWN = 1_000  # characters of a result, at most


class Tool(Protocol):
    """Called by `<name>text</name>`. `use` never raises, ends within seconds, and gives at most SHOWN characters."""

    name: str
    help: str  # one line for the agent's prompt

    def use(self, text: str) -> str:
        """The result of a call, or why there is none."""


def make_tool(name: str) -> Tool:
    """The tool of that name; one that cannot work on this machine is refused here, in one line."""
    match name:
        case "calculator":
            from marft.envs.tools.calculator import Calculator

            return Calculator()
        case "python":
            from marft.envs.tools.python import Python

            return Python()
    return own_tool(name)


def own_tool(name: str) -> Tool:
    """The user's class, `package.module:Class`, made without arguments."""
    try:
        tool = import_paths.find(name, "tools")()
    except TypeError as error:
        raise MarftError(f"tools: {name!r} cannot be made: {error}; write a class without arguments") from None
    if not (isinstance(getattr(tool, "name", None), str) and isinstance(getattr(tool, "help", None), str)):
        raise MarftError(f"tools: {name!r} needs a `name` and a line of `help`, both texts")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", tool.name):  # agents write <name>…</name>
        raise MarftError(f"tools: {name!r} is named {tool.name!r}; a name has small letters, digits, - and _")
    if not callable(getattr(tool, "use", None)):
        raise MarftError(f"tools: {name!r} has no method `use(text)`")
    return GuardedTool(tool)


class GuardedTool:
    """A tool of the user's: what it raises, or says at length, becomes a short result like any other."""

    def __init__(self, tool: Tool) -> None:
        self.tool, self.name, self.help = tool, tool.name, tool.help

    def use(self, text: str) -> str:
        """The tool's result, or what it raised, in at most SHOWN characters."""
        try:
            found = str(self.tool.use(text))
        except Exception as error:  # the user's code: anything may come
            found = f"error: {described(error)}"
        return found[:SHOWN]
