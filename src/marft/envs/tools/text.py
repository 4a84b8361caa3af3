"""Tools that are asked with a text: the built-in ones, and classes of the user's."""

from __future__ import annotations

import re
from typing import Any, Protocol

from marft.types import MarftError

SHOWN = 1_000  # characters of a result, at most


class Tool(Protocol):
    """Called by `<name>text</name>`. `use` never raises, ends within seconds, and gives at most SHOWN characters."""

    name: str
    help: str  # one line for the agent's prompt

    def use(self, text: str) -> str:
        """The result of a call, or why there is none."""


def text_tool(name: str, kind: Any) -> Tool:
    """The user's class `name`, made without arguments."""
    try:
        tool: Tool = kind()
    except TypeError as error:
        raise MarftError(f"tools: {name!r} cannot be made: {error}; write a class without arguments") from None
    if not (isinstance(getattr(tool, "name", None), str) and isinstance(getattr(tool, "help", None), str)):
        raise MarftError(f"tools: {name!r} needs a `name` and a line of `help`, both texts")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", tool.name):  # agents write <name>…</name>
        raise MarftError(f"tools: {name!r} is named {tool.name!r}; a name has small letters, digits, - and _")
    if not callable(getattr(tool, "use", None)):
        raise MarftError(f"tools: {name!r} has no method `use(text)`")
    return tool
