"""The one line that a wrong config ends in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from marft.config import Config, merge, parse
from marft.types import MarftError

DUO: dict[str, Any] = {"team": {"agents": {"a": "One.", "b": "Two."}}, "algorithm": "marft-token"}


def read(overrides: Sequence[str], base: dict[str, Any] | None = None) -> Config:
    return parse(merge(base if base is not None else DUO, overrides))


def mistake(*overrides: str, base: dict[str, Any] | None = None) -> str:
    with pytest.raises(MarftError) as caught:
        read(overrides, base)
    return checked(str(caught.value))


def outcome(call: Callable[[], object]) -> str:
    """The line of a mistake; any other exception gets through."""
    try:
        call()
    except MarftError as error:
        return checked(str(error))
    return "fine"


def checked(line: str) -> str:
    assert line
    assert line.isprintable(), repr(line)
    return line
