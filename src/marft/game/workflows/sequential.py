"""One after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.game.play import Game


async def sequential(game: Game) -> None:
    """Every agent once, in the order in which the config lists them."""
    for name in game.team:
        await game.act(name)
