"""A team plays with the scripted engine: who acts, what each one saw, and what becomes of failures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.engines.scripted import ScriptedEngine
from marft.game import play as playing
from marft.game.observation import central_state
from marft.game.play import Agent, Game, play, seed_of
from marft.game.workflows import Workflow, find_workflow, sequential
from marft.types import Completion, Episode, MarftError, Message, PromptTooLong, Request, Reward, Sampling, Task

TASK = Task(id="t", prompt="What is 2 + 2?")
Script = Callable[[str | None, str], str]


def team(*names: str, **sees: tuple[str, ...]) -> dict[str, Agent]:
    return {
        name: Agent(
            name=name, prompt=f"You are {name.upper()}.", sees=sees.get(name), adapter=name, sampling=Sampling(max_tokens=99)
        )
        for name in names
    }  # fmt: skip


class Listening(ScriptedEngine):
    """Remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> Completion:
        self.requests.append(request)
        return await super().generate(request)

    def heard(self, adapter: str) -> list[str]:
        return [bytes(r.prompt_ids).decode() for r in self.requests if r.adapter == adapter]


def says_its_name(adapter: str | None, prompt: str) -> str:
    return f"<{adapter}>"


def run(
    agents: dict[str, Agent],
    workflow: Workflow = sequential,
    *,
    env: Any = None,
    engine: ScriptedEngine | None = None,
    sample: int = 0,
    seed: str = "0",
    task: Task = TASK,
) -> Episode:
    return asyncio.run(
        play(
            task=task, sample=sample, team=agents, env=env or toys.Echo(), engine=engine or Listening(says_its_name),
            workflow=workflow, seed=seed,
        )
    )  # fmt: skip


# --- what an agent sees -----------------------------------------------------------------------------------------------
def test_defect_01_every_agent_is_told_its_own_role() -> None:
    """Each agent's own system prompt, and no other's, reaches the model: token for token what the turn records."""
    engine = Listening(says_its_name)
    agents = team("planner", "solver", "judge")
    episode = run(agents, engine=engine)
    for turn, request in zip(episode.turns, engine.requests, strict=True):
        own = agents[turn.agent].prompt
        assert turn.observation[0] == Message(role="system", content=own)
        assert turn.prompt_ids == request.prompt_ids == engine.encode(turn.observation)
        text = bytes(request.prompt_ids).decode()
        assert own in text
        assert not any(agent.prompt in text for name, agent in agents.items() if name != turn.agent)
        assert request.adapter == turn.agent


def test_without_sees_everybody_sees_all_predecessors() -> None:
    engine = Listening(says_its_name)
    run(team("a", "b", "c"), engine=engine)
    assert [re.findall(r"(\w): <\w>", text) for text in map(engine_text, engine.requests)] == [[], ["a"], ["a", "b"]]


def engine_text(request: Request) -> str:
    return bytes(request.prompt_ids).decode()


def test_what_the_dependency_function_hides_is_not_shown() -> None:
    engine = Listening(says_its_name)
    run(team("a", "b", "c", b=(), c=("a",)), engine=engine)
    [b], [c] = engine.heard("b"), engine.heard("c")
    assert "<a>" not in b
    assert "<a>" in c
    assert "<b>" not in c
    assert all(TASK.prompt in text for text in (b, c))


def test_a_workflow_can_override_who_is_seen() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a")
        await game.act("b", sees=[])
        await game.act("b", sees=["b"])

    engine = Listening(says_its_name)
    run(team("a", "b"), workflow, engine=engine)
    first, second = engine.heard("b")
    assert "<a>" not in first
    assert "<a>" not in second
    assert "<b>" in second


def test_the_environments_words_are_shown_and_recorded() -> None:
    class Shows(toys.Echo):
        def observe(self, state: str) -> str:
            return f"The board: [{state}]"

    episode = run(team("a", "b"), env=Shows())
    assert [turn.shown for turn in episode.turns] == ["The board: []", "The board: [<a>]"]
    assert "The board: [<a>]" in episode.turns[1].observation[1].content


