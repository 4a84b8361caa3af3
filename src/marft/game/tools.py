"""Tools in an agent's turn: it calls some, their answers are shown to it, and it speaks on.

Where its model's chat template knows tools, calls are written in the model's own format. Elsewhere
`<calculator>2*7</calculator>` is a call: it ends the message where the closing tag begins (it is among the agent's stop
strings). Inline calls are written into the message itself: the agent goes on right behind the answer. In every case call
and answer are turns like others: what the tool said is in the next observation and in nobody's loss.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from marft.game.observation import begun_text
from marft.game.tool_calls import CallFormat, take_apart
from marft.types import Completion, FunctionCall, Message, Turn
from marft.untrusted_values import quoted

NO_TOOL = "(no tool)"  # who answers a call that reaches none; no agent is called so


class ToolFailure(Exception):
    """Why a call has no result, in words for the model; the episode counts it as `count`."""

    def __init__(self, line: str, count: str) -> None:
        super().__init__(line)
        self.count = count


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTool:
    """What an agent may call. `use` is asked with a text: that of its one argument, or JSON of its arguments."""

    help: str  # one line that tells how to call it by tags
    use: Callable[[str], Awaitable[str]]  # ToolFailure where there is no result
    schema: str = ""  # JSON of the function, as chat templates are told of it
    argument: str | None = "text"  # the name of its one argument, where that is a text


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A message that calls a tool, and what it asks it."""

    tool: str
    asked: str
    text: str  # the whole message, with the tag closed
    id: str | None = None  # in a model's own format: what the answer refers to
    failure: ToolFailure | None = None  # why nothing can be asked
    inline: bool = False  # call and answer are part of the message: nobody reads them twice

    def reader(self, agent: str) -> str:
        """Who alone reads call and answer as turns of their own."""
        return self.tool if self.inline else agent


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineCall:
    """What stands around a call in the middle of a message; without an `opening` it begins where its line does."""

    opening: str
    closing: str

    def asked(self, text: str) -> str | None:
        """What a message that was stopped at the closing asks; None where no call was opened."""
        _, opened, asked = text.rpartition(self.opening or "\n")
        return asked if opened or not self.opening else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """One agent's tools by name, and how often it may call them before its turn has to end."""

    by_name: Mapping[str, AgentTool] = field(default_factory=dict)
    most: int = 0
    written: CallFormat | None = None  # how its model writes calls; None: between tags
    inline: InlineCall | None = None  # of its only tool, in place of tags

    @property
    def help(self) -> str:
        """A line for each tool, for the agent's prompt; nothing where the chat template tells of them or the agent's own
        prompt does."""
        return "" if self.written or self.inline else "\n".join(tool.help for tool in self.by_name.values())

    @property
    def schemas(self) -> tuple[str, ...]:
        """What the chat template is told, where it knows tools."""
        return tuple(tool.schema for tool in self.by_name.values()) if self.written else ()

    @property
    def stops(self) -> tuple[str, ...]:
        """The closing tags, at which generation stops."""
        if self.inline is not None:
            return (self.inline.closing,)
        return () if self.written else tuple(closing_tag(name) for name in self.by_name)

    def find_calls(self, turn: Turn) -> tuple[ToolCall, ...]:
        """The calls of a message; what stands in its thoughts is none."""
        if not self.by_name:
            return ()
        if self.written is None:
            call = self.find_call(turn.completion) if turn.heard != "" else None  # inside a thought
            return () if call is None else (call,)
        spoken = take_apart(turn.text, self.written)
        if spoken.malformed:  # which of its calls belong together only the model knows: none is made
            line = f"{'; '.join(spoken.malformed)}; no call of this message was made"
            return (
                ToolCall(
                    tool=NO_TOOL, asked="", text=turn.completion.text, failure=ToolFailure(line, "malformed_calls")
                ),
            )
        return tuple(self._read_call(call, turn.completion.text) for call in spoken.calls)

    def find_call(self, said: Completion) -> ToolCall | None:
        """The call that a message ends in: one that its closing tag has ended."""
        if self.inline is not None:
            return self._find_inline_call(said, self.inline)
        name = next((name for name in self.by_name if said.stop == closing_tag(name)), None)
        text = said.text.removesuffix(said.stop or "")  # of a turn that is played again
        _, opened, asked = text.rpartition(f"<{name}>")
        return ToolCall(tool=name, asked=asked, text=text + closing_tag(name)) if name is not None and opened else None

    def _find_inline_call(self, said: Completion, inline: InlineCall) -> ToolCall | None:
        text, [name] = said.text.removesuffix(said.stop or ""), self.by_name
        asked = inline.asked(text) if said.stop == inline.closing else None
        return None if asked is None else ToolCall(tool=name, asked=asked, text=text + inline.closing, inline=True)

    def _read_call(self, call: FunctionCall, text: str) -> ToolCall:
        if call.name not in self.by_name:
            line = f"no tool is called {quoted(call.name)}; there are {', '.join(self.by_name)}"
            return ToolCall(tool=NO_TOOL, asked="", text=text, id=call.id, failure=ToolFailure(line, "unknown_tools"))
        argument = self.by_name[call.name].argument
        asked = call.arguments if argument is None else one_text(call.arguments, argument)
        failure = None
        if asked is None:
            failure = ToolFailure(f'the arguments are {{"{argument}": "a text"}}', "malformed_calls")
        return ToolCall(tool=call.name, asked=asked or "", text=text, id=call.id, failure=failure)

    def within_limit(self, calls: Sequence[ToolCall], room: int) -> tuple[ToolCall, ...]:
        """Calls of one message; those for which there is no `room` are not made."""
        over = ToolFailure(f"a turn has at most {self.most} calls", "refused_calls")
        return (*calls[:room], *(replace(call, failure=over) for call in calls[room:]))

    async def use(self, call: ToolCall) -> str:
        """The tool's answer to a call; ToolFailure where there is none."""
        if call.failure is not None:
            raise call.failure
        return await self.by_name[call.tool].use(call.asked)

    def go_on(self, turn: Turn, calls: Sequence[ToolCall], answers: Sequence[str]) -> tuple[Message, ...] | None:
        """What an agent reads that has called tools in its model's format: what it read before, its message and the
        answers; or its message with the answer written into it. None where calls are tags, which are told as all turns
        are."""
        if self.inline is not None:
            text = begun_text(turn.observation) + turn.completion.text + answers[0]
            read = (message for message in turn.observation if not message.open)
            return (*read, Message(role="assistant", content=text, open=True))
        if self.written is None:
            return None
        if calls[0].id is None:
            said = Message(role="assistant", content=turn.completion.text)
            return (*turn.observation, said, *(Message(role="user", content=text) for text in answers))
        said = said_message(turn, self.written)
        told = (Message(role="tool", content=text, answers=call.id) for call, text in zip(calls, answers, strict=True))
        return (*turn.observation, said, *told)


