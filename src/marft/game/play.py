"""One team plays one task: from a workflow's `game.act(...)` calls to an Episode.

Model output and the user's environment and workflow may fail: that is recorded on the episode. Our own bugs are not
caught.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from marft.game.endings import CutOff, GameOver, HostileError
from marft.game.observation import observe
from marft.game.workflows import Workflow
from marft.game.world import Guarded, World
from marft.types import (
    MAX_TURNS,
    Completion,
    Episode,
    MarftError,
    Message,
    Request,
    Reward,
    Sampling,
    SpeechError,
    Task,
    Turn,
)


class Speaks(Protocol):
    """What play needs of an engine."""

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]: ...
    async def generate(self, request: Request) -> Completion: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A profile: what an agent is told, whom it sees (None: every predecessor), and what it speaks with."""

    name: str
    prompt: str | None  # None: anonymous; it is told no role, and others' messages come without their names
    sees: tuple[str, ...] | None
    adapter: str | None
    sampling: Sampling
    voice: Speaks


class Game:
    """The handle a workflow holds: who is on the team, what was said, and what can happen next."""

    def __init__(
        self, *, task: Task, team: Mapping[str, Agent], world: Guarded, seed: str, replayed: Sequence[Turn] = (),
        base_at: int | None = None,
    ) -> None:  # fmt: skip
        self.task, self.team = task, team
        self.turns: list[Turn] = []
        self.counts: Counter[str] = Counter()
        self.over: BaseException | None = None  # what ended the game, should the workflow have swallowed it
        self._acting = False
        self._world, self._seed, self._replayed, self._base_at = world, seed, replayed, base_at

    async def act(
        self, *names: str, sees: Sequence[str] | None = None, note: str = "", aside: bool = False
    ) -> tuple[Turn, ...]:
        """The named agents act at once: none sees what the others say in this call. A name may come several times.

        `sees` overrides their profiles; `note` is what the workflow tells them beside what the environment shows; what
        is said `aside` the environment does not hear. Their turns come back in the order of `names`; the episode
        records them in the team's order.
        """
        with self._ending():
            if self._acting:
                raise MarftError("the workflow calls game.act while another is under way; name both agents in one call")
            self._check_names(names, sees or ())
            ranks = list(self.team)
            order = sorted(range(len(names)), key=lambda i: ranks.index(names[i]))
            shown = "\n\n".join(part for part in (self._world.shown(), note) if part)
            start = len(self.turns)
            if start + len(names) > MAX_TURNS:
                raise CutOff(names[order[0]], shown)
            spoken = [*(turn.agent for turn in self.turns), *(names[i] for i in order)]
            moves = [
                self._move(
                    self.team[name], index=k, nth=spoken[:k].count(name), shown=shown, sees=sees, aside=aside
                )
                for k, name in enumerate(spoken[start:], start)
            ]  # fmt: skip
            self._acting = True
            try:
                made = [await moves[0]] if len(moves) == 1 else await asyncio.gather(*moves)
            finally:
                self._acting = False
            for turn in made:
                self._record(turn)
            return tuple(turn for _, turn in sorted(zip(order, made, strict=True), key=lambda pair: pair[0]))

    def say(self, name: str, text: str) -> Turn:
        """Records what no model said: a vote's result, a tool's output. The environment hears it."""
        with self._ending():
            if self._acting:
                raise MarftError("the workflow calls game.say while game.act is under way; await it first")
            if name in self.team:
                raise MarftError(f"the workflow lets {name!r} say something; only game.act speaks for the team")
            if not isinstance(text, str):
                raise MarftError(f"the workflow gives game.say {type(text).__name__}, not str")
            index, shown = len(self.turns), self._world.shown()
            if index >= MAX_TURNS:
                raise CutOff(name, shown)
            if index < len(self._replayed):
                check_repeats(self._replayed[index], name)
            turn = Turn(
                agent=name, index=index, nth=sum(t.agent == name for t in self.turns), shown=shown, observation=(),
                prompt_ids=(),
                completion=Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0),
            )  # fmt: skip
            self._record(turn)
            return turn

    def shown(self) -> str:
        """What the environment shows every agent at this moment."""
        with self._ending():
            return self._world.shown()

    def reward(self) -> Reward:
        """What the present state is worth."""
        with self._ending():
            return self._world.reward()

    def done(self) -> bool:
        """Whether the task is over at this moment: another round would not help."""
        return self.reward().done

    def answer(self, turn: Turn) -> Hashable | None:
        """What `turn` answers, for counting votes; None where it answers nothing."""
        with self._ending():
            return self._world.answer(turn.text)

    def count(self, what: str) -> None:
        """One more `what` on the episode's counts."""
        self.counts[what] += 1

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """What escapes from the game's own methods ends it, whatever the workflow makes of it."""
        if self.over is not None:
            raise GameOver(str(self.over)) from self.over
        try:
            yield
        except asyncio.CancelledError:  # a workflow may set its agents a time limit
            raise
        except BaseException as error:
            self.over = error
            raise

    def _check_names(self, names: Sequence[str], sees: Sequence[str]) -> None:
        team = list(self.team)
        heard = [turn.agent for turn in self.turns]  # also those that game.say spoke for
        unknown = [name for name in names if name not in team] + [name for name in sees if name not in team + heard]
        if unknown:
            raise MarftError(f"the workflow names {unknown[0]!r} in game.act; the team has {', '.join(team)}")

    async def _move(
        self, agent: Agent, *, index: int, nth: int, shown: str, sees: Sequence[str] | None, aside: bool
    ) -> Turn:
        if index < len(self._replayed):
            return check_repeats(self._replayed[index], agent.name)
        visible = agent.sees if sees is None else sees
        turns = [t for t in self.turns if visible is None or t.agent in visible]
        observation = observe(prompt=agent.prompt, task=self.task, shown=shown, turns=turns)
        adapter = None if index == self._base_at else agent.adapter
        try:
            prompt_ids = agent.voice.encode(observation)
            completion = await agent.voice.generate(
                Request(
                    adapter=adapter, messages=observation, prompt_ids=prompt_ids, sampling=agent.sampling,
                    seed=seed_of(self._seed, index),
                )
            )  # fmt: skip
        except SpeechError as error:
            raise HostileError(f"{agent.name}: {error}") from error
        return Turn(
            agent=agent.name, index=index, nth=nth, shown=shown, observation=observation, prompt_ids=prompt_ids,
            completion=completion, aside=aside,
        )  # fmt: skip

    def _record(self, turn: Turn) -> None:
        if not turn.aside:
            self._world.hear(turn)
        self.turns.append(turn)


