"""One line for a mistake in a config: where it is, what is wrong, what was probably meant."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from marft.config.algorithm import ALGORITHMS, CREDITS
from marft.config.hints import hint_for_key, hint_for_name
from marft.config.places import is_section
from marft.config.schema import Config
from marft.config.section import nearest

CHOICES = {"algorithm": ALGORITHMS, "credit": CREDITS}


def explain(error: ValidationError, agents: Collection[str] = ()) -> str:
    """One line for the first mistake: where it is, what is wrong, what was probably meant. `agents` are the team's."""
    found = error.errors()
    # an unknown key is often a misspelt one, which is then missing too
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    location = [str(part) for part in first["loc"] if str(part) != "[key]"]
    path = without_tag(location)
    where, given = printable(".".join(path)), said(path, first["input"])
    but = f", not {given}" if given else ""
    match first["type"]:
        case "extra_forbidden":
            return f"unknown key '{where}'{hint_for_key(path, keys_at(location[:-1]), agents)}"
        case "union_tag_invalid":
            tag, known = str(first["ctx"]["tag"]), CHOICES[where]
            return f"unknown {where} {tag!r}{hint_for_name(where, tag, known)}; known: {', '.join(known)}"
        case "union_tag_not_found":
            return f"{where}.name is missing; choose one of {', '.join(CHOICES[where])}"
        case "literal_error" if isinstance(first["input"], str):
            allowed = re.findall(r"'([^']*)'", first["ctx"]["expected"])
            return f"{where}: {said(path, first['input'])} is none of {', '.join(allowed)}" + hint_for_name(
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
            joint = "." if message.split(":")[0].split(".")[0] in keys_at(location) else ": "
            return f"{where}{joint}{message}" if where else message
        case "model_attributes_type":
            return f"{where}: give a name ({', '.join(CHOICES[where])}){but}"
        case "model_type" | "dict_type":
            keys = keys_at(location)
            wanted = f"its keys ({', '.join(keys)})" if keys else "NAME: PROMPT lines"
            return f"{where}: give {wanted}{but}"
        case "tuple_type":
            return f"{where}: give a list in [brackets]{but}"
    extra = f" (the file or override says {given})" if given else ""
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}{extra}"


def said(path: Sequence[str], given: Any) -> str:
    """What the user wrote; nothing where it is or may hold a secret, such as a key that was put below `remote`."""
    if "remote" in path[3:]:
        return ""
    return reprlib.repr(given) if isinstance(given, str | int | float | None) else f"a {type(given).__name__}"


def printable(path: str) -> str:
    """A name may hold a line break, a message must not."""
    return path if path.isprintable() else ascii(path)[1:-1]


def without_tag(location: Sequence[str]) -> list[str]:
    """pydantic names the chosen member of a union as a step of the path: algorithm, grpo, clip_low."""
    tagged = len(location) > 1 and location[1] in CHOICES.get(location[0], {})
    return [location[0], *location[2:]] if tagged else list(location)


def keys_at(location: Sequence[str]) -> list[str]:
    """The keys that are valid at a place; none below a plain value."""
    kind: Any = Config
    for part in location:
        if is_section(kind):
            field = kind.model_fields.get(part)
            kind = CHOICES.get(part) or (field and one_section(field.annotation))
        elif isinstance(kind, Mapping):  # of algorithms or credits, by their names
            kind = kind.get(part)
        else:  # of agents, by names of the user's
            kind = get_args(kind)[1] if get_origin(kind) is dict else None
    return list(kind.model_fields) if is_section(kind) else []


def one_section(kind: Any) -> Any:
    """`X | None` is about X."""
    return kind if get_origin(kind) is dict else next((each for each in get_args(kind) if is_section(each)), kind)
