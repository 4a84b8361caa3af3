"""Workflows that do not want to end. Each says when it has begun: `stubborn.BEGUN` is then a file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

from marft import Game


def begin() -> None:
    Path(os.environ["STUBBORN_BEGUN"]).touch()


async def spins(game: Game) -> None:
    begin()
    while True:
        pass


async def sleeps(game: Game) -> None:
    begin()
    time.sleep(600)


async def swallows(game: Game) -> None:
    """Never awaits, and swallows whatever is raised in it."""
    begin()
    while True:
        try:
            time.sleep(600)
        except BaseException:
            continue


async def waits(game: Game) -> None:
    """Awaits, and swallows its cancellation."""
    begin()
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(600)


async def ticks(game: Game) -> None:
    begin()
    while True:
        try:
            await asyncio.sleep(0)
        except BaseException:
            continue


async def exits_elsewhere(game: Game) -> None:
    """In a task and in a callback of its own."""
    asyncio.get_running_loop().call_soon(sys.exit, 3)

    async def leave() -> None:
        sys.exit(4)

    await asyncio.create_task(leave())
