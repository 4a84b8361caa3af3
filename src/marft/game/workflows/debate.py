"""Debaters and a judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.game.play import Game


async def debate(game: Game, rounds: int = 2) -> None:
    """All but the last listed agent argue at once, round after round; then the last one judges."""
    *debaters, judge = game.team
    for _ in range(rounds):
        await game.act(*debaters)
    await game.act(judge)
