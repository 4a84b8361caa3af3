"""The user's environment, at arm's length: whatever it raises, or gives of a wrong kind, is a HostileError."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any, Literal, Protocol

from marft.game.endings import HostileError
from marft.types import Reward, Task, Turn


class Fault(Exception):
    """An environment did not answer: it raised, or it was too late. Carries the traceback, where there is one."""

    def __init__(self, kind: Literal["raised", "late"], line: str, trace: str) -> None:
        super().__init__(kind, line, trace)  # all of them, so that it can be pickled
        self.kind, self.line, self.trace = kind, line, trace


class World(Protocol):
    """What play needs of whoever hosts an environment."""

    async def ask(self, method: str, *arguments: Any, last: bool = False) -> Any: ...


class Guarded:
    """An environment and the state it is in."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._state: Any = None

    async def reset(self, task: Task) -> None:
        self._state = await self._ask("reset", task)

    async def hear(self, turn: Turn) -> None:
        self._state = await self._ask("transition", self._state, turn)

    async def shown(self, agent: str) -> str:
        """What `agent`, who is about to act, is shown."""
        shown = await self._ask("observe", self._state, agent)
        if not isinstance(shown, str):
            raise HostileError(f"environment.observe returned {type(shown).__name__}, not str", "raised")
        return shown

    async def whose_turn(self) -> str | None:
        name = await self._ask("whose_turn", self._state)
        if name is not None and not isinstance(name, str):
            raise HostileError(f"environment.whose_turn returned {type(name).__name__}, not str", "raised")
        return name

    async def reward(self, *, last: bool = False) -> Reward:
        """What the present state is worth; a reward that is no finite number is the environment's failure."""
        reward = await self._ask("reward", self._state, last=last)
        if not isinstance(reward, Reward):
            raise HostileError(f"environment.reward returned {type(reward).__name__}, not a marft.Reward", "raised")
        if not isinstance(reward.turns, Mapping) or not all(type(index) is int for index in reward.turns):
            raise HostileError("the environment's Reward.turns is not a mapping of turns' indices to numbers", "raised")
        if not isinstance(reward.players, Mapping) or not all(
            type(index) is int and type(player) is str for index, player in reward.players.items()
        ):
            raise HostileError("the environment's Reward.players is not a mapping of turns' indices to names", "raised")
        for number in (reward.team, *reward.turns.values()):
            if not isinstance(number, Real) or not math.isfinite(number):
                raise HostileError(f"the environment's reward is {number}, not a finite number", "raised")
        correct = None if reward.correct is None else bool(reward.correct)
        turns = {k: float(number) for k, number in reward.turns.items()}
        return replace(reward, team=float(reward.team), turns=turns, correct=correct, done=bool(reward.done))

    async def answer(self, text: str) -> Hashable | None:
        answer: Hashable | None = await self._ask("answer", text)
        try:
            hash(answer)
        except TypeError:
            kind = type(answer).__name__
            raise HostileError(f"environment.answer returned {kind}, which cannot be counted", "raised") from None
        return answer

    async def _ask(self, method: str, *arguments: Any, last: bool = False) -> Any:
        try:
            return await self._world.ask(method, *arguments, last=last)
        except Fault as fault:
            raise HostileError(f"environment.{method} {fault.line}", fault.kind, fault.trace) from fault
