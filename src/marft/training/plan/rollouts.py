"""Episodes played for a plan: many short ones for the speed at the run's width, a few whole ones for what is usual."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from marft.config import Config
from marft.game.play import Agent
from marft.training.compose import Assembly
from marft.training.dry_run import StandIn
from marft.training.source import Source
from marft.training.table import Start, Table
from marft.types import Episode, MarftError

WHOLE = 16  # episodes played to their end, or one task's samples where these are more
SHORT, LONGER = 4, 20  # most tokens a turn of the wide, short plays


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    episodes: tuple[Episode, ...]
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds of a play: so many however little is said, and so many a token, with `rows` episodes at once."""

    start: float
    token: float
    rows: int

    def seconds(self, episodes: int, tokens: float) -> float:
        return self.start * episodes / self.rows + self.token * tokens


class Rollouts:
    def __init__(self, config: Config, parts: Assembly) -> None:
        self.config, self.parts = config, parts
        self.source = Source(config, parts.table, Path())

    def wide(self) -> tuple[Pace, Played]:
        """From two plays of the run's width, after one that warms up: the second says more, all else is the same. The
        second is handed back too."""
        starts = self.starts(self.config.train.tasks)[: self.config.engine.slots]
        self.play(starts, SHORT)
        short, longer = self.play(starts, SHORT), self.play(starts, LONGER)
        more = longer.tokens - short.tokens
        token = max(0.0, longer.seconds - short.seconds) / more if more > 0 else 0.0
        token = token or longer.seconds / max(longer.tokens, 1)
        start = max(0.0, short.seconds - token * short.tokens)
        return Pace(start=start, token=token, rows=len(starts)), longer

    def whole(self) -> Played:
        samples = self.config.train.samples
        played = self.play(self.starts(min(self.config.train.tasks, -(-WHOLE // samples))), None)
        if not any(episode.turns and episode.ended != "failed" for episode in played.episodes):
            first = played.episodes[0]
            raise MarftError(f"every episode of the probe failed: {first.error}", first.trace)
        return played

    def starts(self, tasks: int) -> list[Start]:
        chosen = self.source.next_tasks(0)[:tasks]
        return [Start(task=task, sample=i) for task in chosen for i in range(self.config.train.samples)]

    def play(self, starts: Sequence[Start], most: int | None) -> Played:
        """With the play-outs that the credit asks for; nobody says more than `most` tokens a turn."""
        team = {name: self.seated(agent, most) for name, agent in self.parts.table.team.items()}
        table = Table(team=team, host=self.parts.table.host, workflow=self.parts.table.workflow)
        before, started = self.parts.tokens, time.perf_counter()
        episodes = asyncio.run(Source(self.config, table, Path()).play(starts, f"{self.config.seed}/plan"))
        seconds = time.perf_counter() - started
        return Played(episodes=tuple(episodes), tokens=self.parts.tokens - before, seconds=seconds)

    def seated(self, agent: Agent, most: int | None) -> Agent:
        """A plan asks no remote model: somebody else speaks for it, at once."""
        match self.config.team.agents[agent.name].kind:
            case "remote":
                return replace(agent, voice=StandIn(agent.name, agent.voice.encode, iter(())))
            case "trained" | "frozen" if most is not None:
                limit = min(most, agent.sampling.max_tokens)
                return replace(agent, sampling=replace(agent.sampling, max_tokens=limit))
            case _:
                return agent
