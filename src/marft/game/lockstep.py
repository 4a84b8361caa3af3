"""Keeps luck out of it: what a team says must not depend on which of two processes was faster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 1.0  # for which engines wait for a tool of the user's


class Lockstep:
    """Answers from outside are given out together, in the order of the questions, once all have come.

    Meanwhile nothing is generated: engines wait for `settled`. So the batches they compute, and with them every rounding
    of every log-prob, are the same each time.
    """

    def __init__(self, before_step: Callable[[], None] | None = None) -> None:
        self.before_step = before_step  # called each time that an engine may go on
        self._held: list[asyncio.Future[None]] = []
        self._missing = 0
        self._idle: asyncio.Future[None] | None = None

    async def reply(self, question: Awaitable[T]) -> T:
        """The answer to `question`, when it is everybody's time."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._held.append(turn)
        self._missing += 1
        try:
            return await question
        finally:
            self._missing -= 1
            if not self._missing:
                loop.call_soon(self._release)
            await turn

    async def settled(self) -> None:
        """Until nobody waits for an answer from outside."""
        while self._held:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await self._idle
            await asyncio.sleep(0)  # those who were answered may ask again
        if self.before_step is not None:
            self.before_step()

    def _release(self) -> None:
        if self._missing:  # somebody asked in the meantime
            return
        released, self._held = self._held, []
        idle, self._idle = self._idle, None
        for turn in (*released, *([idle] if idle else [])):
            if not turn.done():  # whoever waited may have been cancelled
                turn.set_result(None)


class Patience:
    """Calls of one tool in lockstep, until one takes longer than PATIENCE_S: engines go on without it, then and afterwards.

    So a quick tool leaves runs repeatable, and a slow one holds no engine up.
    """

    def __init__(self, lockstep: Lockstep) -> None:
        self.lockstep, self.exhausted = lockstep, False

    async def reply(self, question: Awaitable[T]) -> T:
        """The answer to `question`."""
        if self.exhausted:
            return await question
        task = asyncio.ensure_future(question)
        try:
            done, _ = await self.lockstep.reply(asyncio.wait({task}, timeout=PATIENCE_S))
            self.exhausted = self.exhausted or not done
            return await task
        finally:
            task.cancel()
