"""A team behind OpenAI's protocol: each agent is a model, and so is the team as a whole.

Nothing is kept between requests: whoever goes on with a conversation sends all of it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from marft.game.agent import Agent
from marft.game.endings import GameOver
from marft.game.guarded_env import EnvironmentHost, GuardedEnv
from marft.game.play import Game, play
from marft.game.tool_calls import Spoken
from marft.game.tools import NO_TOOLS
from marft.game.workflows import Workflow
from marft.programs.answering import answer_chat
from marft.programs.http_server import HttpServer, bearer_key
from marft.programs.protocol import Answer, BadRequest, ChatRequest
from marft.types import Episode, MarftError, Task

AT_ONCE = 1024  # requests under way
DEADLINE_S = 600.0  # of a request: as long as OpenAI's client waits
SEEDS = 1 << 31  # to draw one from, where a client gives none


def random_names() -> Iterator[str]:
    """Names for requests, which nobody else's log has."""
    while True:
        yield secrets.token_hex(12)


@dataclass(slots=True, kw_only=True)
class ServedTeam:
    """Agents with their sampling, and what they play: a request's `seed` is the sample of an episode of `task`, whose
    prompt is the question."""

    name: str  # the whole team's
    agents: Mapping[str, Agent]
    host: EnvironmentHost
    workflow: Workflow
    task: Task
    seed: str
    plays: bool = True  # whether the team as a whole may be asked
    under_way: set[asyncio.Task[Any]] = field(default_factory=set)
    calls: Iterator[object] = field(default_factory=random_names)

    @property
    def models(self) -> Iterable[str]:
        """The team, where it plays, and everybody on it."""
        return (self.name, *self.agents) if self.plays else tuple(self.agents)

    @property
    def most(self) -> int:
        """Requests at once."""
        return AT_ONCE

    async def ask(self, request: ChatRequest) -> list[Answer]:
        """All choices: turns of an agent, or episodes of the team."""
        seed = secrets.randbelow(SEEDS) if request.seed is None else request.seed
        if request.model == self.name and self.plays:
            answers = [self._play(request, seed + choice) for choice in range(request.choices)]
        elif request.model in self.agents:
            game = self._game(request, seed)
            answers = [self._chat(game, request) for _ in range(request.choices)]
        else:
            raise BadRequest(self._missing(request.model), 404, "model_not_found")
        tasks = [asyncio.ensure_future(answer) for answer in answers]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # where one fails, the others need not go on
                task.cancel()

    def _missing(self, model: str) -> str:
        """Why nobody answers to that name."""
        models = ", ".join(self.models)
        if model == self.name:
            return f"{model} as a whole plays its environment's own tasks and takes no questions; ask one of {models}"
        return f"there is no model {model!r}; there are {models}"

    def _game(self, request: ChatRequest, seed: int) -> Game:
        """In which an agent is asked: nothing was said before, and the environment hears nothing."""
        agent = without_tools(with_sampling(self.agents[request.model], request))
        return Game(
            task=self.task, team={**self.agents, agent.name: agent}, env=GuardedEnv(self.host),
            seed=f"{self.seed}/{self.task.id}/{seed}",
        )  # fmt: skip

    async def _chat(self, game: Game, request: ChatRequest) -> Answer:
        try:
            return await answer_chat(game, request)
        except (GameOver, MarftError) as error:
            raise BadRequest(f"{request.model} cannot speak: {error}", 502, "agent_failed") from None
        finally:
            game.close()

    async def _play(self, request: ChatRequest, sample: int) -> Answer:
        """An episode of the whole team, as evaluation plays it."""
        if request.tools:
            raise BadRequest("the team has tools of its own; ask one of its agents with yours, or drop them")
        limited = {
            name: replace(agent, sampling=with_sampling(agent, request).limited(request.max_tokens, request.stop))
            for name, agent in self.agents.items()
        }
        try:
            episode = await play(
                task=replace(self.task, prompt=last_question(request)), sample=sample, team=limited, host=self.host,
                workflow=self.workflow, seed=self.seed,
            )  # fmt: skip
        except MarftError as error:
            raise BadRequest(f"the team cannot play: {error}", 502, "team_failed") from None
        return final_answer(episode)


def make_server(team: ServedTeam, token: str | None) -> HttpServer[ServedTeam]:
    """A server of one team, for whoever knows the token."""

    def identify(request: web.BaseRequest) -> ServedTeam:
        if token is None:
            refuse_web_pages(request)
        elif not secrets.compare_digest((bearer_key(request) or "").encode("utf-8", "replace"), token.encode()):
            raise BadRequest("the token is wrong", 401, "invalid_api_key")
        return team

    return HttpServer(identify, deadline=DEADLINE_S, cancels=True)


def refuse_web_pages(request: web.BaseRequest) -> None:
    """Raise a BadRequest for what a stranger's page may have a browser send: its own name may lead here, and what a form
    could say is sent without asking us first."""
    origin = request.headers.get("Origin")
    if not is_local(f"//{request.host}"):
        raise BadRequest(f"the host {request.host!r} is not this machine's", 403, "forbidden_host")
    if origin is not None and not is_local(origin):
        raise BadRequest(f"the origin {origin!r} is not this machine's", 403, "forbidden_origin")
    if request.method == "POST" and request.content_type != "application/json":
        raise BadRequest("the request is not JSON: send Content-Type: application/json", 415, "unsupported_media_type")


def is_local(address: str) -> bool:
    """Whether the host of a URL is this machine's loopback interface."""
    try:
        name = urlsplit(address).hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def with_sampling(agent: Agent, request: ChatRequest) -> Agent:
    """The agent with the temperature and top_p that a request asks for, its own where it does not."""
    given = {"temperature": request.temperature, "top_p": request.top_p}
    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return replace(agent, sampling=replace(agent.sampling, **changed))


def without_tools(agent: Agent) -> Agent:
    """The agent without its own tools, which nobody would call here, and without the stop strings that end their calls."""
    stop = tuple(text for text in agent.sampling.stop if text not in agent.tools.stops)
    return replace(agent, tools=NO_TOOLS, sampling=replace(agent.sampling, stop=stop))


def last_question(request: ChatRequest) -> str:
    """What the user said last: the team's agents have prompts of their own."""
    found = next((message.content for message in reversed(request.messages) if message.role == "user"), "")
    if not found.strip():
        raise BadRequest("the team answers the last message of the user, and there is none")
    return found


def final_answer(episode: Episode) -> Answer:
    """What the team said last to the world, and all that it said before."""
    if episode.ended == "overflow":
        raise BadRequest(str(episode.error), code="context_length_exceeded")
    if episode.ended == "failed":
        raise BadRequest(f"the team cannot play: {episode.error}", 502, "team_failed")
    said = [turn for turn in episode.turns if turn.to is None]  # the others call tools, and answer calls
    heard = [turn for turn in said if not turn.aside] or said
    if not heard:
        raise BadRequest("the team said nothing", 502, "team_failed")
    final = heard[-1]
    before = tuple(turn for turn in episode.turns if turn is not final)
    return Answer(turn=final, spoken=Spoken(content=final.text), before=before)
