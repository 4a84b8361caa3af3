"""One team plays one task: from a workflow's `game.act(...)` calls to an Episode.

Model output and the user's environment and workflow may fail: that is recorded on the episode. Our own bugs are not
caught.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from marft.game.agent import ActOptions, Agent, RememberingEngine
from marft.game.arguments import checked_names, require_workflow_text
from marft.game.endings import (
    ContextOverflow,
    CutOff,
    EndsGameOnError,
    EpisodeFailed,
    GameOver,
    check_replay,
    how_ended,
    overflow_reward,
    run_workflow,
    unplayable_episode,
)
from marft.game.guarded_env import EnvironmentHost, GuardedEnv
from marft.game.messages import read_messages, read_tools
from marft.game.observation import View, begun_text
from marft.game.tools import ToolCall, ToolFailure, with_recipient
from marft.game.workflows import Workflow
from marft.types import (
    MAX_TURNS,
    BadTask,
    ChatOptions,
    Completion,
    Episode,
    MarftError,
    Message,
    PromptTooLong,
    Request,
    Reward,
    Sampling,
    SpeechError,
    Step,
    Task,
    Turn,
)
from marft.untrusted_values import escaped, exact, kind_of, quoted


class Game:
    """The handle a workflow holds: who is on the team, what was said, and what can happen next."""

    def __init__(
        self, *, task: Task, team: Mapping[str, Agent], env: GuardedEnv, seed: str, replayed: Sequence[Turn] = (),
        base_at: int | None = None,
    ) -> None:  # fmt: skip
        self.task, self.team = task, team
        self.turns: list[Turn] = []
        self.counts: Counter[str] = Counter()
        self.calls: dict[str, Counter[str]] = {}  # of tools, by agent
        self.over: BaseException | None = None  # what ended the game, should the workflow have swallowed it
        self.refused = 0  # calls since then
        self.awarded: Reward | None = None  # by the workflow, in place of what the environment would say
        self._ending = EndsGameOnError(self)
        self._acting, self._chatting, self._recording = False, 0, asyncio.Lock()
        self._asked: Counter[tuple[str, tuple[Message, ...]]] = Counter()
        self._env, self._seed, self._replayed, self._base_at = env, seed, replayed, base_at
        self._episode = object()  # like no other, also where an episode is played again

    async def act(
        self, *names: str, sees: Sequence[str] | None = None, note: str = "", aside: bool = False
    ) -> tuple[Turn, ...]:
        """The named agents act at once: none sees what the others say in this call. A name may come several times.

        `sees` overrides their profiles; `note` is what the workflow tells them beside what the environment shows; what
        is said `aside` the environment does not hear. Their turns come back in the order of `names`; the episode
        records them in the team's order. Who calls a tool is told its answer and speaks again.
        """
        async with self._ending:
            if self._acting or self._chatting:
                raise MarftError("the workflow calls game.act while another is under way; name both agents in one call")
            names, sees = checked_names(names, sees, self.team, self.turns)
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
        called: Counter[int] = Counter()
        going_on: dict[int, tuple[Message, ...] | None] = {}  # what those read who have called tools
        while acting:
            spoken = await self._speak([names[i] for i in acting], options, [going_on.get(i) for i in acting])
            using: dict[int, tuple[ToolCall, ...]] = {}
            for i, turn in zip(acting, spoken, strict=True):
                tools = self.team[names[i]].tools
                calls = tools.find_calls(turn) if called[i] < tools.most else ()
                if calls:
                    using[i] = tools.within_limit(calls, tools.most - called[i])
                made[i] = with_recipient(turn, calls[0] if calls else None)
                await self._record(made[i])
            answers = iter(await self._use([(names[i], call) for i, calls in using.items() for call in calls]))
            for i, calls in using.items():
                going_on[i] = self.team[names[i]].tools.go_on(made[i], calls, [next(answers) for _ in calls])
                called[i] += len(calls)
            acting = list(using)
        return tuple(made[i] for i in range(len(names)))

    async def _speak(
        self, names: Sequence[str], options: ActOptions, going_on: Sequence[tuple[Message, ...] | None]
    ) -> list[Turn]:
        """One message of each; those who are `going_on` in the middle of their turn read these messages."""
        start = len(self.turns)
        shown = [await self._shown_to(name, options.note) for name in names]
        self._check_room(len(names), before=names[0], shown=shown[0])
        spoken = [*(turn.agent for turn in self.turns), *names]
        moves = [
            self._move(
                self.team[name], index=k, nth=spoken[:k].count(name), shown=shown[k - start], options=options,
                going_on=going_on[k - start],
            )
            for k, name in enumerate(names, start)
        ]  # fmt: skip
        return [await moves[0]] if len(moves) == 1 else list(await asyncio.gather(*moves))

    async def _use(self, calls: Sequence[tuple[str, ToolCall]]) -> list[str]:
        """The tools' answers, each to the agent who called."""
        start = len(self.turns)
        known = self._replayed[start : start + len(calls)]
        fresh = calls[len(known) :]
        answers = [turn.text for turn in known]
        answers += await asyncio.gather(*(self._call(name, call) for name, call in fresh))
        for (name, call), text in zip(calls, answers, strict=True):
            self._check_room(1, before=name, shown="")
            await self._record(self._unspoken(call.tool, text, shown="", to=call.reader(name)))
        return answers

    async def _call(self, name: str, call: ToolCall) -> str:
        """One tool's answer; why there is none is an answer too, and counted."""
        counts = self.calls.setdefault(name, Counter())
        counts["calls"] += 1
        try:
            return await self.team[name].tools.use(call)
        except ToolFailure as failure:
            self.count(failure.count)
            counts[failure.count] += 1
            return f"error: {failure}"

    async def chat(
        self, name: str, messages: Sequence[Message | Mapping[str, Any]], *,
        tools: Sequence[Mapping[str, Any]] = (), max_tokens: int | None = None, stop: Sequence[str] = (), aside: bool = False,
    ) -> Turn:  # fmt: skip
        """The named agent answers these very messages, ours or dictionaries as OpenAI's clients write them, and sees nothing
        else. Where they begin as an earlier turn did, they have its tokens. `tools` are told to the chat template; calls of
        them are the workflow's to answer. PromptTooLong may be caught. Several calls may be under way at once: those that
        overlap in time are one step, and turns are recorded in the order in which they end."""
        async with self._ending:
            if self._acting:
                raise MarftError("the workflow calls game.chat while game.act is under way; await it first")
            [name], _ = checked_names([name], None, self.team, self.turns)
            agent, began = self.team[name], len(self.turns)
            try:
                asked, chat = read_messages(messages), replace(agent.chat, tools=read_tools(tools))
                sampling = agent.limited(max_tokens, stop)
            except ValueError as error:
                raise MarftError(f"the workflow calls game.chat, and {error}") from None
            self._check_room(1 + self._chatting, before=name, shown="")
            self._chatting += 1
            try:
                turn = await self._answer(agent, asked, chat, sampling)
                async with self._recording:
                    index, nth = len(self.turns), sum(each.agent == name for each in self.turns)
                    step: Step = "next" if began == index else "same"
                    await self._record(turn := replace(turn, index=index, nth=nth, step=step, aside=aside))
            finally:
                self._chatting -= 1
            return turn

    async def _answer(self, agent: Agent, messages: tuple[Message, ...], chat: ChatOptions, sampling: Sampling) -> Turn:
        """What an agent says to some messages. Its seed is theirs, whoever else is asked at the same time."""
        nth = self._asked[agent.name, messages] = self._asked[agent.name, messages] + 1
        if len(known := [t for t in self._replayed if (t.agent, t.observation) == (agent.name, messages)]) >= nth:
            return known[nth - 1]
        if (index := len(self.turns)) < len(self._replayed) and self._chatting == 1:
            check_replay(self._replayed[index], "somebody else")
        seed = seed_of(self._seed, "chat", agent.name, messages, nth)
        adapter = None if index == self._base_at else agent.adapter
        ids, said = await self._generate(agent, messages, chat, sampling, seed, adapter)
        return Turn(
            agent=agent.name, index=0, nth=0, shown="", observation=messages, prompt_ids=ids, completion=said, sees=(),
            heard=agent.thoughts.without_thoughts(said.text), chat=chat,
        )  # fmt: skip

    async def say(self, name: str, text: str) -> Turn:
        """Records what no model said: a vote's result, a referee's ruling. The environment hears it."""
        async with self._ending:
            if self._acting or self._chatting:
                raise MarftError("the workflow calls game.say while an agent is asked; await it first")
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

    def _check_room(self, more: int, *, before: str, shown: str) -> None:
        if len(self.turns) + more > MAX_TURNS:
            raise CutOff(before, shown)

    async def _shown_to(self, name: str, note: str) -> str:
        parts = (await self._env.shown(name), note, self.team[name].tools.help)
        return "\n\n".join(part for part in parts if part)

    async def _move(
        self, agent: Agent, *, index: int, nth: int, shown: str, options: ActOptions,
        going_on: tuple[Message, ...] | None,
    ) -> Turn:  # fmt: skip
        if index < len(self._replayed):
            return check_replay(self._replayed[index], agent.name)
        sees = agent.sees if options.sees is None else tuple(options.sees)
        prompts = {each.name: each.prompt for each in self.team.values()}
        view = View(agent=agent.name, prompts=prompts, task=self.task, shown=shown, turns=self.turns, sees=sees)
        observation = view.observe(agent.history) if going_on is None else going_on
        adapter = None if index == self._base_at else agent.adapter
        seed = seed_of(self._seed, index)
        try:
            prompt_ids, completion = await self._generate(agent, observation, agent.chat, agent.sampling, seed, adapter)
        except PromptTooLong as error:
            if self.turns and len(agent.engine.encode(view.unsaid(), agent.chat)) < error.longest:
                raise ContextOverflow(f"{agent.name}: {error}") from error
            raise EpisodeFailed(f"{agent.name}: {error}, and it is as long if nobody speaks", "speech") from error
        return Turn(
            agent=agent.name, index=index, nth=nth, shown=shown, observation=observation, prompt_ids=prompt_ids,
            completion=completion, aside=options.aside, step="next" if index == len(self.turns) else "same", sees=sees,
            heard=heard_text(agent, observation, completion), chat=agent.chat,
        )  # fmt: skip

    async def _generate(
        self, agent: Agent, messages: tuple[Message, ...], chat: ChatOptions, sampling: Sampling, seed: int,
        adapter: str | None,
    ) -> tuple[tuple[int, ...], Completion]:  # fmt: skip
        """The tokens of a prompt, which are those of earlier turns where it goes on from them, and what follows. An engine
        that cannot speak fails the episode; a prompt that is too long is the caller's."""
        mates = {name for name, other in self.team.items() if other.engine is agent.engine}
        try:
            ids = agent.engine.encode(messages, chat, [turn for turn in self.turns if turn.agent in mates])
            request = Request(
                adapter=adapter, messages=messages, prompt_ids=ids, sampling=sampling, seed=seed, episode=self._episode
            )
            return ids, await agent.engine.generate(request)
        except PromptTooLong:
            raise
        except SpeechError as error:
            raise EpisodeFailed(f"{agent.name}: {error}", "speech") from error

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

    def close(self) -> None:
        """Nothing goes on from here, and engines need remember nothing of it."""
        for engine in {id(agent.engine): agent.engine for agent in self.team.values()}.values():
            if isinstance(engine, RememberingEngine):
                engine.forget(self._episode)


