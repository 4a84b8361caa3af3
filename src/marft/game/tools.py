"""Tools in an agent's turn: `<calculator>2*7</calculator>` is a call; its answer is shown to the agent, which speaks on.

A call ends the message where the closing tag begins (it is among the agent's stop strings), so that call and answer are
turns like others: what the tool said is in the next observation and in nobody's loss.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from marft.types import Completion, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTool:
    """What an agent may call: one line that tells it how, and what happens then."""

    help: str
    use: Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A message that calls a tool, and what it asks it."""

    tool: str
    asked: str
    text: str  # the whole message, with the tag closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """One agent's tools by name, and how often it may call them before its turn has to end."""

    by_name: Mapping[str, AgentTool] = field(default_factory=dict)
    most: int = 0

    @property
    def help(self) -> str:
        """A line for each tool, for the agent's prompt."""
        return "\n".join(tool.help for tool in self.by_name.values())

    @property
    def stops(self) -> tuple[str, ...]:
        """The closing tags, at which generation stops."""
        return tuple(closing_tag(name) for name in self.by_name)

    def find_call(self, said: Completion) -> ToolCall | None:
        """The call that a message ends in: one that its closing tag has ended."""
        name = next((name for name in self.by_name if said.stop == closing_tag(name)), None)
        text = said.text.removesuffix(said.stop or "")  # of a turn that is played again
        _, opened, asked = text.rpartition(f"<{name}>")
        return ToolCall(tool=name, asked=asked, text=text + closing_tag(name)) if name is not None and opened else None

    async def use(self, call: ToolCall) -> str:
        """The tool's answer to a call."""
        return await self.by_name[call.tool].use(call.asked)


def closing_tag(name: str) -> str:
    """`</calculator>`."""
    return f"</{name}>"


NO_TOOLS = Tools()


def with_recipient(turn: Turn, call: ToolCall | None) -> Turn:
    """A turn that calls a tool is for its agent alone, any other for all; one that is played again is the very same."""
    if call is None:
        made = replace(turn, to=None)
    else:
        made = replace(turn, completion=replace(turn.completion, text=call.text), to=turn.agent)
    return turn if made == turn else made
