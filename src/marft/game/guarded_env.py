"""The user's environment, at arm's length: whatever it raises, or gives of a wrong kind, is an EpisodeFailed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from marft.game.endings import EpisodeFailed
from marft.game.validation import EnvironmentFault, validate_output
from marft.types import Reward, Task, Turn


class EnvironmentHost(Protocol):
    """What play needs of whoever hosts an environment."""

    async def ask(self, method: str, *arguments: Any, last: bool = False) -> Any:
        """What `env.method(*arguments)` returns; EnvironmentFault where it fails."""


class GuardedEnv:
    """An environment and the state it is in."""

    def __init__(self, host: EnvironmentHost) -> None:
        self._host = host
        self._state: Any = None

    async def reset(self, task: Task) -> None:
        """Begins an episode of `task`."""
        self._state = await self._ask("reset", task)

    async def hear(self, turn: Turn) -> None:
        """Moves on to the state after `turn`."""
        self._state = await self._ask("transition", self._state, turn)

    async def shown(self, agent: str) -> str:
        """What `agent`, who is about to act, is shown."""
        shown: str = await self._ask("observe", self._state, agent)
        return shown

    async def whose_turn(self) -> str | None:
        """Who acts next; None: nobody, or it is left to the workflow."""
        name: str | None = await self._ask("whose_turn", self._state)
        return name

    async def reward(self, *, last: bool = False) -> Reward:
        """What the present state is worth."""
        reward: Reward = await self._ask("reward", self._state, last=last)
        return reward

    async def answer(self, text: str) -> Hashable | None:
        """What a message answers, for counting votes."""
        answer: Hashable | None = await self._ask("answer", text)
        return answer

    async def _ask(self, method: str, *arguments: Any, last: bool = False) -> Any:
        try:
            return validate_output(method, await self._host.ask(method, *arguments, last=last))
        except EnvironmentFault as fault:
            raise EpisodeFailed(f"environment.{method} {fault.line}", fault.kind, fault.trace) from fault
