"""Sections that a name chooses: `algorithm: {name: grpo, …}` is read by the class of that name, or by the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from marft import import_paths
from marft.config.algorithm import ALGORITHMS, CREDITS, AlgorithmConfig, CreditConfig
from marft.config.section import Section
from marft.types import MarftError

CHOICES: Mapping[str, tuple[Mapping[str, str], type[Section]]] = {
    "algorithm": (ALGORITHMS, AlgorithmConfig),
    "credit": (CREDITS, CreditConfig),
}
BASES = {"algorithm": "marft.algorithms.base:Algorithm", "credit": "marft.rollouts.credit:Credit"}  # of all classes


def choice_validator(key: str) -> Callable[[Any], Any]:
    """A validator: plain data below `key` becomes an instance of the class that its `name` chooses."""
    _, base = CHOICES[key]

    def choose(data: Any) -> Any:
        if isinstance(data, base):
            return data
        if not isinstance(data, Mapping):
            raise PydanticCustomError("model_attributes_type", "it has no name")
        if "name" not in data:
            raise PydanticCustomError("union_tag_not_found", "its name is missing")
        found = class_of(key, data["name"])
        if found is None:
            raise PydanticCustomError("union_tag_invalid", "nobody has this name", {"tag": data["name"]})
        return found.model_validate(data)

    return choose


def class_of(key: str, name: Any) -> type[Section] | None:
    """The class that a name stands for: one of the table, or the user's own by `package.module:Class`; None: neither."""
    table, _ = CHOICES[key]
    if not isinstance(name, str) or (name not in table and ":" not in name):
        return None
    found = import_paths.find(table.get(name, name), f"{key}.name")
    if not (isinstance(found, type) and issubclass(found, import_paths.look_up(BASES[key]))):
        raise MarftError(f"{key}.name: {name!r} is no class derived from {BASES[key]}")
    if lacking := sorted(getattr(found, "__abstractmethods__", ())):
        raise MarftError(f"{key}.name: {name!r} lacks {' and '.join(lacking)}; write it as {BASES[key]} says")
    return found


def classes(key: str) -> dict[str, type[Section]]:
    """Every class of a table, by its name."""
    return {name: found for name in CHOICES[key][0] if (found := class_of(key, name)) is not None}
