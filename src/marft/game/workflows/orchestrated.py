"""An orchestrator decides who acts next, and whom that agent sees."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.game.play import Game

# ASCII: case-insensitively, "ſeeſ" would pass for "sees"
DONE = re.compile(r"done\.?", re.ASCII | re.IGNORECASE)
NEXT = re.compile(r"next:\s*(\S+)(?:\s+sees\s+(.+))?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Who acts next (None: the team is done), and whom it sees (None: as its profile says)."""

    agent: str | None
    sees: tuple[str, ...] | None = None


async def orchestrated(game: Game, steps: int = 8) -> None:
    """The first listed agent directs the others, its workers, for at most `steps` of their turns.

    Its decisions are asides: the environment does not take "Done" for the team's answer. Where a profile has no `sees`,
    an agent sees the workers and not the decisions.
    """
    boss, *workers = game.team
    for _ in range(steps):
        decision = await next_decision(game, boss, workers)
        if decision.agent is None:
            return
        sees = usual_view(game, decision.agent, workers) if decision.sees is None else decision.sees
        await game.act(decision.agent, sees=sees)


async def next_decision(game: Game, boss: str, workers: Sequence[str]) -> Decision:
    """What the orchestrator says, asked twice if need be; after that the first worker who has not yet acted."""
    for _ in range(2):
        [turn] = await game.act(
            boss, sees=usual_view(game, boss, workers), note=f"Team: {', '.join(workers)}", aside=True
        )
        if (decision := decide(turn.text, workers)) is not None:
            return decision
        game.count("malformed")
    acted = {turn.agent for turn in game.turns}
    return Decision(agent=next((name for name in workers if name not in acted), None))


def usual_view(game: Game, name: str, workers: Sequence[str]) -> Sequence[str]:
    """Whom an agent sees unless the orchestrator says otherwise."""
    sees = game.team[name].sees
    return workers if sees is None else sees


def decide(text: str, workers: Sequence[str]) -> Decision | None:
    """`Done`, or `Next: NAME`, which ` sees A, B`, ` sees nobody` or ` sees everyone` may follow; None for all else."""
    line = text.strip()
    if len(line.splitlines()) != 1:
        return None
    if DONE.fullmatch(line):
        return Decision(agent=None)
    found = NEXT.fullmatch(line)
    if found is None or found[1] not in workers:
        return None
    if found[2] is None:
        return Decision(agent=found[1])
    match found[2].lower():
        case "nobody":
            return Decision(agent=found[1], sees=())
        case "everyone":
            return Decision(agent=found[1], sees=tuple(workers))
    names = tuple(name.strip() for name in found[2].split(","))
    return Decision(agent=found[1], sees=names) if all(name in workers for name in names) else None
