"""A directed acyclic graph of agents: who sees whom decides who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.game.play import Game


async def dag(game: Game) -> None:
    """Every agent once, as soon as all whom it sees have acted; those who are ready act at once."""
    for layer in layers({name: agent.sees or () for name, agent in game.team.items()}):
        await game.act(*layer)


def layers(sees: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Who acts at once, in order of play: {a: [], b: [], c: [a, b]} gives (a, b), (c). The config has refused cycles."""
    waiting = TopologicalSorter(sees)
    waiting.prepare()
    while waiting.is_active():
        ready = waiting.get_ready()
        yield ready
        waiting.done(*ready)
