"""The user's environment, at arm's length: whatever it raises, or gives of a wrong kind, is a HostileError."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from numbers import Real
from typing import Any, Protocol

from marft.game.endings import HostileError
from marft.types import Reward, Task, Turn


class World(Protocol):
    """What play needs of an environment; `marft.Environment` has it."""

    def reset(self, task: Task) -> Any: ...
    def observe(self, state: Any) -> str: ...
    def transition(self, state: Any, turn: Turn) -> Any: ...
    def reward(self, state: Any) -> Reward: ...
    def answer(self, text: str) -> Hashable | None: ...


class Guarded:
    """An environment and the state it is in."""

    def __init__(self, env: World) -> None:
        self._env = env
        self._state: Any = None

    def reset(self, task: Task) -> None:
        self._state = self._ask("reset", task)

    def hear(self, turn: Turn) -> None:
        self._state = self._ask("transition", self._state, turn)

    def shown(self) -> str:
        shown = self._ask("observe", self._state)
        if not isinstance(shown, str):
            raise HostileError(f"environment.observe returned {type(shown).__name__}, not str")
        return shown

    def reward(self) -> Reward:
        """What the present state is worth; a reward that is no finite number is the environment's failure."""
        reward = self._ask("reward", self._state)
        if not isinstance(reward, Reward):
            raise HostileError(f"environment.reward returned {type(reward).__name__}, not a marft.Reward")
        for number in (reward.team, *reward.turns.values()):
            if not isinstance(number, Real) or not math.isfinite(number):
                raise HostileError(f"the environment's reward is {number}, not a finite number")
        correct = None if reward.correct is None else bool(reward.correct)
        turns = {k: float(number) for k, number in reward.turns.items()}
        return replace(reward, team=float(reward.team), turns=turns, correct=correct, done=bool(reward.done))

    def answer(self, text: str) -> Hashable | None:
        answer: Hashable | None = self._ask("answer", text)
        try:
            hash(answer)
        except TypeError:
            kind = type(answer).__name__
            raise HostileError(f"environment.answer returned {kind}, which cannot be counted") from None
        return answer

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._env, method)(*arguments)
        except Exception as error:  # the user's code: anything may come
            raise HostileError(f"environment.{method} raised {type(error).__name__}: {error}") from error
