"""Teams that speak with a known voice, and a short way to let them play."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import toys

from marft.envs.hosting import InProcess
from marft.game.agent import Agent, TextEngine
from marft.game.play import play
from marft.game.workflows import Workflow
from marft.game.workflows.built_in import sequential
from marft.types import Completion, Ended, Episode, Message, Request, Sampling, Task, Turn

TASK = Task(id="t", prompt="What is 2 + 2?")
Script = Callable[[Request], str]


def says_its_name(request: Request) -> str:
    return f"<{request.adapter}>"


def by_luck(request: Request) -> str:
    """A text that only the seed, the adapter and the prompt decide, as with a real model."""
    digest = hashlib.sha256(f"{request.seed}/{request.adapter}/{request.prompt_ids}".encode()).hexdigest()
    return f"#{digest[:8]}#"


def in_turn(*texts: str) -> Script:
    """These texts, one a call, whoever speaks."""
    left = iter(texts)
    return lambda request: next(left)


class Voice:
    """Says what `script(request)` gives and remembers what it was asked. A prompt's tokens are its UTF-8 bytes."""

    def __init__(self, script: Script = says_its_name) -> None:
        self.script = script
        self.requests: list[Request] = []

    def encode(self, messages: Sequence[Message], *_: object) -> tuple[int, ...]:
        return tuple("\n".join(f"<{m.role}> {m.content}" for m in messages).encode())

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        text = self.script(request)
        return Completion(text=text, token_ids=(1, 2), logprobs=(-0.5, -0.1), finish="stop", version=7)

    def heard(self, adapter: str | None) -> list[str]:
        return [prompt(request) for request in self.requests if request.adapter == adapter]


def prompt(request: Request) -> str:
    return bytes(request.prompt_ids).decode()


def team(*names: str, voice: TextEngine | None = None, **sees: tuple[str, ...]) -> dict[str, Agent]:
    speaks = voice or Voice()
    return {
        name: Agent(
            name=name, prompt=f"You are {name.upper()}.", sees=sees.get(name), adapter=name,
            sampling=Sampling(max_tokens=99), engine=speaks,
        )
        for name in names
    }  # fmt: skip


def run(
    agents: dict[str, Agent],
    workflow: Workflow = sequential,
    *,
    env: Any = None,
    sample: int = 0,
    seed: str = "0",
    task: Task = TASK,
    ended: Ended = "terminated",
    replayed: Sequence[Turn] = (),
    base_at: int | None = None,
    trunk: int | None = None,
) -> Episode:
    """The episode, which must have ended as expected: an assertion inside a workflow is one of its failures."""
    episode = asyncio.run(
        play(
            task=task, sample=sample, team=agents, host=InProcess(env or toys.Echo()), workflow=workflow, seed=seed,
            replayed=replayed, base_at=base_at, trunk=trunk,
        )
    )  # fmt: skip
    assert episode.ended == ended, episode.error
    return episode


def views(episode: Episode) -> list[tuple[str, str]]:
    """Who acted, and all that it was shown beside its own prompt."""
    return [(turn.agent, turn.observation[-1].content if turn.observation else "") for turn in episode.turns]
