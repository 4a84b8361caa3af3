"""An OpenAI-compatible endpoint for every episode: one server on the loopback interface, a key each.

`model` names an agent; each call is a turn of it. A key is worth nothing before its episode begins and after it ends.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from marft.channels import LOOPBACK
from marft.game.endings import CutOff, GameOver
from marft.game.play import Game
from marft.game.validation import EnvironmentFault, require_finite
from marft.programs.answering import answer_chat
from marft.programs.http_server import HttpServer, bearer_key, end_requests, read_body
from marft.programs.protocol import Answer, BadRequest, ChatRequest, parse_json
from marft.types import MarftError, Reward

AT_ONCE = 64  # requests of one episode


@dataclass(slots=True, kw_only=True)
class Session:
    """One episode as a program sees it: where to ask, with which key. `broken` is what ended the game in a call."""

    game: Game
    base_url: str
    api_key: str
    broken: asyncio.Future[None]
    reward: Reward | None = None  # that the program has posted
    under_way: set[asyncio.Task[Any]] = field(default_factory=set)  # its requests
    calls: Iterator[object] = field(default_factory=itertools.count)

    @property
    def models(self) -> Iterable[str]:
        """The team."""
        return self.game.team

    @property
    def most(self) -> int:
        """Requests at once."""
        return AT_ONCE

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
            return await answer_chat(self.game, request)
        except CutOff as error:
            self._break(error)
            raise BadRequest("the episode has had all its turns", 429, "rate_limit_exceeded") from None
        except (GameOver, MarftError) as error:
            self._break(error)
            raise BadRequest(f"the episode is over: {error}", 409, "episode_over") from None

    def _break(self, error: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_exception(error)


class Endpoint:
    """The server. It listens while at least one episode is open, each time on a port of its own.

    A connection ends with its answer. An idle one of a client that a program drops without closing it is closed by the
    garbage collector, and once more by the client's own finalizer: by then its file descriptor may be a new connection's,
    which asyncio would never hear of again.
    """

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}  # by key
        self._bound: socket.socket | None = None
        self._server: HttpServer[Session] | None = None

    async def open(self, game: Game) -> Session:
        """A key for one episode."""
        if self._bound is None:
            self._bound = socket.create_server((LOOPBACK, 0))
            server = HttpServer(self._session, further={("POST", "/v1/reward"): self._take_reward}, keeps=False)
            await server.listen(self._bound)
            self._server = server
        session = Session(
            game=game,
            base_url=f"http://{LOOPBACK}:{self._bound.getsockname()[1]}/v1",
            api_key=secrets.token_urlsafe(24),
            broken=asyncio.get_running_loop().create_future(),
        )
        self.sessions[session.api_key] = session
        return session

    async def close(self, session: Session) -> None:
        """The key is worth nothing any more, and what it still asks is given up; the last one takes the server along."""
        self.sessions.pop(session.api_key, None)
        session.broken.cancel()
        await end_requests(session)
        if self.sessions or self._server is None:
            return
        server = self._server
        self._bound = self._server = None
        await server.close()

    def _session(self, request: web.BaseRequest) -> Session:
        session = self.sessions.get(bearer_key(request) or "")
        if session is None:
            raise BadRequest("the key is no open episode's", 401, "invalid_api_key")
        return session

    async def _take_reward(self, session: Session, request: web.BaseRequest) -> web.StreamResponse:
        try:
            session.reward = read_reward(parse_json(await read_body(request)).get("reward"))
        except EnvironmentFault as fault:
            raise BadRequest(fault.line) from None
        return web.json_response({"reward": session.reward.team})


def read_reward(given: object) -> Reward:
    """The team's reward as a program gives it; EnvironmentFault where it is no finite number, or too large."""
    return Reward(team=require_finite(given), correct=given if isinstance(given, bool) else None)
