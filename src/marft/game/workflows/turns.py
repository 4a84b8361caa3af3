"""Whoever's turn it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.game.play import Game


async def turns(game: Game) -> None:
    """The environment decides who acts next, until it names nobody. By default players do not see each other's messages:
    what a player may know of a move is what the environment shows."""
    while (name := await game.whose_turn()) is not None:
        says_nothing = name in game.team and game.team[name].sees is None  # the profile, on whom it sees
        await game.act(name, sees=() if says_nothing else None)
