"""What models are told of a tool: the JSON of a function for chat templates, one line for those who write tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def function_schema(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    """A function as chat templates are told of it."""
    function = {"name": name, "description": description, "parameters": dict(parameters)}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def text_parameters(argument: str) -> dict[str, Any]:
    """The parameters of a tool that takes one text."""
    return {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}


def one_text_argument(parameters: Mapping[str, Any]) -> str | None:
    """The name of the only argument, where it is a text."""
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    if len(properties) != 1 or not set(properties) <= set(parameters.get("required") or ()):
        return None
    [(name, kind)] = properties.items()
    return name if isinstance(kind, Mapping) and kind.get("type") == "string" else None


def tag_help(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    """How the tool is called by tags: one text stands between them, several arguments as JSON."""
    properties = parameters.get("properties") or {}
    argument = one_text_argument(parameters)
    form = argument.upper() if argument else f"{{{', '.join(f'{json.dumps(key)}: …' for key in properties)}}}"
    required = parameters.get("required") or ()
    kinds = [describe_argument(key, kind, key in required) for key, kind in properties.items()]
    told = "; ".join([f"{name}: write <{name}>{form}</{name}> and its result is shown to you", *kinds])
    return one_line(f"{told}. {description}" if description else f"{told}.")


def describe_argument(name: str, kind: Any, required: bool) -> str:
    """`a: integer, the first number`."""
    known = kind if isinstance(kind, Mapping) else {}
    of = known.get("type") or ("one of " + json.dumps(known["enum"]) if "enum" in known else "JSON")
    parts = [f"{name}: {of if isinstance(of, str) else json.dumps(of)}", *([] if required else ["may be left out"])]
    return ", ".join([*parts, *([str(known["description"])] if known.get("description") else [])])


def one_line(text: str) -> str:
    """The text with its line breaks as spaces."""
    return " ".join(text.split())
