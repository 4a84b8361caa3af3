"""A workflow by its name in the config, and the name of a workflow that was given as a function."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from marft import references
from marft.game.workflows.dag import dag
from marft.game.workflows.debate import debate
from marft.game.workflows.orchestrated import orchestrated
from marft.game.workflows.rounds import rounds
from marft.game.workflows.sequential import sequential
from marft.game.workflows.turns import turns
from marft.game.workflows.vote import vote
from marft.types import MarftError

if TYPE_CHECKING:
    from marft.game.play import Game

Workflow = Callable[["Game"], Awaitable[None]]
BUILT_IN: Mapping[str, Callable[..., Awaitable[None]]] = {
    "sequential": sequential,
    "dag": dag,
    "debate": debate,
    "vote": vote,
    "orchestrated": orchestrated,
    "rounds": rounds,
    "turns": turns,
}


def find_workflow(name: str, settings: Mapping[str, int] = MappingProxyType({})) -> Workflow:
    """A built-in one with its settings, or the user's own as `package.module:function`."""
    if name in BUILT_IN:
        return partial(BUILT_IN[name], **settings)
    if settings:
        raise MarftError(f"team.workflow: {name!r} takes no settings, not {', '.join(settings)}")
    found = references.find(name, "team.workflow")
    check_workflow(found, f"team.workflow: {name!r}")
    workflow: Workflow = found
    return workflow


def check_workflow(workflow: object, what: str) -> str:
    """The name under which a config can find `workflow` again; it must be an async function."""
    if not inspect.iscoroutinefunction(workflow):
        raise MarftError(f"{what} is not an async function; write `async def workflow(game): …`")
    return references.name_of(workflow)
