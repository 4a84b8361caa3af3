"""A team behind one OpenAI-compatible endpoint, for as long as somebody wants it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from marft.commands.listening import TOKEN, base_url
from marft.commands.play import YOURS
from marft.config import Config
from marft.evaluation.benchmarks import evaluation_runner
from marft.rollouts.event_loop import run_async
from marft.training.build import Assembly
from marft.types import Task

if TYPE_CHECKING:
    from marft.programs.served_team import ServedTeam

LONGEST_EXAMPLE = 200  # characters of a question


def team_name(source: str | None, config: Config) -> str:
    """The model name of the whole team: that of its run, recipe or file, unless an agent has it."""
    name = Path(source or "duo").resolve().name.removesuffix(".yaml").removesuffix(".yml")
    return f"{name}-team" if name in config.team.agents else name


@contextmanager
def served_team(config: Config, parts: Assembly, name: str) -> Iterator[ServedTeam]:
    """The team as evaluation plays it: sample `seed` of a question is that of `marft play --prompt`."""
    from marft.programs.served_team import ServedTeam

    with evaluation_runner(config, parts, config.env.name, None) as runner:
        first = runner.host.tasks("test")[0]
        yield ServedTeam(
            name=name, agents=runner.team, host=runner.host, workflow=runner.workflow,
            task=Task(id=YOURS, prompt=first.prompt, data=first.data), seed=f"{config.seed}/eval",
            plays=runner.host.env.takes_prompts,
        )  # fmt: skip


def serve(
    config: Config, parts: Assembly, bound: socket.socket, *, name: str, token: str | None, ready: Callable[[str], None]
) -> None:
    """Until an interrupt. `ready` is told, line by line, once it listens."""
    with served_team(config, parts, name) as team, suppress(KeyboardInterrupt):
        run_async(listen(team, bound, token, ready))


async def listen(team: ServedTeam, bound: socket.socket, token: str | None, ready: Callable[[str], None]) -> None:
    """Until it is cancelled."""
    from marft.programs.http_server import end_requests
    from marft.programs.served_team import make_server

    server = make_server(team, token)
    await server.listen(bound)
    for line in describe_server(team, bound, token):
        ready(line)
    try:
        await asyncio.Event().wait()
    finally:
        await end_requests(team)
        await server.close()


# --- for people ------------------------------------------------------------------------------------------------------
def describe_server(team: ServedTeam, bound: socket.socket, token: str | None) -> Iterator[str]:
    """Where it is, what may be asked, and how."""
    url, [example, *_] = base_url(bound), team.models
    whole = f"{team.name} (the whole team), " if team.plays else ""
    yield f"serving at {url}: {whole}{', '.join(team.agents)}"
    yield curl_command(url, example, team.task.prompt[:LONGEST_EXAMPLE], token, os.environ)
    yield "Ctrl-C ends it"


def curl_command(url: str, model: str, question: str, token: str | None, environment: Mapping[str, str]) -> str:
    """One that works as it stands, where the token is in the environment."""
    body = {"model": model, "messages": [{"role": "user", "content": question}]}
    words = ["curl", f"{url}/chat/completions", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    line = shlex.join(words)
    if token is None:
        return line
    key = f"${TOKEN}" if environment.get(TOKEN) == token else "TOKEN"
    return f'{line} -H "Authorization: Bearer {key}"'
