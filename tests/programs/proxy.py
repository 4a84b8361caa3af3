"""A proxy between programs and the endpoint, which counts what programs ask from their side of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import aiohttp
from aiohttp import web

from marft.game.play import Game
from marft.programs.endpoint import Endpoint, Session


@dataclass(slots=True, kw_only=True)
class Proxy:
    """`asked` has the model and the status of each request."""

    asked: list[tuple[str, int]] = field(default_factory=list)
    port: int = 0

    async def serve(self, up: threading.Event, done: threading.Event) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:

            async def forward(request: web.BaseRequest) -> web.StreamResponse:
                _, port, rest = request.path.split("/", 2)
                body, headers = await request.read(), {"Authorization": request.headers["Authorization"]}
                url = f"http://127.0.0.1:{port}/{rest}"
                async with client.request(request.method, url, data=body, headers=headers) as answer:
                    self.asked.append((json.loads(body)["model"], answer.status))
                    kind = {"Content-Type": answer.headers["Content-Type"]}
                    return web.Response(body=await answer.read(), status=answer.status, headers=kind)

            server = await asyncio.get_running_loop().create_server(web.Server(forward), "127.0.0.1", 0)
            self.port = server.sockets[0].getsockname()[1]
            up.set()
            await asyncio.to_thread(done.wait)
            server.close()

    def redirect(self, base_url: str) -> str:
        """The address by which a program reaches the endpoint through this."""
        return base_url.replace("127.0.0.1:", f"127.0.0.1:{self.port}/")


@contextmanager
def counting() -> Iterator[Proxy]:
    """Within it every episode's endpoint is reached through a proxy."""
    proxy, up, done = Proxy(), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(proxy.serve(up, done)), daemon=True)
    thread.start()
    assert up.wait(10)
    opens: Any = Endpoint.open

    async def open_behind(self: Endpoint, game: Game) -> Session:
        session: Session = await opens(self, game)
        session.base_url = proxy.redirect(session.base_url)
        return session

    try:
        with patch.object(Endpoint, "open", open_behind):
            yield proxy
    finally:
        done.set()
        thread.join(10)
