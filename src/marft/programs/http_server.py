"""OpenAI's protocol over HTTP: who asks, what is read, and how answers and mistakes are sent."""

from __future__ import annotations

import asyncio
import json
import socket
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import web

from marft.programs.protocol import (
    Answer,
    BadRequest,
    ChatRequest,
    completion_body,
    completion_chunks,
    parse_json,
    read_chat_request,
)
from marft.programs.responses import read_responses_request, response_body, response_events
from marft.terminal import complain

LARGEST = 8 << 20  # bytes of a request
BACKLOG = 4096  # connections that wait until they are taken: all episodes of a play may begin at once
WRITE_S = 60.0  # that a client has to take a stream
IDLE_S = 75.0  # that a connection may stay open without a request, or with half of its head


class Caller(Protocol):
    """Whom requests with one key belong to: the models it may ask, and what it has asked."""

    under_way: set[asyncio.Task[Any]]  # its requests
    calls: Iterator[object]  # a name for each

    @property
    def models(self) -> Iterable[str]:
        """What may be asked."""

    @property
    def most(self) -> int:
        """How many requests may be under way."""

    async def ask(self, request: ChatRequest) -> list[Answer]:
        """All choices; BadRequest where there are none."""


C = TypeVar("C", bound=Caller)
Handler = Callable[[C, web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpServer(Generic[C]):
    """Serves whom `identify` finds for a request.

    `further` are handlers by method and path, beside those of the protocol. A whole answer takes at most `deadline`
    seconds. `cancels`: a client that hangs up takes its request back. `keeps` connections open between requests.
    """

    def __init__(
        self, identify: Callable[[web.BaseRequest], C], *,
        further: Mapping[tuple[str, str], Handler[C]] = MappingProxyType({}),
        deadline: float | None = None, cancels: bool = False, keeps: bool = True,
    ) -> None:  # fmt: skip
        self.identify, self.deadline, self.cancels, self.keeps = identify, deadline, cancels, keeps
        self._server: asyncio.Server | None = None
        self._web: web.Server | None = None
        self._handlers: Mapping[tuple[str, str], Handler[C]] = {
            ("POST", "/v1/chat/completions"): self._complete,
            ("POST", "/v1/responses"): self._respond,
            ("GET", "/v1/models"): self._list_models,
            **further,
        }

    async def listen(self, bound: socket.socket) -> None:
        """Take connections, until `close`."""
        self._web = web.Server(
            self._handle, access_log=None, handler_cancellation=self.cancels, keepalive_timeout=IDLE_S
        )
        self._server = await asyncio.get_running_loop().create_server(self._web, sock=bound, backlog=BACKLOG)

    async def close(self) -> None:
        """Take no more, and close those that there are."""
        assert self._server is not None
        assert self._web is not None
        self._server.close()
        await self._web.shutdown(timeout=0.1)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request. What a client does wrong it is told."""
        try:
            response = await self._answer(request)
        except BadRequest as error:
            response = web.json_response(error.body(), status=error.status)
        except Exception:  # our own bug: loud here, and the others' requests go on
            complain(traceback.format_exc())
            failed = BadRequest("the server failed; its terminal says how", 500, "internal_error")
            response = web.json_response(failed.body(), status=failed.status)
        if not self.keeps:
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        handler = self._handlers.get((request.method, request.path.rstrip("/")))
        if handler is None:
            raise BadRequest(f"{request.method} {request.path} is not offered", 404, "not_found")
        caller = self.identify(request)
        with counted(caller):
            return await handler(caller, request)

    async def _ask(
        self, caller: C, request: web.BaseRequest, read: Callable[[Mapping[str, Any]], ChatRequest]
    ) -> tuple[ChatRequest, list[Answer]]:
        """What is asked, and its answers, within the deadline."""
        limit = asyncio.timeout(self.deadline)
        try:
            async with limit:
                asked = read(parse_json(await read_body(request)))
                return asked, await caller.ask(asked)
        except TimeoutError:
            if not limit.expired():
                raise
            raise BadRequest(f"no answer within {self.deadline:g} s", 504, "timeout") from None

    async def _complete(self, caller: C, request: web.BaseRequest) -> web.StreamResponse:
        asked, answers = await self._ask(caller, request, read_chat_request)
        name = f"{next(caller.calls)}"
        if not asked.stream:
            return web.json_response(completion_body(asked, answers, name))
        return await self._stream(request, data_lines(completion_chunks(asked, answers, name)))

    async def _respond(self, caller: C, request: web.BaseRequest) -> web.StreamResponse:
        asked, [answer] = await self._ask(caller, request, read_responses_request)
        name = f"{next(caller.calls)}"
        if not asked.stream:
            return web.json_response(response_body(asked, answer, name))
        return await self._stream(request, named_lines(response_events(asked, answer, name)))

    async def _list_models(self, caller: C, request: web.BaseRequest) -> web.StreamResponse:
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "marft"} for name in caller.models]
        return web.json_response({"object": "list", "data": models})

    async def _stream(self, request: web.BaseRequest, lines: Iterator[str]) -> web.StreamResponse:
        """An answer as server-sent events. Whoever hangs up meanwhile has had it all the same."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        if not self.keeps:
            response.force_close()
        try:
            async with asyncio.timeout(WRITE_S):
                await response.prepare(request)
                for line in lines:
                    await response.write(line.encode())
                await response.write_eof()
        except ConnectionResetError:
            pass
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response


def bearer_key(request: web.BaseRequest) -> str | None:
    """The key that a request brings along."""
    word, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if word.lower() == "bearer" else None


@contextmanager
def counted(caller: Caller) -> Iterator[None]:
    """One request of somebody who has at most so many under way."""
    if len(caller.under_way) >= caller.most:
        raise BadRequest(f"at most {caller.most} requests may be under way at once", 429, "rate_limit_exceeded")
    task = asyncio.current_task()
    assert task is not None
    caller.under_way.add(task)
    try:
        yield
    finally:
        caller.under_way.discard(task)


async def end_requests(caller: Caller) -> None:
    """Give up what is still asked."""
    for request in caller.under_way:
        request.cancel()
    await asyncio.gather(*caller.under_way, return_exceptions=True)


async def read_body(request: web.BaseRequest) -> bytes:
    """All of a request that is not too large."""
    found = bytearray()
    try:
        while piece := await request.content.readany():
            found += piece
            if len(found) > LARGEST:
                raise BadRequest(f"a request has at most {LARGEST >> 20} MiB", 413, "request_too_large")
    except (web.RequestPayloadError, ConnectionError) as error:
        raise BadRequest(f"the request cannot be read: {error}") from None
    return bytes(found)


def data_lines(chunks: Iterator[dict[str, Any]]) -> Iterator[str]:
    """Server-sent events as chat completions have them: no names, and a mark at the end."""
    yield from (f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    yield "data: [DONE]\n\n"


def named_lines(events: Iterator[dict[str, Any]]) -> Iterator[str]:
    """Server-sent events as responses have them: each by its name."""
    return (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
