"""Workflows that most teams need: one after another, a graph, a debate, a vote, rounds, and whoever's turn it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.game.play import Game


async def sequential(game: Game) -> None:
    """Every agent once, in the order in which the config lists them."""
    for name in game.team:
        await game.act(name)


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


async def debate(game: Game, rounds: int = 2) -> None:
    """All but the last listed agent argue at once, round after round; then the last one judges."""
    *debaters, judge = game.team
    for _ in range(rounds):
        await game.act(*debaters)
    await game.act(judge)


async def vote(game: Game, votes: int = 1) -> None:
    """Every agent answers `votes` times, alone; the first message with the most frequent answer speaks for the team.

    Of equally frequent answers the first given wins. If nobody answers, the first message stands.
    """
    ballots = await game.act(*(name for name in game.team for _ in range(votes)), sees=())
    answers = [await game.answer(turn) for turn in ballots]
    tally = Counter(answer for answer in answers if answer is not None).most_common(1)  # equal ones: first come first
    winner = ballots[answers.index(tally[0][0])] if tally else ballots[0]
    await game.say("majority", winner.text)


async def rounds(game: Game, rounds: int = 3) -> None:
    """The whole team in listed order, at most `rounds` times; the environment says after each whether to go on."""
    for _ in range(rounds):
        for name in game.team:
            await game.act(name)
        if await game.done():
            return


async def turns(game: Game) -> None:
    """The environment decides who acts next, until it names nobody. By default players do not see each other's messages:
    what a player may know of a move is what the environment shows."""
    while (name := await game.whose_turn()) is not None:
        says_nothing = name in game.team and game.team[name].sees is None  # the profile, on whom it sees
        await game.act(name, sees=() if says_nothing else None)
