"""HTTP as engines need it: connections that requests share, event loop by event loop, and answers with limits of time and
size, whatever the server does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import httpx2

from marft.engines.secret import Secret


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """All of one."""

    status: int
    headers: httpx2.Headers
    body: bytes


class NoAnswerError(Exception):
    """Why nothing that can be read has come, in a few words; `passing`: it may come next time."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


async def send_request(
    client: httpx2.AsyncClient, method: str, url: str, question: object, *, patience: float, largest: int
) -> HttpAnswer:
    """All of what is answered to a question in JSON, within `patience` seconds and `largest` bytes; else NoAnswerError."""
    content = None if question is None else json.dumps(question).encode()
    body = bytearray()
    try:
        async with (
            asyncio.timeout(patience),  # of all of it: a server that drips bytes never lets a read time out
            client.stream(method, url, content=content) as response,
        ):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > largest:
                    raise NoAnswerError(f"its answer is longer than {largest >> 20} MB")
    except TimeoutError:
        raise NoAnswerError(f"no whole answer within {patience:g} s", passing=True) from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:  # from none: the library's ones know the request's headers
        passing = isinstance(error, httpx2.TransportError)
        raise NoAnswerError(f"{type(error).__name__}: {error}", passing=passing) from None
    return HttpAnswer(status=response.status_code, headers=response.headers, body=bytes(body))


def request_headers(secret: Secret) -> dict[str, str]:
    """Of JSON with the key, asking for an answer that is not compressed."""
    return {"Content-Type": "application/json", "Accept-Encoding": "identity", **secret.headers()}


def error_message(answer: bytes) -> str:
    """What an answer says went wrong. JSON is read first: in it a key may be spelled with escapes."""
    try:
        data = json.loads(answer)
        match data:
            case {"error": {"message": str(message)}} | {"error": str(message)}:
                return message
            case _:
                return json.dumps(data, ensure_ascii=False)
    except (ValueError, RecursionError):
        return answer.decode(errors="replace")


def one_line(text: str, longest: int = 200) -> str:
    """The text without line breaks and control characters, cut to `longest`."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:longest]).split())
