"""One team plays one task: from a workflow's `game.act(...)` calls to an Episode.

Model output and the user's environment may fail: that is recorded on the episode. Our own bugs are not caught.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Protocol

from marft.game.observation import observe
from marft.game.workflows import Workflow
from marft.types import Completion, Episode, MarftError, Message, PromptTooLong, Request, Reward, Sampling, Task, Turn

MAX_TURNS = 256  # of one episode; a workflow that goes on past it is cut off


class Speaks(Protocol):
    """What play needs of an engine."""

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]: ...
    async def generate(self, request: Request) -> Completion: ...


class World(Protocol):
    """What play needs of an environment; `marft.Environment` has it."""

    def reset(self, task: Task) -> Any: ...
    def observe(self, state: Any) -> str: ...
    def transition(self, state: Any, turn: Turn) -> Any: ...
    def reward(self, state: Any) -> Reward: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A profile: an agent's prompt, whom it sees (None: every predecessor), its adapter and how it samples."""

    name: str
    prompt: str
    sees: tuple[str, ...] | None
    adapter: str | None
    sampling: Sampling


class HostileError(Exception):
    """The user's environment or a model's output failed; carries what to record."""


class CutOff(Exception):
    """The episode ran into the limit of turns; carries who would have acted."""


class Game:
    """The handle a workflow holds: who is on the team, what was said, and `act`."""

    def __init__(self, *, task: Task, team: Mapping[str, Agent], env: World, engine: Speaks, seed: str) -> None:
        self.task, self.team = task, team
        self.turns: list[Turn] = []
        self._acting = False
        self._env, self._engine, self._seed = env, engine, seed
        self._state = self._ask("reset", task)

    async def act(self, *names: str, sees: Sequence[str] | None = None) -> tuple[Turn, ...]:
        """The named agents act at once: none sees what the others say in this call. `sees` overrides their profiles.

        Their turns come back in the order of `names`; the episode records them in the team's order.
        """
        if self._acting:
            raise MarftError("the workflow calls game.act while another is under way; name both agents in one call")
        if len(self.turns) + len(names) > MAX_TURNS:
            raise CutOff(names[0])
        for name in (*names, *(sees or ())):
            if name not in self.team:
                raise MarftError(f"the workflow names {name!r} in game.act; the team has {', '.join(self.team)}")
        shown = self.shown()
        ordered = sorted(names, key=list(self.team).index) if len(names) > 1 else names
        start = len(self.turns)
        spoken = [*(turn.agent for turn in self.turns), *ordered]
        moves = [
            self._move(self.team[name], k, spoken[:k].count(name), shown, sees) for k, name in enumerate(ordered, start)
        ]
        self._acting = True
        try:
            made = (await moves[0],) if len(moves) == 1 else tuple(await asyncio.gather(*moves))
        finally:
            self._acting = False
        for turn in made:
            self._state = self._ask("transition", self._state, turn)
            self.turns.append(turn)
        return tuple(sorted(made, key=lambda turn: names.index(turn.agent)))

    def shown(self) -> str:
        """What the environment shows every agent at this moment."""
        shown = self._ask("observe", self._state)
        if not isinstance(shown, str):
            raise HostileError(f"environment.observe returned {type(shown).__name__}, not str")
        return shown

    def reward(self) -> Reward:
        """What the present state is worth; a reward that is no finite number is the environment's failure."""
        reward = self._ask("reward", self._state)
        if not isinstance(reward, Reward):
            raise HostileError(f"environment.reward returned {type(reward).__name__}, not a marft.Reward")
        for number in (reward.team, *reward.turns.values()):
            if not isinstance(number, Real) or not math.isfinite(number):
                raise HostileError(f"the environment's reward is {number}, not a finite number")
        correct = None if reward.correct is None else bool(reward.correct)
        turns = {k: float(number) for k, number in reward.turns.items()}
        return replace(reward, team=float(reward.team), turns=turns, correct=correct)

    async def _move(self, agent: Agent, index: int, nth: int, shown: str, sees: Sequence[str] | None) -> Turn:
        visible = agent.sees if sees is None else tuple(sees)
        turns = [t for t in self.turns if visible is None or t.agent in visible]
        observation = observe(prompt=agent.prompt, task=self.task, shown=shown, turns=turns)
        prompt_ids = self._engine.encode(observation)
        seed = seed_of(self._seed, index)
        request = Request(adapter=agent.adapter, prompt_ids=prompt_ids, sampling=agent.sampling, seed=seed)
        try:
            completion = await self._engine.generate(request)
        except PromptTooLong as error:
            raise HostileError(f"{agent.name}: {error}") from error
        return Turn(
            agent=agent.name, index=index, nth=nth, shown=shown, observation=observation, prompt_ids=prompt_ids,
            completion=completion,
        )  # fmt: skip

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._env, method)(*arguments)
        except Exception as error:  # the user's code: anything may come
            raise HostileError(f"environment.{method} raised {type(error).__name__}: {error}") from error


async def play(
    *, task: Task, sample: int, team: Mapping[str, Agent], env: World, engine: Speaks, workflow: Workflow, seed: str
) -> Episode:
    """The whole episode; failures of environment or model are data on it."""
    turns: list[Turn] = []
    try:
        game = Game(task=task, team=team, env=env, engine=engine, seed=f"{seed}/{task.id}/{sample}")
        turns = game.turns
        cut_before: str | None = None
        try:
            await workflow(game)
        except CutOff as cut:
            cut_before = str(cut)
        return Episode(
            task=task, sample=sample, turns=tuple(turns), reward=game.reward(),
            ended="terminated" if cut_before is None else "cut_off", cut_before=cut_before,
            cut_shown="" if cut_before is None else game.shown(),
        )  # fmt: skip
    except HostileError as error:
        return Episode(
            task=task, sample=sample, turns=tuple(turns), reward=Reward(team=0.0), ended="failed", error=str(error)
        )


def seed_of(*parts: object) -> int:
    """A 63-bit seed from anything printable; equal parts give equal seeds on every machine."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
