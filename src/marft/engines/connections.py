"""HTTP connections that an engine's requests share, event loop by event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import httpx2


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What the requests of one event loop share. Connections belong to a loop and end with it."""

    client: httpx2.AsyncClient
    permits: asyncio.Semaphore  # of requests under way at once
    keeper: AsyncGenerator[None]


class Connections:
    """A client for every event loop that asks, one loop after the other; `most` requests at once."""

    def __init__(self, make_client: Callable[[httpx2.Limits], httpx2.AsyncClient], most: int) -> None:
        self.make_client, self.most = make_client, most
        self.by_loop: dict[asyncio.AbstractEventLoop, Connection] = {}
        self.closed = False
        self._closing: list[asyncio.Task[None]] = []

    async def get(self) -> Connection:
        """The running loop's own, made when it is first asked for."""
        if self.closed:
            raise RuntimeError("the engine is closed")
        loop = asyncio.get_running_loop()
        if loop not in self.by_loop:
            client = self.make_client(httpx2.Limits(max_connections=self.most, max_keepalive_connections=self.most))
            keeper = self._keep(loop, client)
            self.by_loop[loop] = Connection(client=client, permits=asyncio.Semaphore(self.most), keeper=keeper)
            await anext(keeper)
        return self.by_loop[loop]

    def close(self) -> None:
        """Closes what loops that still run hold; the others have closed theirs."""
        self.closed = True
        self._closing = [
            loop.create_task(self._end(each.keeper)) for loop, each in self.by_loop.items() if loop.is_running()
        ]

    async def _end(self, keeper: AsyncGenerator[None]) -> None:
        await keeper.aclose()

    async def _keep(self, loop: asyncio.AbstractEventLoop, client: httpx2.AsyncClient) -> AsyncGenerator[None]:
        """At its end `asyncio.run` closes the generators that are still open: the last moment to close connections."""
        try:
            yield
        finally:
            del self.by_loop[loop]
            await client.aclose()
