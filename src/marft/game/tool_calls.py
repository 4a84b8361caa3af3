"""Calls of tools as models write them: each family in its own format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from marft.types import FunctionCall
from marft.untrusted_values import flaw_of

# hermes: Qwen's and many others'; llama: the message is the call; mistral: a list after a marker
CallFormat = Literal["hermes", "llama", "mistral"]
HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
MISTRAL = "[TOOL_CALLS]"
LLAMA = "<|python_tag|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A message taken apart: what it says, the tools it calls, and why some of its calls are none."""

    content: str
    calls: tuple[FunctionCall, ...] = ()
    malformed: tuple[str, ...] = ()


def format_of(template: str) -> CallFormat | None:
    """The format that a chat template asks for; None where it knows no tools."""
    if "tools" not in template:
        return None
    if MISTRAL in template:
        return "mistral"
    return "llama" if LLAMA in template or "ipython" in template else "hermes"


def take_apart(text: str, written: CallFormat | None) -> Spoken:
    """The calls in a message. Ids count from 0 within it: they need to tell its calls apart, no more."""
    match written:
        case None:
            return Spoken(content=text)
        case "hermes":
            found = [match[1] for match in HERMES.finditer(text)]
            content = HERMES.sub("", text).strip() if found else text
        case "llama":
            marked = text.strip().removeprefix(LLAMA).strip()
            found = [marked] if marked.startswith("{") else []
            content = "" if found else text
        case "mistral":
            content, marker, rest = text.partition(MISTRAL)
            if not marker and text.lstrip().startswith("[{"):  # the marker is a token that texts leave out
                content, marker, rest = "", MISTRAL, text
            found = list(json_items(rest)) if marker else []
            content = content.strip() if marker else text
    calls: list[FunctionCall] = []
    malformed: list[str] = []
    for number, each in enumerate(found):
        call = read_call(each, f"call{number:05d}")  # Mistral's templates want nine letters and digits
        if isinstance(call, FunctionCall):
            calls.append(call)
        else:
            malformed.append(call)
    return Spoken(content=content, calls=tuple(calls), malformed=tuple(malformed))


def json_items(text: str) -> Iterator[str]:
    """The elements of a JSON list, each as JSON; the text itself where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        yield text
        return
    yield from (json.dumps(each) for each in (found if isinstance(found, list) else [found]))


def flaw_inside(value: Any) -> str | None:
    """Why no agent could be shown the texts inside a value of JSON, whose escapes may spell anything."""
    return flaw_of(json.dumps(value, ensure_ascii=False))


def read_call(text: str, number: str) -> FunctionCall | str:
    """One call from its JSON, or what is wrong with it."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        return f"the call is not JSON: {error}"
    match found:
        case {"name": str(name), "arguments": dict(arguments)} | {"name": str(name), "parameters": dict(arguments)}:
            if (flaw := flaw_inside([name, arguments])) is not None:
                return f"the call {flaw}"
            return FunctionCall(id=number, name=name, arguments=json.dumps(arguments))
    return 'a call is {"name": …, "arguments": {…}}'
