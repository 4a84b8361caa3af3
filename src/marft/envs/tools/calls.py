"""Calls of tools that may be slow, hang or raise: in threads, under a deadline, their results as short texts."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from marft.envs.tools.text import SHOWN
from marft.game.tools import ToolFailure
from marft.untrusted_values import described, escaped, exact, kind_of

T = TypeVar("T")
MOST_LATE = 32  # threads of one tool that go on after their deadline


@dataclass(frozen=True, slots=True)
class Raised:
    """What the user's code raised."""

    error: BaseException


class Threads:
    """One tool's calls, each in a thread of its own: one that never ends takes no other's place. Threads that were too
    late are left to themselves, and end with the process."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._late: set[threading.Thread] = set()

    async def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What the function gives; ToolFailure where it raises or is late."""
        self._late = {thread for thread in self._late if thread.is_alive()}
        if len(self._late) >= MOST_LATE:
            raise ToolFailure(f"{MOST_LATE} earlier calls of it have not ended yet", "late_calls")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def settle(found: Any) -> None:
            if not done.done():  # it is, where it was too late
                done.set_result(found)

        def body() -> None:
            try:
                found = function(*arguments, **named)
            except BaseException as error:  # the user's code: anything may come, SystemExit too
                found = Raised(error)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, found)

        thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), name="marft-tool", daemon=True)
        thread.start()
        try:
            return result_of(await within(self.deadline, done))
        finally:
            if not done.done() or done.cancelled():
                self._late.add(thread)


async def within(deadline: float, work: Awaitable[T]) -> T | Raised:
    """What `work` gives or raises; ToolFailure where that takes longer than so many seconds. It is then cancelled, and not
    waited for."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=deadline)
    finally:
        late = not task.done()
        if late:
            task.cancel()
    if late:
        raise ToolFailure(f"no answer within {deadline:g} seconds", "late_calls")
    if task.cancelled():
        return Raised(asyncio.CancelledError())
    error = task.exception()
    return task.result() if error is None else Raised(error)


def read_arguments(asked: str) -> dict[str, Any]:
    """Arguments from their JSON."""
    try:
        found = json.loads(asked)
    except (ValueError, RecursionError) as error:
        raise ToolFailure(f"the arguments are not JSON: {error}", "malformed_calls") from None
    if not isinstance(found, dict):
        raise ToolFailure("the arguments are no JSON object", "malformed_calls")
    return found


def result_of(found: Any) -> Any:
    """What a call gave; ToolFailure where it raised."""
    if not isinstance(found, Raised):
        return found
    if isinstance(found.error, ToolFailure):
        raise found.error
    raise ToolFailure(described(found.error)[:SHOWN], "failed_calls")


def result_text(value: Any) -> str:
    """A text as it is, any other value as JSON, at most SHOWN characters."""
    if isinstance(value, str):
        text = exact(value)
    else:
        from pydantic_core import to_json

        try:
            text = to_json(value).decode()
        except Exception as error:  # of values that are no JSON, and of the user's own methods
            raise ToolFailure(
                f"it returned {kind_of(value)}, which is no JSON: {described(error)}"[:SHOWN], "failed_calls"
            ) from None
    return escaped(text[:SHOWN])
