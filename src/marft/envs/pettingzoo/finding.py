"""A game, or a function that puts it into words, by its name in the config."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from marft.types import MarftError


def find_game(game: str) -> Callable[..., Any]:
    """What makes the game: `env` of a PettingZoo module such as pettingzoo.classic.tictactoe_v3, or `module:function`."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # which it would print into our output
    return find(game if ":" in game else f"{game}:env", "env.game")


def find(name: str, key: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # the last two: `:f`, `..module:f`
        missing = isinstance(error, ModuleNotFoundError) and error.name != module
        hint = "; pip install 'marft[games]'" if missing and module.split(".")[0] == "pettingzoo" else ""
        raise MarftError(f"{key}: cannot import {name!r}: {error}{hint}") from None
    if not callable(found):
        raise MarftError(f"{key}: {name!r} is not a function")
    made: Callable[..., Any] = found
    return made
