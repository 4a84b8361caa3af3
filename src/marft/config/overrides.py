"""`key.path=value` on the command line, as nested settings.

A key whose type in the schema is a text takes what follows `=` as it is. Every other value is read as YAML.
"""

from __future__ import annotations

import re
from types import NoneType
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marft.config.safe_yaml import UNREADABLE, check_aliases, why_unreadable
from marft.config.schema_keys import is_text, kinds_at
from marft.types import MarftError

# a section given as a string is this key of it; an agent given as a string is its prompt
SHORTHANDS = {
    "env": "name",
    "algorithm": "name",
    "credit": "name",
    "critic": "mode",
    "schedule": "mode",
    "engine": "name",
}
NONE = ("", "null")  # how an optional text is taken away


def read_override(override: str) -> dict[str, Any]:
    """`team.agents.solver.prompt=Answer: N` → {"team": {"agents": {"solver": {"prompt": "Answer: N"}}}}."""
    key = override_key(override)
    value = override[len(key) + 1 :]
    path = tuple(re.sub(r"\[([^\[\].]*)\]", r".\1", key).split("."))
    kinds = kinds_at(path)
    if is_text(kinds):
        return nest_value(path, None if NoneType in kinds and value in NONE else value)
    if is_text(kinds_at(shorthand(path))) and not value.lstrip().startswith("{"):
        return nest_value(path, value)
    return read_yaml(override)


def read_yaml(override: str) -> dict[str, Any]:
    """Any `key.path=value`, whatever the schema says of the key."""
    key = override_key(override)
    try:
        check_aliases(yaml.compose(override[len(key) + 1 :], yaml.SafeLoader))
        one = OmegaConf.to_container(OmegaConf.from_dotlist([override]))
    except OmegaConfBaseException:
        raise MarftError(f"cannot apply {key!r}: its value holds an open '${{'; write it in a file") from None
    except UNREADABLE as error:
        example = f"'{key if key.isprintable() else 'KEY'}=\"…\"'"
        raise MarftError(
            f"cannot read the value of {key!r}: {why_unreadable(error)}; write a text as {example}"
        ) from None
    assert isinstance(one, dict)
    return {str(key): value for key, value in one.items()}


def override_key(override: str) -> str:
    """What stands before the equals sign; raises a MarftError where there is none."""
    key = re.split(r"[:=\s]", override, maxsplit=1)[0]
    if not override.startswith(f"{key}="):  # what follows is not quoted: it may be a secret
        raise MarftError(f"{key!r} is not an override; write key=value")
    return key


def shorthand(path: tuple[str, ...]) -> tuple[str, ...]:
    """The key that a string in the place of a section stands for."""
    match path:
        case ("team", "agents", _):
            return (*path, "prompt")
        case (section,) if section in SHORTHANDS:
            return (section, SHORTHANDS[section])
    return path


def nest_value(path: tuple[str, ...], value: str | None) -> dict[str, Any]:
    """`a.b.c` with a value as mappings inside one another."""
    first, *rest = path
    return {first: nest_value(tuple(rest), value) if rest else value}
