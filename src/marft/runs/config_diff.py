"""Where two configs part: the first dotted key with different values."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from marft.config import Config
from marft.import_paths import is_moved

ABSENT = object()
SHOWN = 60  # characters of a value; prompts can be pages long


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One key with its value on either side, ready to be shown."""

    key: str
    old: str
    new: str
    moved: bool = False  # the same class or function, now in a file where every process finds it

    def __str__(self) -> str:
        return f"{self.key} is {self.old} there and {self.new} here"


def first_difference(old: Config, new: Config, *, free: Collection[str] = (), moved: bool = False) -> Difference | None:
    """The first differing key, leaving out those that are, or lie under, a key in `free`; with `moved` also names of what
    has only moved into a file."""
    for difference in find_differences(old.model_dump(mode="json"), new.model_dump(mode="json")):
        if moved and difference.moved:
            continue
        if not any(f"{difference.key}.".startswith(f"{key}.") for key in free):
            return difference
    return None


def find_differences(old: Any, new: Any, key: str = "") -> Iterator[Difference]:
    """Every dotted key whose values differ, depth first."""
    if key == "team.agents" and list(old) != list(new):
        # Their order is the order of play, which comparing agent by agent would overlook.
        yield Difference(key=key, old=format_value(list(old)), new=format_value(list(new)))
    elif isinstance(old, dict) and isinstance(new, dict):
        # A name first: `algorithm.name` explains why all the other keys of two algorithms differ.
        for part in sorted(old | new, key=lambda part: part != "name"):
            yield from find_differences(old.get(part, ABSENT), new.get(part, ABSENT), f"{key}.{part}" if key else part)
    elif old != new:
        named = key in ("env.name", "team.workflow") or key.endswith(".script")
        yield Difference(key=key, old=format_value(old), new=format_value(new), moved=named and is_moved(old, new))


def format_value(value: Any) -> str:
    """A value as JSON, cut to 60 characters; `nothing` where it is absent."""
    if value is ABSENT:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
