"""A team that plays: everything an episode needs but its task, and where an episode begins."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from marft.envs.hosting import Host
from marft.game.agent import Agent
from marft.game.play import play
from marft.game.workflows import Workflow
from marft.terminal.status import Status
from marft.types import Episode, Task, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where an episode begins: with a task, or in the middle of another episode, whose first turns it repeats."""

    task: Task
    sample: int
    replayed: tuple[Turn, ...] = ()
    base_at: int | None = None  # the turn that the untrained base speaks instead of the agent
    trunk: int | None = None  # the sample that the repeated turns come from


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRunner:
    """Agents, environment and workflow; plays many episodes at once."""

    team: Mapping[str, Agent]
    host: Host
    workflow: Workflow
    status: Status = field(default_factory=Status)  # is told of every episode that is done

    async def episodes(self, starts: Sequence[Start], seed: str) -> list[Episode]:
        """All at once, in their order."""
        self.status.expect(len(starts))
        return await asyncio.gather(*(self._episode(start, seed) for start in starts))

    async def _episode(self, start: Start, seed: str) -> Episode:
        episode = await play(
            task=start.task, sample=start.sample, team=self.team, host=self.host, workflow=self.workflow,
            seed=seed, replayed=start.replayed, base_at=start.base_at, trunk=start.trunk,
        )  # fmt: skip
        self.status.advance()
        return episode
