"""What an agent read, for people: messages with the calls in them, and the tools that the chat template was told of."""

from __future__ import annotations

import json
from collections.abc import Iterator

from marft.types import Message, Turn


def prompt_parts(turn: Turn) -> Iterator[tuple[str, str]]:
    """Each message under its role, after the tools of the agent."""
    if turn.chat.tools:
        yield "tools", "\n".join(turn.chat.tools)
    for message in turn.observation:
        yield message.role + (", to go on from" if message.open else ""), message_text(message)


def message_text(message: Message) -> str:
    """What it says, and a line for each of its calls."""
    calls = (
        f"calls {call.name} {json.dumps(json.loads(call.arguments), ensure_ascii=False)}" for call in message.calls
    )
    return "\n".join([*([message.content] if message.content or not message.calls else []), *calls])


def speaker(turn: Turn) -> str:
    """Who speaks, and whether it is a call of a tool or a tool's answer."""
    if turn.to is None:
        return turn.agent
    return f"{turn.agent} {'answers' if turn.step == 'none' else 'calls a tool'}"
