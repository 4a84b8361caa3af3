"""The workflow `program`: a program plays each episode, and what it returns is graded."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from marft.config.team import ProgramConfig
from marft.game.endings import EpisodeFailed
from marft.game.play import Game
from marft.game.validation import EnvironmentFault, require_by_name
from marft.programs.endpoint import Endpoint, Session, read_reward
from marft.programs.running import Program, make_program
from marft.types import Reward
from marft.untrusted_values import kind_of, quoted

NAME = "program"  # who says what the program answers
END_S = 5.0  # that a cancelled program has to end
ROUNDING = 1e-6  # by which parts may miss their sum


class ProgramWorkflow:
    """One endpoint for all episodes, and the program that asks it."""

    def __init__(self, config: ProgramConfig) -> None:
        self.program: Program = make_program(config)
        self.deadline, self.endpoint = config.deadline, Endpoint()

    async def __call__(self, game: Game) -> None:
        """An episode: the program until it returns, a call of it ends the game, or its time is over."""
        async with self.program.place():
            await self._play(game)

    async def _play(self, game: Game) -> None:
        session = await self.endpoint.open(game)
        running: asyncio.Future[Any] = asyncio.ensure_future(self.program.run(game.task, session))
        try:
            await asyncio.wait({running, session.broken}, timeout=self.deadline, return_when=asyncio.FIRST_COMPLETED)
            if session.broken.done():
                session.broken.result()
            if not running.done():
                raise EpisodeFailed(
                    f"the program has not ended after {self.deadline:g} s (team.program.deadline)", "late"
                )
            value = running.result()
        finally:
            await end(running)
            await self.endpoint.close(session)
        await conclude(game, session, value)

    def close(self) -> None:
        """End what the program keeps."""
        self.program.close()


async def end(running: asyncio.Future[Any]) -> None:
    """Cancel a program that still runs, and give it a moment to end."""
    if running.done():
        with suppress(asyncio.CancelledError):
            running.exception()
        return
    running.cancel()
    await asyncio.wait({running}, timeout=END_S)


async def conclude(game: Game, session: Session, value: object) -> None:
    """What the episode is worth: a number, posted or returned, is the reward; a text is the team's answer; where there is
    neither, the environment hears what was said last."""
    more: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        answer, reward, more = value.get("answer"), value.get("reward", session.reward), value
    elif isinstance(value, bool | int | float):
        answer, reward = None, value
    else:
        answer, reward = value, session.reward
    if answer is None and game.turns:
        answer = game.turns[-1].text
    if answer is not None and not isinstance(answer, str):
        raise EpisodeFailed(
            f"the program returned {kind_of(answer)}; a text is its answer, a number its reward", "workflow"
        )
    if answer is not None:
        await game.say(NAME, answer)
    try:
        game.awarded = itemised_reward(game, reward, more)
    except EnvironmentFault as fault:
        raise EpisodeFailed(f"the program {fault.line}", "workflow") from None


def itemised_reward(game: Game, given: object, more: Mapping[str, Any]) -> Reward | None:
    """The reward, with what the program says `more` of it; EnvironmentFault where that does not fit."""
    if given is None:
        if items := [f"`{key}`" for key in ("parts", "agents") if key in more]:
            raise EnvironmentFault(f"returned {' and '.join(items)} without a `reward`")
        return None
    reward = given if isinstance(given, Reward) else read_reward(given)
    parts = require_by_name("parts", more.get("parts", {}))
    if parts and not math.isclose(total := sum(parts.values()), reward.team, rel_tol=ROUNDING, abs_tol=ROUNDING):
        raise EnvironmentFault(f"returned `parts` that sum up to {total:g}, and a `reward` of {reward.team:g}")
    reward = replace(reward, parts=parts)
    if "agents" not in more:
        return reward
    return replace(reward, turns=last_turn_rewards(game, require_by_name("agents", more["agents"])), itemised=True)


def last_turn_rewards(game: Game, agents: Mapping[str, float]) -> dict[int, float]:
    """What each agent earned, on the last of its turns; the others have 0."""
    if unknown := [name for name in agents if name not in game.team and name != NAME]:
        raise EnvironmentFault(f"returned `agents` with {quoted(unknown[0])}; the team has {', '.join(game.team)}")
    last = {turn.agent: turn.index for turn in game.turns}
    return {turn.index: agents.get(turn.agent, 0.0) * (last[turn.agent] == turn.index) for turn in game.turns}
