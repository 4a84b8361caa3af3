"""One team plays one task: from a workflow's `game.act(...)` calls to an Episode.

Model output and the user's environment and workflow may fail: that is recorded on the episode. Our own bugs are not
caught.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from marft.game.endings import (
    ContextOverflow,
    CutOff,
    EndsGameOnError,
    EpisodeFailed,
    GameOver,
    await_or_abandon,
    is_cancelled,
    require_workflow_text,
)
from marft.game.guarded_env import EnvironmentHost, GuardedEnv
from marft.game.observation import History, View
from marft.game.thoughts import ThoughtMarkers
from marft.game.tools import NO_TOOLS, ToolCall, Tools, with_recipient
from marft.game.workflows import Workflow
from marft.types import (
    MAX_TURNS,
    PLAIN_CHAT,
    BadTask,
    ChatOptions,
    Completion,
    Ended,
    Episode,
    MarftError,
    Message,
    PromptTooLong,
    Request,
    Reward,
    Sampling,
    SpeechError,
    Stopped,
    Task,
    Turn,
)
from marft.untrusted_values import described, escaped, exact, kind_of, quoted, traced


class TextEngine(Protocol):
    """The part of `marft.engines.base.Engine` that an agent needs."""

    def encode(
        self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT, earlier: Sequence[Turn] = ()
    ) -> tuple[int, ...]:
        """The token ids of a chat prompt, which begin with those of an `earlier` turn where its messages do."""

    async def generate(self, request: Request) -> Completion:
        """One completion; SpeechError where there is none, PromptTooLong where the model cannot read so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A profile: what an agent is told, whom it sees (None: every predecessor), and what it speaks with."""

    name: str
    prompt: str | None  # None: anonymous; it is told no role, and others' messages come without their names
    sees: tuple[str, ...] | None
    adapter: str | None
    sampling: Sampling
    engine: TextEngine
    tools: Tools = NO_TOOLS
    history: History = "flat"
    chat: ChatOptions = PLAIN_CHAT
    thoughts: ThoughtMarkers = ThoughtMarkers()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActOptions:
    """How agents act in one call: whom they see in place of their profiles, what they are told, who hears them."""

    sees: Sequence[str] | None
    note: str
    aside: bool


class Game:
    """The handle a workflow holds: who is on the team, what was said, and what can happen next."""

    def __init__(
        self, *, task: Task, team: Mapping[str, Agent], env: GuardedEnv, seed: str, replayed: Sequence[Turn] = (),
        base_at: int | None = None,
    ) -> None:  # fmt: skip
        self.task, self.team = task, team
        self.turns: list[Turn] = []
        self.counts: Counter[str] = Counter()
        self.over: BaseException | None = None  # what ended the game, should the workflow have swallowed it
        self.refused = 0  # calls since then
        self._ending = EndsGameOnError(self)
        self._acting = False
        self._env, self._seed, self._replayed, self._base_at = env, seed, replayed, base_at

    async def act(
        self, *names: str, sees: Sequence[str] | None = None, note: str = "", aside: bool = False
    ) -> tuple[Turn, ...]:
        """The named agents act at once: none sees what the others say in this call. A name may come several times.

        `sees` overrides their profiles; `note` is what the workflow tells them beside what the environment shows; what
        is said `aside` the environment does not hear. Their turns come back in the order of `names`; the episode
        records them in the team's order. Who calls a tool is told its answer and speaks again.
        """
        async with self._ending:
            if self._acting:
                raise MarftError("the workflow calls game.act while another is under way; name both agents in one call")
            names, sees = self._checked_names(names, sees)
            options = ActOptions(sees=sees, note=require_workflow_text("game.act a note", note), aside=aside)
            self._acting = True
            try:
                return await self._act(names, options)
            finally:
                self._acting = False

    async def _act(self, names: Sequence[str], options: ActOptions) -> tuple[Turn, ...]:
        ranks = list(self.team)
        acting = sorted(range(len(names)), key=lambda i: ranks.index(names[i]))
        made: dict[int, Turn] = {}
        calls: Counter[int] = Counter()
        while acting:
            spoken = await self._speak([names[i] for i in acting], options)
            using: dict[int, ToolCall] = {}
            for i, turn in zip(acting, spoken, strict=True):
                tools = self.team[names[i]].tools
                call = tools.find_call(turn.completion) if calls[i] < tools.most else None
                if call is not None:
                    using[i] = call
                made[i] = with_recipient(turn, call)
                await self._record(made[i])
            await self._use([(names[i], call) for i, call in using.items()])
            acting = list(using)
            calls.update(acting)
        return tuple(made[i] for i in range(len(names)))

    async def _speak(self, names: Sequence[str], options: ActOptions) -> list[Turn]:
        """One message of each."""
        start = len(self.turns)
        shown = [await self._shown_to(name, options.note) for name in names]
        self._check_room(len(names), before=names[0], shown=shown[0])
        spoken = [*(turn.agent for turn in self.turns), *names]
        moves = [
            self._move(self.team[name], index=k, nth=spoken[:k].count(name), shown=shown[k - start], options=options)
            for k, name in enumerate(names, start)
        ]
        return [await moves[0]] if len(moves) == 1 else list(await asyncio.gather(*moves))

    async def _use(self, calls: Sequence[tuple[str, ToolCall]]) -> None:
        """The tools' answers, each to the agent who called."""
        start = len(self.turns)
        known = self._replayed[start : start + len(calls)]
        fresh = calls[len(known) :]
        answers = [turn.text for turn in known]
        answers += await asyncio.gather(*(self.team[name].tools.use(call) for name, call in fresh))
        for (name, call), text in zip(calls, answers, strict=True):
            self._check_room(1, before=name, shown="")
            await self._record(self._unspoken(call.tool, text, shown="", to=name))

    async def say(self, name: str, text: str) -> Turn:
        """Records what no model said: a vote's result, a referee's ruling. The environment hears it."""
        async with self._ending:
            if self._acting:
                raise MarftError("the workflow calls game.say while game.act is under way; await it first")
            name, text = require_workflow_text("game.say a name", name), require_workflow_text("game.say", text)
            if name in self.team:
                raise MarftError(f"the workflow lets {name!r} say something; only game.act speaks for the team")
            shown = await self._env.shown(name)
            self._check_room(1, before=name, shown=shown)
            turn = self._unspoken(name, text, shown=shown)
            await self._record(turn)
            return turn

    async def shown(self, agent: str) -> str:
        """What the environment shows `agent` at this moment."""
        async with self._ending:
            return await self._env.shown(agent)

    async def whose_turn(self) -> str | None:
        """Who acts next, in environments that decide it; None: nobody."""
        async with self._ending:
            name = await self._env.whose_turn()
            if name is not None and name not in self.team:
                team = ", ".join(self.team)
                raise EpisodeFailed(f"environment.whose_turn names {quoted(name)}; the team has {team}", "raised")
            return name

    async def reward(self) -> Reward:
        """What the present state is worth."""
        async with self._ending:
            return await self._env.reward()

    async def done(self) -> bool:
        """Whether the task is over at this moment: another round would not help."""
        return (await self.reward()).done

    async def answer(self, turn: Turn) -> Hashable | None:
        """What `turn` answers, for counting votes; None where it answers nothing."""
        async with self._ending:
            return await self._env.answer(turn.text)

    def count(self, what: str) -> None:
        """One more `what` on the episode's counts."""
        if not isinstance(what, str):
            raise MarftError(f"the workflow gives game.count {kind_of(what)}, not str")
        self.counts[escaped(exact(what))] += 1

    def _checked_names(
        self, names: Sequence[str], sees: Sequence[str] | None
    ) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
        """Who acts and whom they see, as plain texts."""
        if sees is not None and (isinstance(sees, str) or not isinstance(sees, Collection)):
            raise MarftError(f"the workflow calls game.act with sees={quoted(sees)}; give it a list of names")
        team = list(self.team)
        heard = [*team, *(turn.agent for turn in self.turns)]  # also those that game.say spoke for

        def known(name: object, those: Sequence[str]) -> str:
            if isinstance(name, str) and (found := exact(name)) in those:
                return found
            raise MarftError(f"the workflow names {quoted(name)} in game.act; the team has {', '.join(team)}")

        return tuple(known(name, team) for name in names), None if sees is None else tuple(
            known(name, heard) for name in sees
        )

    def _check_room(self, more: int, *, before: str, shown: str) -> None:
        if len(self.turns) + more > MAX_TURNS:
            raise CutOff(before, shown)

    async def _shown_to(self, name: str, note: str) -> str:
        parts = (await self._env.shown(name), note, self.team[name].tools.help)
        return "\n\n".join(part for part in parts if part)

    async def _move(self, agent: Agent, *, index: int, nth: int, shown: str, options: ActOptions) -> Turn:
        if index < len(self._replayed):
            return check_replay(self._replayed[index], agent.name)
        sees = agent.sees if options.sees is None else tuple(options.sees)
        prompts = {each.name: each.prompt for each in self.team.values()}
        view = View(agent=agent.name, prompts=prompts, task=self.task, shown=shown, turns=self.turns, sees=sees)
        observation = view.observe(agent.history)
        adapter = None if index == self._base_at else agent.adapter
        try:
            earlier = [turn for turn in self.turns if self._engine_of(turn) is agent.engine]
            prompt_ids = agent.engine.encode(observation, agent.chat, earlier)
            completion = await agent.engine.generate(
                Request(
                    adapter=adapter, messages=observation, prompt_ids=prompt_ids, sampling=agent.sampling,
                    seed=seed_of(self._seed, index),
                )
            )  # fmt: skip
        except PromptTooLong as error:
            if self.turns and len(agent.engine.encode(view.unsaid(), agent.chat)) < error.longest:
                raise ContextOverflow(f"{agent.name}: {error}") from error
            raise EpisodeFailed(f"{agent.name}: {error}, and it is as long if nobody speaks", "speech") from error
        except SpeechError as error:
            raise EpisodeFailed(f"{agent.name}: {error}", "speech") from error
        return Turn(
            agent=agent.name, index=index, nth=nth, shown=shown, observation=observation, prompt_ids=prompt_ids,
            completion=completion, aside=options.aside, step="next" if index == len(self.turns) else "same", sees=sees,
            heard=agent.thoughts.without_thoughts(completion.text),
        )  # fmt: skip

    def _engine_of(self, turn: Turn) -> TextEngine | None:
        """What spoke a turn; None where nothing of the team's did."""
        return self.team[turn.agent].engine if turn.agent in self.team else None

    def _unspoken(self, name: str, text: str, *, shown: str, to: str | None = None) -> Turn:
        """A turn that no model generated."""
        index = len(self.turns)
        if index < len(self._replayed):
            check_replay(self._replayed[index], name)
        return Turn(
            agent=name, index=index, nth=sum(t.agent == name for t in self.turns), shown=shown, observation=(),
            prompt_ids=(), completion=Completion(text=text, token_ids=(), logprobs=(), finish="stop", version=0), to=to,
            step="none",
        )  # fmt: skip

    async def _record(self, turn: Turn) -> None:
        if not turn.aside and turn.to is None:
            await self._env.hear(turn)
        self.turns.append(turn)


