"""A directed acyclic graph of agents: who sees whom decides who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from marft.types import MarftError

if TYPE_CHECKING:
    from marft.game.play import Game


async def dag(game: Game) -> None:
    """Every agent once, as soon as all whom it sees have acted; those who are ready act at once."""
    try:
        ready = layers({name: agent.sees or () for name, agent in game.team.items()})
    except ValueError as error:
        raise MarftError(f"team.workflow: dag: {error}") from None
    for layer in ready:
        await game.act(*layer)


def layers(sees: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Who acts at once, in order of play: {a: [], b: [], c: [a, b]} gives [[a, b], [c]]."""
    waiting = dict(sees)
    found: list[list[str]] = []
    while waiting:
        ready = [name for name, parents in waiting.items() if not any(parent in waiting for parent in parents)]
        if not ready:
            raise ValueError(f"{' → '.join(cycle_of(waiting))} wait for one another for ever")
        found.append(ready)
        for name in ready:
            del waiting[name]
    return found


def cycle_of(waiting: Mapping[str, Sequence[str]]) -> list[str]:
    """From one agent back to itself, each waiting for the next; everybody here waits for somebody here."""
    path = [next(iter(waiting))]
    while path[-1] not in path[:-1]:
        path.append(next(parent for parent in waiting[path[-1]] if parent in waiting))
    return path[path.index(path[-1]) :]