async def play(
    *, task: Task, sample: int, team: Mapping[str, Agent], env: World, workflow: Workflow, seed: str,
    replayed: Sequence[Turn] = (), base_at: int | None = None, trunk: int | None = None,
) -> Episode:  # fmt: skip
    """The whole episode; failures of environment, workflow or model are data on it.

    Turns in `replayed` are played again as they were, and the episode goes on from there: a fork of sample `trunk`.
    Turn `base_at` is spoken by the untrained base in place of the agent's adapter.
    """
    world = Guarded(env)
    game = Game(
        task=task, team=team, world=world, seed=f"{seed}/{task.id}/{sample}", replayed=replayed, base_at=base_at
    )
    reward, error, cut = Reward(team=0.0), None, None
    try:
        world.reset(task)
        cut = await carry_out(workflow, game)
        reward = world.reward()
    except HostileError as failure:
        error, cut = str(failure), None
    if error is None and len(game.turns) < len(replayed):
        check_repeats(replayed[len(game.turns)], "nobody")
    return Episode(
        task=task, sample=sample, turns=tuple(game.turns), reward=reward,
        ended="failed" if error is not None else "cut_off" if cut else "terminated", error=error,
        cut_before=cut.before if cut else None, cut_shown=cut.shown if cut else "", counts=dict(game.counts),
        trunk=trunk, forked_at=len(replayed),
    )  # fmt: skip


async def carry_out(workflow: Workflow, game: Game) -> CutOff | None:
    """The workflow until it is done or the game is over; gives the cut where the limit of turns ended it."""
    try:
        await workflow(game)
    except MarftError:
        raise
    except (Exception, GameOver, BaseExceptionGroup) as error:  # the user's code: anything may come
        if game.over is None:
            raise HostileError(f"the workflow raised {type(error).__name__}: {error}") from error
    if game.over is None or isinstance(game.over, CutOff):
        return game.over
    raise game.over


def check_repeats(recorded: Turn, now: str) -> Turn:
    """The recorded turn, which must be `now`'s again."""
    if recorded.agent != now:
        raise MarftError(
            f"the workflow did not repeat itself: turn {recorded.index} was {recorded.agent}'s and is now {now}'s; "
            "it must depend on game.turns and game.task alone"
        )
    return recorded


def seed_of(*parts: object) -> int:
    """A 63-bit seed from anything printable; equal parts give equal seeds on every machine."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
