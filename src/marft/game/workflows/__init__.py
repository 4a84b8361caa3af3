"""Workflows decide who acts when: plain async Python, `async def workflow(game): await game.act(...)`.

Here one is found by its name in the config; `built_in.py` and `orchestrated.py` are those that come with marft.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from marft import import_paths
from marft.config.section import nearest
from marft.game.workflows.built_in import dag, debate, rounds, sequential, turns, vote
from marft.game.workflows.orchestrated import orchestrated
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


def find_workflow(name: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Workflow:
    """A built-in one, or the user's own as `package.module:function`, with its settings as keyword arguments."""
    if name in BUILT_IN:
        return partial(BUILT_IN[name], **settings)
    found = import_paths.find(name, "team.workflow")
    check_workflow(found, f"team.workflow: {name!r}")
    workflow: Workflow = found
    return partial(workflow, **checked_options(found, settings)) if settings else workflow


def checked_options(workflow: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments that the function has, each of the kind that it is annotated with."""
    _, *parameters = inspect.signature(workflow).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    try:
        hints = get_type_hints(workflow)
    except Exception:  # annotations that nobody can evaluate are no reason to refuse a workflow
        hints = {}
    found = {}
    for key, value in options.items():
        if key not in known and not any(p.kind == p.VAR_KEYWORD for p in parameters):
            listed = f"it has {', '.join(known)}" if known else "it has none"
            raise MarftError(f"team.options.{key}: the workflow has no such argument{nearest(key, known)}; {listed}")
        try:
            found[key] = TypeAdapter(hints.get(key, Any)).validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]["msg"]
            raise MarftError(f"team.options.{key}: {first[0].lower()}{first[1:]}, not {value!r}") from None
    return found


def check_workflow(workflow: object, what: str) -> str:
    """The name under which a config can find `workflow` again; it must be an async function."""
    if not inspect.iscoroutinefunction(workflow):
        raise MarftError(f"{what} is not an async function; write `async def workflow(game): …`")
    return import_paths.name_of(workflow)
