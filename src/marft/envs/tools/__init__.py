"""What an agent may use in the middle of its turn: it writes a call, reads the result, and speaks on."""

from __future__ import annotations

from typing import Protocol

from marft.types import MarftError

SHOWN = 1_000  # characters of a result, at most
NAMES = ("calculator", "python")


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
    raise MarftError(f"unknown tool {name!r}; use {' or '.join(NAMES)}")
