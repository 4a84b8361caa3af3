"""The same team again and again, until the task is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.game.play import Game


async def rounds(game: Game, rounds: int = 3) -> None:
    """The whole team in listed order, at most `rounds` times; the environment says after each whether to go on."""
    for _ in range(rounds):
        for name in game.team:
            await game.act(name)
        if await game.done():
            return
