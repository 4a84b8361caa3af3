"""Messages as workflows and programs give them: ours, or dictionaries in the form of OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from marft.game.tool_calls import flaw_inside
from marft.types import FunctionCall, Message
from marft.untrusted_values import exact, flaw_of, kind_of

Role = Literal["system", "user", "assistant", "tool"]
ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def read_messages(given: object) -> tuple[Message, ...]:
    """Messages as an agent reads them; a ValueError says in one line what is wrong with one."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ValueError(f"messages are a list, not {kind_of(given)}")
    found = tuple(
        message if isinstance(message, Message) else read_message(message, f"messages[{i}]")
        for i, message in enumerate(given)
    )
    if not found:
        raise ValueError("messages are empty; an agent needs something to answer")
    return found


def read_message(given: object, where: str) -> Message:
    """One message from its dictionary."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} is {kind_of(given)}, not a message")
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"{where}.role is none of {', '.join(ROLES)}")
    calls = given.get("tool_calls") or ()
    if isinstance(calls, str) or not isinstance(calls, Sequence):
        raise ValueError(f"{where}.tool_calls is {kind_of(calls)}, not a list")
    answers = given.get("tool_call_id")
    return Message(
        role=ROLES[role],
        content=read_content(given.get("content"), f"{where}.content"),
        calls=tuple(read_function_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)),
        answers=None if answers is None else checked_text(answers, f"{where}.tool_call_id"),
    )


def read_content(given: object, where: str) -> str:
    """A text, or the texts of its parts end to end."""
    if given is None:
        return ""
    if isinstance(given, str):
        return checked_text(given, where)
    if not isinstance(given, Sequence):
        raise ValueError(f"{where} is {kind_of(given)}, not a text")
    texts = []
    for i, part in enumerate(given):
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
                texts.append(checked_text(text, f"{where}[{i}]"))
            case _:
                raise ValueError(f"{where}[{i}] is no text; agents read text alone")
    return "".join(texts)


def read_function_call(given: object, where: str) -> FunctionCall:
    """A call that an assistant has made, as it was given to the program."""
    match given:
        case {"function": {"name": str(name), "arguments": str(arguments)}, **others}:
            number = others.get("id", "")
            try:
                found = json.loads(arguments)
            except (ValueError, RecursionError):
                raise ValueError(f"{where}.function.arguments is not JSON") from None
            if not isinstance(found, dict):
                raise ValueError(f"{where}.function.arguments is not a JSON object")
            if (flaw := flaw_inside(found)) is not None:
                raise ValueError(f"{where}.function.arguments {flaw}")
            return FunctionCall(
                id=checked_text(number, f"{where}.id"),
                name=checked_text(name, where),
                arguments=checked_text(arguments, where),
            )
    raise ValueError(f"{where} has no function with a name and arguments, both texts")


def read_tools(given: object) -> tuple[str, ...]:
    """Tools as chat templates are told of them, each as JSON; a ValueError says what is wrong with one."""
    if given is None:
        return ()
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise ValueError(f"tools are a list, not {kind_of(given)}")
    found = []
    for i, tool in enumerate(given):
        match tool:
            case {"type": "function", "function": {"name": str()} as function}:
                schema: dict[str, Any] = {"type": "function", "function": function}
            case _:
                raise ValueError(f'tools[{i}] is no function; write {{"type": "function", "function": {{"name": …}}}}')
        try:
            found.append(checked_text(json.dumps(schema, ensure_ascii=False), f"tools[{i}]"))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"tools[{i}] cannot be written as JSON: {error}") from None
    return tuple(found)


def checked_text(given: object, where: str) -> str:
    """A text that tokenizers take."""
    if not isinstance(given, str):
        raise ValueError(f"{where} is {kind_of(given)}, not a text")
    if (flaw := flaw_of(found := exact(given))) is not None:
        raise ValueError(f"{where} {flaw}")
    return found
