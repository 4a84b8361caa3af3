"""An OpenAI-compatible endpoint for every episode: one server on the loopback interface, a key each.

`model` names an agent; each call is a turn of it. A key is worth nothing before its episode begins and after it ends.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from marft.channels import LOOPBACK
from marft.game.endings import CutOff, GameOver
from marft.game.play import Game
from marft.game.tool_calls import Spoken, take_apart
from marft.game.validation import EnvironmentFault, require_finite
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
from marft.types import ChatRefused, MarftError, PromptTooLong, Reward

LARGEST = 8 << 20  # bytes of a request
AT_ONCE = 64  # requests of one episode
BACKLOG = 4096  # connections that wait until they are taken: all episodes of a play may begin at once
Handler = Callable[["Session", web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(slots=True, kw_only=True)
class Session:
    """One episode as a program sees it: where to ask, with which key. `broken` is what ended the game in a call."""

    game: Game
    base_url: str
    api_key: str
    broken: asyncio.Future[None]
    reward: Reward | None = None  # that the program has posted
    under_way: set[asyncio.Task[Any]] = field(default_factory=set)  # its requests
    calls: Iterator[int] = field(default_factory=itertools.count)

    async def ask(self, request: ChatRequest) -> list[Answer]:
        """All choices, each a turn."""
        if request.model not in self.game.team:
            team = ", ".join(self.game.team)
            raise BadRequest(f"no agent is called {request.model!r}; the team has {team}", 404, "model_not_found")
        if self.game.over is not None:
            raise BadRequest("the episode is over", 409, "episode_over")
        asked = (self._turn(request) for _ in range(request.choices))
        return list(await asyncio.gather(*asked))

    async def _turn(self, request: ChatRequest) -> Answer:
        try:
            turn = await self.game.chat(
                request.model, request.messages, tools=request.tools, max_tokens=request.max_tokens, stop=request.stop,
                aside=True,
            )  # fmt: skip
        except PromptTooLong as error:
            raise BadRequest(str(error), code="context_length_exceeded") from None
        except ChatRefused as error:
            raise BadRequest(str(error)) from None
        except CutOff as error:
            self._break(error)
            raise BadRequest("the episode has had all its turns", 429, "rate_limit_exceeded") from None
        except (GameOver, MarftError) as error:
            self._break(error)
            raise BadRequest(f"the episode is over: {error}", 409, "episode_over") from None
        written = self.game.team[request.model].call_format
        spoken = take_apart(turn.text, written if request.tools else None)
        return Answer(turn=turn, spoken=Spoken(content=turn.text) if spoken.malformed else spoken)

    def _break(self, error: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_exception(error)


class Endpoint:
    """The server. It listens while at least one episode is open, each time on a port of its own."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}  # by key
        self._listening: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._web: web.Server | None = None
        self._handlers: Mapping[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): self._complete,
            ("POST", "/v1/responses"): self._respond,
            ("GET", "/v1/models"): self._list_models,
            ("POST", "/v1/reward"): self._take_reward,
        }

    async def open(self, game: Game) -> Session:
        """A key for one episode."""
        if self._listening is None:
            self._listening = socket.create_server((LOOPBACK, 0))
            self._web = web.Server(self._handle, access_log=None)
            self._server = await asyncio.get_running_loop().create_server(
                self._web, sock=self._listening, backlog=BACKLOG
            )
        session = Session(
            game=game,
            base_url=f"http://{LOOPBACK}:{self._listening.getsockname()[1]}/v1",
            api_key=secrets.token_urlsafe(24),
            broken=asyncio.get_running_loop().create_future(),
        )
        self.sessions[session.api_key] = session
        return session

    async def close(self, session: Session) -> None:
        """The key is worth nothing any more, and what it still asks is given up; the last one takes the server along."""
        self.sessions.pop(session.api_key, None)
        session.broken.cancel()
        for request in session.under_way:
            request.cancel()
        await asyncio.gather(*session.under_way, return_exceptions=True)
        if self.sessions or self._server is None or self._web is None:
            return
        server, serving = self._server, self._web
        self._listening = self._server = self._web = None
        server.close()
        await serving.shutdown(timeout=0.1)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request. What a client does wrong it is told; the episode's own end reaches whoever plays it."""
        try:
            handler = self._handlers.get((request.method, request.path.rstrip("/")))
            if handler is None:
                raise BadRequest(f"{request.method} {request.path} is not offered", 404, "not_found")
            session = self._session(request)
            with counted(session):
                return await handler(session, request)
        except BadRequest as error:
            return web.json_response(error.body(), status=error.status)

    def _session(self, request: web.BaseRequest) -> Session:
        word, _, key = request.headers.get("Authorization", "").partition(" ")
        session = self.sessions.get(key.strip()) if word.lower() == "bearer" else None
        if session is None:
            raise BadRequest("the key is no open episode's", 401, "invalid_api_key")
        return session

    async def _complete(self, session: Session, request: web.BaseRequest) -> web.StreamResponse:
        asked = read_chat_request(parse_json(await read_body(request)))
        number = f"{next(session.calls)}"
        answers = await session.ask(asked)
        if not asked.stream:
            return web.json_response(completion_body(asked, answers, number))
        return await stream(request, data_lines(completion_chunks(asked, answers, number)))

    async def _respond(self, session: Session, request: web.BaseRequest) -> web.StreamResponse:
        asked = read_responses_request(parse_json(await read_body(request)))
        number = f"{next(session.calls)}"
        [answer] = await session.ask(asked)
        if not asked.stream:
            return web.json_response(response_body(asked, answer, number))
        return await stream(request, named_lines(response_events(asked, answer, number)))

    async def _list_models(self, session: Session, request: web.BaseRequest) -> web.StreamResponse:
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "marft"} for name in session.game.team]
        return web.json_response({"object": "list", "data": models})

    async def _take_reward(self, session: Session, request: web.BaseRequest) -> web.StreamResponse:
        try:
            session.reward = read_reward(parse_json(await read_body(request)).get("reward"))
        except EnvironmentFault as fault:
            raise BadRequest(fault.line) from None
        return web.json_response({"reward": session.reward.team})