async def play(
    *, task: Task, sample: int, team: Mapping[str, Agent], host: EnvironmentHost, workflow: Workflow, seed: str,
    replayed: Sequence[Turn] = (), base_at: int | None = None, trunk: int | None = None,
) -> Episode:  # fmt: skip
    """The whole episode; failures of environment, workflow or model are data on it.

    Turns in `replayed` are played again as they were, and the episode goes on from there: a fork of sample `trunk`.
    Turn `base_at` is spoken by the untrained base in place of the agent's adapter.
    """
    if isinstance(task, BadTask):
        return Episode(
            task=task, sample=sample, turns=(), reward=Reward(team=0.0), ended="failed", fault="raised",
            error=f"the task {task.id!r} {task.flaw}", trunk=trunk,
        )  # fmt: skip
    env = GuardedEnv(host)
    game = Game(task=task, team=team, env=env, seed=f"{seed}/{task.id}/{sample}", replayed=replayed, base_at=base_at)
    reward = Reward(team=0.0)
    over: GameOver | None = None
    try:
        await env.reset(task)
        over = await run_workflow(workflow, game)
        reward = await env.reward(last=True)
    except EpisodeFailed as error:
        over = error
    if not isinstance(over, EpisodeFailed) and len(game.turns) < len(replayed):
        check_replay(replayed[len(game.turns)], "nobody")
    failure = over if isinstance(over, EpisodeFailed) else None
    cut = over if isinstance(over, CutOff) else None
    return Episode(
        task=task, sample=sample, turns=tuple(game.turns),
        reward=overflow_reward(reward) if isinstance(over, ContextOverflow) else reward, ended=how_ended(over),
        error=str(over) if isinstance(over, EpisodeFailed | ContextOverflow) else None,
        fault=failure.fault if failure else None, trace=failure.trace if failure else "",
        cut_before=cut.before if cut else None, cut_shown=cut.shown if cut else "", counts=dict(game.counts),
        trunk=trunk, forked_at=len(replayed),
    )  # fmt: skip