def test_defect_02_a_branch_never_contains_what_it_did_not_see() -> None:
    """Agents that act at once see the past, and nothing of each other: not even in the recorded prompt."""

    async def debate(game: Game) -> None:
        for _ in range(2):
            await game.act("pro", "con")
        await game.act("judge")

    counts: dict[str | None, int] = {}

    def script(adapter: str | None, prompt: str) -> str:
        counts[adapter] = counts.get(adapter, 0) + 1
        return f"<{adapter}{counts[adapter]}>"

    episode = run(team("pro", "con", "judge"), debate, engine=Listening(script))
    seen = [set(re.findall(r"<(?:pro|con)\d>", turn.observation[1].content)) for turn in episode.turns]
    first = {"<pro1>", "<con1>"}
    assert seen == [set(), set(), first, first, first | {"<pro2>", "<con2>"}]
    for turn in episode.turns:
        assert bytes(turn.prompt_ids).decode() == "\n".join(f"<{m.role}> {m.content}" for m in turn.observation)


names = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(names, max_size=5),
    st.dictionaries(st.sampled_from("abcd"), st.lists(st.sampled_from("abcd"), max_size=3).map(tuple)),
)
def test_an_agent_sees_exactly_what_the_dependency_function_lets_through(
    plan: list[list[str]], sees: dict[str, tuple[str, ...]]
) -> None:
    async def workflow(game: Game) -> None:
        for together in plan:
            await game.act(*together)

    spoken = iter(range(100))
    engine = Listening(lambda adapter, prompt: f"#{next(spoken)}#")
    episode = run(team(*"abcd", **sees), workflow, engine=engine)
    past: list[Any] = []
    left = list(episode.turns)
    for together in plan:
        now, left = left[: len(together)], left[len(together) :]
        assert [turn.agent for turn in now] == sorted(together)
        for turn in now:
            visible = [t.text for t in past if turn.agent not in sees or t.agent in sees[turn.agent]]
            assert re.findall(r"#\d+#", turn.observation[1].content) == visible
        past += now
    assert left == []
    assert [turn.index for turn in episode.turns] == list(range(len(past)))
    for name in "abcd":
        assert [t.nth for t in past if t.agent == name] == list(range(sum(t.agent == name for t in past)))


def test_central_state_shows_everything_whatever_was_hidden() -> None:
    episode = run(team("a", "b", "c", b=(), c=()))
    system, user = central_state(task=TASK, shown="board", turns=episode.turns[:2], next_agent="c")
    assert "Next: c" in system.content
    assert user.content == f"{TASK.prompt}\n\nboard\n\na: <a>\n\nb: <b>"


# --- who acts when ----------------------------------------------------------------------------------------------------
def test_sequential_is_the_teams_order() -> None:
    assert [turn.agent for turn in run(team("z", "a", "m")).turns] == ["z", "a", "m"]


def test_parallel_turns_come_in_the_teams_order_whoever_is_first() -> None:
    class Slow(Listening):
        async def generate(self, request: Request) -> Completion:
            await asyncio.sleep(0.02 if request.adapter == "a" else 0)
            return await super().generate(request)

    async def workflow(game: Game) -> None:
        made = await game.act("c", "b", "a")
        assert [turn.agent for turn in made] == ["c", "b", "a"]  # as asked for

    engine = Slow(says_its_name)
    episode = run(team("a", "b", "c"), workflow, engine=engine)
    assert [(turn.agent, turn.index) for turn in episode.turns] == [("a", 0), ("b", 1), ("c", 2)]
    assert [r.adapter for r in engine.requests] == ["b", "c", "a"]
    assert episode.reward == toys.Echo().reward("<a><b><c>")


def test_nth_counts_each_agents_own_turns() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a")
        await game.act("a", "b")
        await game.act("b", "b", "a")

    turns = run(team("a", "b"), workflow).turns
    assert [(t.agent, t.nth) for t in turns] == [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("b", 1), ("b", 2)]


def test_an_episode_is_cut_off_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forever(game: Game) -> None:
        while True:
            await game.act("a")
            await game.act("b", "c")

    monkeypatch.setattr(playing, "MAX_TURNS", 8)
    episode = run(team("a", "b", "c"), forever)
    assert (episode.ended, episode.cut_before, len(episode.turns)) == ("cut_off", "b", 7)
    assert episode.reward == toys.Echo().reward("".join(turn.text for turn in episode.turns))


def test_a_full_length_episode_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "MAX_TURNS", 3)
    episode = run(team("a", "b", "c"))
    assert (episode.ended, episode.cut_before) == ("terminated", None)


def test_a_workflow_of_ones_own_by_name() -> None:
    episode = run(team("planner", "solver"), find_workflow("toys:both"))
    assert [turn.agent for turn in episode.turns] == ["planner", "solver"]
    assert "<planner>" not in episode.turns[1].observation[1].content


