"""A workflow, awaited at arm's length: one that swallows whatever ends it, and goes on for ever, is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from types import coroutine
from typing import Any

from marft.escalation import leave_behind

ENOUGH = 16  # refused calls of a game that is over


@coroutine
def await_or_abandon(workflow: Awaitable[None], refused: Callable[[], int]) -> Generator[Any, None, None]:
    """Awaits `workflow`, step by step in this very task, until it is done or was `refused` too often."""
    steps: Any = workflow.__await__()
    thrown: BaseException | None = None
    while True:
        try:
            waited = steps.send(None) if thrown is None else steps.throw(thrown)
        except StopIteration:
            return
        if refused() > ENOUGH:
            leave_behind(steps)  # it would not let itself be closed either
            return
        thrown = None
        try:
            yield waited
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:  # what is raised in this task is raised in the workflow
            thrown = error


def is_cancelled() -> bool:
    """Whether somebody cancelled this task, as opposed to a CancelledError that was raised for no reason."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