async def play(
    *, task: Task, sample: int, team: Mapping[str, Agent], host: EnvironmentHost, workflow: Workflow, seed: str,
    replayed: Sequence[Turn] = (), base_at: int | None = None, trunk: int | None = None,
) -> Episode:  # fmt: skip
    """The whole episode; failures of environment, workflow or model are data on it.

    Turns in `replayed` are played again as they were, and the episode goes on from there: a fork of sample `trunk`.
    Turn `base_at` is spoken by the untrained base in place of the agent's adapter.
    """
    if isinstance(task, BadTask):
        return unplayable_episode(task, sample, trunk)
    env = GuardedEnv(host)
    game = Game(task=task, team=team, env=env, seed=f"{seed}/{task.id}/{sample}", replayed=replayed, base_at=base_at)
    reward = Reward(team=0.0)
    over: GameOver | None = None
    try:
        await env.reset(task)
        over = await run_workflow(workflow, game)
        reward = game.awarded or await env.reward(last=True)
    except EpisodeFailed as error:
        over = error
    finally:
        game.close()
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
        calls={name: dict(counts) for name, counts in game.calls.items()},
        trunk=trunk, forked_at=len(replayed),
    )  # fmt: skip


def heard_text(agent: Agent, observation: Sequence[Message], said: Completion) -> str | None:
    """What others read of a message, None where that is all that was just said: the whole of one that goes on behind the
    answer of a tool, and nobody's thoughts."""
    begun = begun_text(observation)
    spoken = agent.thoughts.without_thoughts(begun + said.text)
    return begun + said.text if begun and spoken is None else spoken


def seed_of(*parts: object) -> int:
    """A 63-bit seed from anything printable; equal parts give equal seeds on every machine."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