@pytest.mark.parametrize("name", ["toys:nothing", "no_such_module:f", ":f", "..up:f", "toys:TINY"])
def test_a_workflow_that_cannot_be_found_is_one_line(name: str) -> None:
    with pytest.raises(MarftError, match=rf"^team\.workflow: .*{re.escape(name)}"):
        find_workflow(name)


def test_a_workflow_that_is_not_async_is_one_line() -> None:
    with pytest.raises(MarftError, match=r"^team\.workflow: 'toys:files' is not an async function"):
        find_workflow("toys:files")


def test_two_acts_at_once_are_refused() -> None:
    async def overlapping(game: Game) -> None:
        await asyncio.gather(game.act("a"), game.act("b"))

    class Slow(ScriptedEngine):
        async def generate(self, request: Request) -> Completion:
            await asyncio.sleep(0)
            return await super().generate(request)

    with pytest.raises(MarftError, match=r"name both agents in one call"):
        run(team("a", "b"), overlapping, engine=Slow(says_its_name))


def test_seeing_somebody_who_is_not_on_the_team() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a", sees=["plannr"])

    with pytest.raises(MarftError, match=r"names 'plannr' in game\.act"):
        run(team("a", "b"), workflow)


def test_an_agent_that_is_not_on_the_team() -> None:
    with pytest.raises(MarftError, match=r"names 'stranger' in game\.act; the team has a, b"):
        run(team("a", "b"), toys.stranger)


# --- failures are data ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "after"),
    [("reset", 0), ("observe", 0), ("observe", 1), ("transition", 0), ("transition", 1), ("reward", 0)],
)
def test_an_environment_that_raises_fails_the_episode(method: str, after: int) -> None:
    episode = run(team("a", "b"), env=toys.Breaks(method, after, "oh no"))
    assert (episode.ended, episode.error) == ("failed", f"environment.{method} raised RuntimeError: oh no")
    assert episode.reward == Reward(team=0.0)
    assert len(episode.turns) == (2 if method == "reward" else after)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), None, "1"])
def test_a_reward_that_is_no_number_fails_the_episode(number: Any) -> None:
    class Team(toys.Echo):
        def reward(self, state: str) -> Reward:
            return Reward(team=number)

    class OfATurn(toys.Echo):
        def reward(self, state: str) -> Reward:
            return Reward(team=0.0, turns={1: number})

    for env in (Team(), OfATurn()):
        episode = run(team("a", "b"), env=env)
        assert (episode.ended, episode.error) == (
            "failed",
            f"the environment's reward is {number}, not a finite number",
        )


@pytest.mark.parametrize(("method", "given"), [("reward", "float"), ("observe", "NoneType")])
def test_a_wrong_kind_of_answer_fails_the_episode(method: str, given: str) -> None:
    episode = run(team("a"), env=toys.Returns(method))
    assert episode.ended == "failed"
    assert episode.error is not None
    assert episode.error.startswith(f"environment.{method} returned {given}")


def test_a_prompt_that_outgrew_the_model_fails_the_episode() -> None:
    class Short(ScriptedEngine):
        async def generate(self, request: Request) -> Completion:
            if request.adapter == "b":
                raise PromptTooLong("too long")
            return await super().generate(request)

    episode = run(team("a", "b"), engine=Short(says_its_name))
    assert (episode.ended, episode.error, len(episode.turns)) == ("failed", "b: too long", 1)


def test_our_own_bugs_are_not_caught() -> None:
    class Broken(ScriptedEngine):
        async def generate(self, request: Request) -> Completion:
            raise KeyError("a bug")

    with pytest.raises(KeyError):
        run(team("a"), engine=Broken(says_its_name))


# --- luck -------------------------------------------------------------------------------------------------------------
def test_every_turn_has_its_own_luck_and_keeps_it() -> None:
    def seeds(seed: str, sample: int, task: Task) -> Sequence[int]:
        engine = Listening(says_its_name)
        run(team("a", "b"), engine=engine, seed=seed, sample=sample, task=task)
        return [request.seed for request in engine.requests]

    other = replace(TASK, id="u")
    drawn = [s for seed in "01" for sample in (0, 1, 2) for task in (TASK, other) for s in seeds(seed, sample, task)]
    assert len(set(drawn)) == len(drawn) == 24
    assert seeds("0", 1, TASK) == seeds("0", 1, TASK)


def test_seeds_are_the_same_on_every_machine() -> None:
    assert seed_of("0/train/0/t/0", 1) == 1568494074709915599
    assert all(0 <= seed_of(i) < 2**63 for i in range(100))
