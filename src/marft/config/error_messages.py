"""One line for a mistake in a config: where it is, what is wrong, what was probably meant."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from marft.config.algorithm import ALGORITHMS
from marft.config.choices import CHOICES, class_of
from marft.config.hints import hint_for_key, hint_for_name
from marft.config.schema_keys import is_section, kinds_at
from marft.config.section import nearest


def explain_error(error: ValidationError, data: Mapping[str, Any]) -> str:
    """One line for the first mistake in `data`: where it is, what is wrong, what was probably meant."""
    agents = agent_names(data)
    found = error.errors()
    # an unknown key is often a misspelt one, which is then missing too
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    path = [str(part) for part in first["loc"] if not str(part).startswith("[")]  # pydantic's [key], our own tags
    where, given = printable_path(".".join(path)), quote_value(path, first["input"])
    but = f", not {given}" if given else ""
    match first["type"]:
        case "extra_forbidden":
            return f"unknown key '{where}'{hint_for_key(path, keys_at(path[:-1], data), agents)}"
        case "union_tag_invalid":
            tag, known = str(first["ctx"]["tag"]), CHOICES[where][0]
            return f"unknown {where} {tag!r}{hint_for_name(where, tag, known)}; known: {', '.join(known)}"
        case "union_tag_not_found":
            return f"{where}.name is missing; choose one of {', '.join(CHOICES[where][0])}"
        case "literal_error" if isinstance(first["input"], str):
            allowed = re.findall(r"'([^']*)'", first["ctx"]["expected"])
            return f"{where}: {quote_value(path, first['input'])} is none of {', '.join(allowed)}" + hint_for_name(
                where, first["input"], allowed
            )
        case "missing" if where == "algorithm":
            return f"algorithm is missing; choose one of {', '.join(ALGORITHMS)}, as in algorithm: grpo"
        case "missing" if where in ("team", "team.agents"):
            return f"{where} is missing; list the agents: team: {{agents: {{solver: You solve.}}}}, or extends: duo"
        case "missing":
            return f"{where} is missing"
        case "value_error":
            message = str(first["ctx"]["error"])
            match path:
                case ["team", "agents", agent] if message.startswith("prompt: is missing"):  # often a misspelt one
                    message += nearest(agent, [each for each in agents if each != agent], prefix=path[:-1])
            joint = "." if message.split(":")[0].split(".")[0] in keys_at(path, data) else ": "
            return f"{where}{joint}{message}" if where else message
        case "model_attributes_type":
            return f"{where}: give a name ({', '.join(CHOICES[where][0])}){but}"
        case "model_type" | "dict_type":
            keys = keys_at(path, data)
            wanted = f"its keys ({', '.join(keys)})" if keys else "NAME: PROMPT lines"
            return f"{where}: give {wanted}{but}"
        case "tuple_type":
            return f"{where}: give a list in [brackets]{but}"
    extra = f" (the file or override says {given})" if given else ""
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}{extra}"


def quote_value(path: Sequence[str], given: Any) -> str:
    """What the user wrote; nothing where it is or may hold a secret, such as a key that was put below `remote`."""
    if "remote" in path[3:]:
        return ""
    return reprlib.repr(given) if isinstance(given, str | int | float | None) else f"a {type(given).__name__}"


def printable_path(path: str) -> str:
    """A name may hold a line break, a message must not."""
    return path if path.isprintable() else ascii(path)[1:-1]


def agent_names(data: Mapping[str, Any]) -> list[str]:
    """The names of the team's agents."""
    match data.get("team"):
        case {"agents": dict() as agents}:
            return list(map(str, agents))
    return []


def keys_at(path: Sequence[str], data: Mapping[str, Any]) -> list[str]:
    """The keys that are valid at a place; none below a plain value. Of algorithms and credits `data` says which."""
    match path:
        case [choice, *below] if choice in CHOICES:
            section = data.get(choice)
            kinds = kinds_at(below, class_of(choice, section.get("name") if isinstance(section, Mapping) else None))
        case _:
            kinds = kinds_at(path)
    return [name for kind in kinds if is_section(kind) for name in kind.model_fields]