def how_ended(over: GameOver | None) -> Ended:
    """The episode's `ended` for what ended its game; None: the workflow was done."""
    match over:
        case EpisodeFailed():
            return "failed"
        case ContextOverflow():
            return "overflow"
        case CutOff():
            return "cut_off"
    return "terminated"


def overflow_reward(reward: Reward) -> Reward:
    """What a team earns that could not go on: nothing for its answer, and what it had lost by then."""
    turns = {index: min(0.0, own) for index, own in reward.turns.items()} if reward.itemised else reward.turns
    correct = None if reward.correct is None else False
    return replace(reward, team=min(0.0, reward.team), turns=turns, correct=correct)


async def run_workflow(workflow: Workflow, game: Game) -> CutOff | ContextOverflow | None:
    """The workflow until it is done or the game is over; gives what ended it but is no failure of others."""
    try:
        await await_or_abandon(workflow(game), lambda: game.refused)
    except (MarftError, Stopped):
        raise
    except BaseException as error:  # the user's code: anything may come, SystemExit too
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        if game.over is None:
            raise EpisodeFailed(f"the workflow raised {described(error)}", "workflow", traced()) from error
    if game.over is None or isinstance(game.over, CutOff | ContextOverflow):
        return game.over
    raise game.over


def check_replay(recorded: Turn, now: str) -> Turn:
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