def said_message(turn: Turn, written: CallFormat) -> Message:
    """A message with calls, as its agent reads it afterwards: as it was said, so that its tokens stay the same, but where
    calls begin with a token of their own, which only the template can write."""
    if written != "mistral":
        return Message(role="assistant", content=turn.completion.text)
    spoken = take_apart(turn.text, written)
    return Message(role="assistant", content=spoken.content, calls=spoken.calls)


def one_text(arguments: str, name: str) -> str | None:
    """The text of the one argument; None where the arguments are others."""
    found = json.loads(arguments)
    text = found.get(name)
    return text if len(found) == 1 and isinstance(text, str) else None


def closing_tag(name: str) -> str:
    """`</calculator>`."""
    return f"</{name}>"


NO_TOOLS = Tools()


def with_recipient(turn: Turn, call: ToolCall | None) -> Turn:
    """A turn that calls a tool is for the call's reader alone, any other for all; one that is played again is the very
    same."""
    if call is None:
        made = replace(turn, to=None)
    else:
        added = call.text.removeprefix(turn.completion.text)  # the closing tag
        heard = None if turn.heard is None else turn.heard + added
        made = replace(
            turn, completion=replace(turn.completion, text=call.text), heard=heard, to=call.reader(turn.agent)
        )
    return turn if made == turn else made
