"""Workflows decide who acts when. A workflow is plain async Python: `async def workflow(game): await game.act(...)`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from marft.types import MarftError

if TYPE_CHECKING:
    from marft.game.play import Game

Workflow = Callable[["Game"], Awaitable[None]]


async def sequential(game: Game) -> None:
    """Every agent once, in the order in which the config lists them."""
    for name in game.team:
        await game.act(name)


def find_workflow(name: str) -> Workflow:
    """`sequential`, or the user's own as `package.module:function`."""
    if name == "sequential":
        return sequential
    module, _, function = name.partition(":")
    if module == "__main__" or "<locals>" in function:
        raise MarftError(
            f"team.workflow: {name!r} was given as a Python function; use marft.train(workflow=…, resume=True)"
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # the last two: `:f`, `..module:f`
        raise MarftError(f"team.workflow: cannot import {name!r}: {error}") from None
    check_workflow(found, f"team.workflow: {name!r}")
    workflow: Workflow = found
    return workflow


def check_workflow(workflow: object, what: str) -> str:
    """The name under which a config can find `workflow` again; it must be an async function."""
    if not inspect.iscoroutinefunction(workflow):
        raise MarftError(f"{what} is not an async function; write `async def workflow(game): …`")
    return f"{workflow.__module__}:{workflow.__qualname__}"