@contextmanager
def counted(session: Session) -> Iterator[None]:
    """One request of an episode that has at most so many under way."""
    if len(session.under_way) >= AT_ONCE:
        raise BadRequest(f"an episode has at most {AT_ONCE} requests at once", 429, "rate_limit_exceeded")
    task = asyncio.current_task()
    assert task is not None
    session.under_way.add(task)
    try:
        yield
    finally:
        session.under_way.discard(task)


async def read_body(request: web.BaseRequest) -> bytes:
    """All of a request that is not too large."""
    found = bytearray()
    while piece := await request.content.readany():
        found += piece
        if len(found) > LARGEST:
            raise BadRequest(f"a request has at most {LARGEST >> 20} MiB", 413, "request_too_large")
    return bytes(found)


def read_reward(given: object) -> Reward:
    """The team's reward as a program gives it; EnvironmentFault where it is no finite number, or too large."""
    return Reward(team=require_finite(given), correct=given if isinstance(given, bool) else None)


def data_lines(chunks: Iterator[dict[str, Any]]) -> Iterator[str]:
    """Server-sent events as chat completions have them: no names, and a mark at the end."""
    yield from (f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    yield "data: [DONE]\n\n"


def named_lines(events: Iterator[dict[str, Any]]) -> Iterator[str]:
    """Server-sent events as responses have them: each by its name."""
    return (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


async def stream(request: web.BaseRequest, lines: Iterator[str]) -> web.StreamResponse:
    """An answer as server-sent events. Whoever hangs up meanwhile has had the turn all the same."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    try:
        await response.prepare(request)
        for line in lines:
            await response.write(line.encode())
        await response.write_eof()
    except ConnectionResetError:
        pass
    return response
