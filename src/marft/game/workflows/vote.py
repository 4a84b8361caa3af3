"""Many answers, one majority."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.game.play import Game


async def vote(game: Game, votes: int = 1) -> None:
    """Every agent answers `votes` times, alone; the first message with the most frequent answer speaks for the team.

    Of equally frequent answers the first given wins. If nobody answers, the first message stands.
    """
    ballots = await game.act(*(name for name in game.team for _ in range(votes)), sees=())
    answers = [await game.answer(turn) for turn in ballots]
    tally = Counter(answer for answer in answers if answer is not None).most_common(1)  # equal ones: first come first
    winner = ballots[answers.index(tally[0][0])] if tally else ballots[0]
    await game.say("majority", winner.text)
