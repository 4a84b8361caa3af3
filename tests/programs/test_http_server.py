"""The server itself: whose fault a failure is, and connections that say nothing."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from marft.programs import http_server as module
from marft.programs.http_server import HttpServer
from marft.programs.protocol import Answer, ChatRequest

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
GOOD = {"model": "solver", "messages": [{"role": "user", "content": "2 + 2?"}]}


@dataclass(slots=True)
class Late:
    """Asks something that does not answer in time."""

    under_way: set[asyncio.Task[Any]] = field(default_factory=set)
    calls: Iterator[object] = field(default_factory=itertools.count)
    models: tuple[str, ...] = ("solver",)
    most: int = 8

    async def ask(self, request: ChatRequest) -> list[Answer]:
        raise TimeoutError("the tool is late")


@asynccontextmanager
async def listening(*, deadline: float | None = None, cancels: bool = False) -> AsyncIterator[tuple[int, Late]]:
    """Its port, and whom all requests belong to."""
    caller, bound = Late(), socket.create_server(("127.0.0.1", 0))
    server = HttpServer(lambda request: caller, deadline=deadline, cancels=cancels)
    await server.listen(bound)
    try:
        yield bound.getsockname()[1], caller
    finally:
        await server.close()


async def post(port: int, **given: Any) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"http://127.0.0.1:{port}/v1/chat/completions", **given) as answer,
    ):
        return answer.status, (await answer.json())["error"]["message"]


def test_a_body_that_is_not_what_it_says_is_the_client_s_fault(capsys: pytest.CaptureFixture[str]) -> None:
    async def play() -> None:
        async with listening() as (port, _):
            status, line = await post(port, data=b"not packed", headers={"Content-Encoding": "gzip"})
            assert status == 400
            assert line.startswith("the request cannot be read: ")

    asyncio.run(play())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("cancels", [False, True])
def test_a_client_that_hangs_up_in_mid_body_is_no_bug(cancels: bool, capsys: pytest.CaptureFixture[str]) -> None:
    async def play() -> None:
        async with listening(cancels=cancels) as (port, caller), asyncio.timeout(5):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEAD + b"\r\n{")
            while not caller.under_way:
                await asyncio.sleep(0.01)
            writer.transport.abort()
            while caller.under_way:
                await asyncio.sleep(0.01)

    asyncio.run(play())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("deadline", [None, 60.0])
def test_somebody_else_s_timeout_is_not_the_deadline(
    deadline: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play() -> None:
        async with listening(deadline=deadline) as (port, _):
            assert (await post(port, json=GOOD))[0] == 500

    asyncio.run(play())
    assert capsys.readouterr().err.rstrip().endswith("TimeoutError: the tool is late")


@pytest.mark.parametrize("said", [b"", HEAD])
def test_a_connection_that_asks_nothing_is_closed(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.1)

    async def play() -> None:
        async with listening() as (port, _), asyncio.timeout(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(play())
