"""Credit by playing on, with scripted teams whose every reward is known by hand."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from typing import Any, Literal

import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from lessons import Seat, make_batch

from marft.algorithms.batch import Batch
from marft.engines.scripted import ScriptedEngine
from marft.envs.hosting import InProcess
from marft.game.agent import Agent
from marft.game.play import seed_of
from marft.game.workflows import Workflow, find_workflow
from marft.rollouts.counterfactuals import start_without_turn, with_differences, with_forks
from marft.rollouts.credit import Tree
from marft.rollouts.runner import EpisodeRunner, Start
from marft.types import Episode, Request, Reward, Sampling, Task, Turn

TASK = Task(id="t", prompt="Count.")
NAMES = ("planner", "helper", "solver")
LEARN = frozenset({"planner", "solver"})  # the helper is code
SEQUENTIAL = find_workflow("sequential")


class LastNumber(toys.Echo):
    """Worth the last number that was said in it; it cannot read messages with `broken` in them."""

    def __init__(self, broken: str = "!") -> None:
        super().__init__()
        self.broken = broken

    def transition(self, state: str, turn: Turn) -> str:
        if self.broken in (turn.text or "nothing"):
            raise RuntimeError("illegible")
        return turn.text

    def reward(self, state: str) -> Reward:
        return Reward(team=float(state or 0))


class Remembers(ScriptedEngine):
    """A voice that knows what it was asked."""

    def __init__(self, script: Callable[[Request], str]) -> None:
        self.asked: list[Request] = []

        def speak(request: Request) -> str:
            self.asked.append(request)
            return script(request)

        super().__init__(speak)


def who(request: Request) -> str:
    return request.messages[0].content


def numbers(request: Request) -> list[int]:
    """All that were said to it."""
    return [int(found) for found in re.findall(r"\d+", request.messages[1].content)]


def runner_of(
    script: Callable[[Request], str],
    *,
    names: Sequence[str] = NAMES,
    learn: Collection[str] = LEARN,
    env: Any = None,
    workflow: Workflow = SEQUENTIAL,
) -> tuple[EpisodeRunner, Remembers]:
    """Everybody speaks with one voice; who learns has an adapter."""
    voice = Remembers(script)
    team = {
        name: Agent(
            name=name,
            prompt=name,
            sees=None,
            adapter=name if name in learn else None,
            sampling=Sampling(max_tokens=99),
            engine=voice,
        )
        for name in names
    }
    return EpisodeRunner(team=team, host=InProcess(env or LastNumber()), workflow=workflow), voice


# --- difference -------------------------------------------------------------------------------------------------------
def chain(request: Request) -> str:
    """planner 2, helper twice what it sees, solver one more than all it sees; as the base planner 1, solver 5."""
    heard = numbers(request)
    match who(request):
        case "planner":
            return "2" if request.adapter else "1"
        case "helper":
            return str(2 * sum(heard))
        case _:
            return str(sum(heard) + 1) if request.adapter else "5"


def differences(
    runner: EpisodeRunner, baseline: Literal["blank", "base"], *, learn: Collection[str] = LEARN, samples: int = 1
) -> list[Episode]:
    async def both() -> list[Episode]:
        starts = [Start(task=TASK, sample=i) for i in range(samples)]
        return await with_differences(
            runner, await runner.episodes(starts, "seed"), "seed", learns=learn, baseline=baseline
        )

    return asyncio.run(both())


@pytest.mark.parametrize(
    ("baseline", "credits"),
    [
        # 2, 4, 7 is worth 7. Without the plan: "", 0, 1, worth 1; without the last word: worth 0
        ("blank", (7 - 1, 0, 7 - 0)),
        # the base plans: 1, 2, 4, worth 4; the base solves: 2, 4, 5, worth 5
        ("base", (7 - 4, 0, 7 - 5)),
    ],
)
def test_a_turn_is_credited_with_what_the_team_loses_without_it(
    baseline: Literal["blank", "base"], credits: tuple[float, ...]
) -> None:
    runner, _ = runner_of(chain)
    [episode] = differences(runner, baseline)
    assert [turn.text for turn in episode.turns] == ["2", "4", "7"]
    assert episode.credits == credits
    assert episode.counts == {}


def test_the_episode_itself_stays_as_it_was() -> None:
    runner, _ = runner_of(chain)
    [plain] = asyncio.run(runner.episodes([Start(task=TASK, sample=0)], "seed"))
    [episode] = differences(runner, "blank")
    assert (episode.turns, episode.reward, episode.sample) == (plain.turns, plain.reward, plain.sample)
    assert (episode.trunk, episode.forked_at) == (None, 0)


def test_only_turns_that_learn_are_played_without() -> None:
    runner, voice = runner_of(chain)
    differences(runner, "blank")
    # the episode; without the plan helper and solver speak again; without the solution nobody does
    assert [who(request) for request in voice.asked] == [*NAMES, "helper", "solver"]
    runner, voice = runner_of(chain)
    [episode] = differences(runner, "blank", learn={"solver"})
    assert episode.credits == (0, 0, 7)
    assert len(voice.asked) == 3


def test_the_base_speaks_once_and_the_adapters_go_on() -> None:
    runner, voice = runner_of(chain)
    differences(runner, "base")
    again = [(who(request), request.adapter) for request in voice.asked[3:]]
    assert Counter(again) == Counter([("planner", None), ("helper", None), ("solver", "solver"), ("solver", None)])


def test_without_a_message_the_rest_is_played_again_with_the_same_luck() -> None:
    """Else the credit of a turn would be the luck of those who followed."""
    runner, voice = runner_of(chain)
    differences(runner, "blank", samples=2)
    for name in ("helper", "solver"):
        seeds = [request.seed for request in voice.asked if who(request) == name]
        assert len(seeds) == 4  # each sample once, and again without its plan
        assert len(set(seeds)) == 2


def test_the_base_has_luck_of_its_own() -> None:
    """With the agent's luck it would say what the agent said, and an agent that begins as the base would never learn."""

    def same_as_base(request: Request) -> str:
        return str(request.seed % 1000)  # whoever speaks, with adapter or without

    runner, voice = runner_of(same_as_base)
    first, second = differences(runner, "base", samples=2)
    played, again = voice.asked[:6], voice.asked[6:]
    assert {request.seed for request in played}.isdisjoint(request.seed for request in again)
    for episode in (first, second):
        assert episode.credits is not None
        assert 0 not in (episode.credits[0], episode.credits[2])


def test_every_episode_has_credits_of_its_own() -> None:
    def by_sample(request: Request) -> str:
        return chain(request) if request.seed != seed_of("seed/t/1", 2) else "9"

    runner, _ = runner_of(by_sample)
    first, second = differences(runner, "blank", samples=2)
    assert first.credits == (6, 0, 7)
    assert second.credits == (0, 0, 9)  # whatever the plan was


def test_an_episode_whose_replay_fails_has_failed_too() -> None:
    """What the turn is worth is not known, and a credit of 0 would be compared with real ones."""
    runner, _ = runner_of(chain, env=LastNumber(broken="1"))  # without the plan the solver says 1
    [episode] = differences(runner, "blank")
    assert (episode.ended, episode.reward.team) == ("failed", 7)
    assert episode.error is not None
    assert episode.error.startswith("played again without turn 0, it failed: environment.transition raised")


def test_an_episode_that_failed_is_not_played_again() -> None:
    runner, voice = runner_of(chain, env=LastNumber(broken="7"))
    [episode] = differences(runner, "blank")
    assert episode.ended == "failed"
    assert len(voice.asked) == 3


def orchestra(request: Request) -> str:
    """The boss calls `worker` until it has heard a number; as the base it is done at once. The worker says 3, and 1 if it
    has spoken before."""
    told = request.messages[1].content
    if who(request) == "boss":
        return "Next: worker" if request.adapter and not re.search(r"worker: \d", told) else "Done"
    return "1" if "worker:" in told else "3"


@pytest.mark.parametrize(
    ("baseline", "credits"),
    [
        # 1. asked again, the boss calls the worker all the same; 2. called again, the worker says 1; 3. done anyway
        ("blank", (0, 3 - 1, 0)),
        # 1. nobody is called; 2. the worker's base says the same; 3. the base is done too
        ("base", (3 - 0, 0, 0)),
    ],
)
def test_a_replay_may_take_another_course(baseline: Literal["blank", "base"], credits: tuple[float, ...]) -> None:
    runner, _ = runner_of(
        orchestra, names=("boss", "worker"), learn=("boss", "worker"), workflow=find_workflow("orchestrated")
    )
    [episode] = differences(runner, baseline, learn={"boss", "worker"})
    assert [turn.text for turn in episode.turns] == ["Next: worker", "3", "Done"]
    assert episode.credits == credits
    assert episode.counts == {}  # a blank is malformed, but only in the replay


def test_a_blank_has_no_thoughts_either() -> None:
    runner, _ = runner_of(lambda request: "<think>hm</think>3")
    [episode] = asyncio.run(runner.episodes([Start(task=TASK, sample=0)], "0"))
    assert episode.turns[0].text == "3"
    [blank] = start_without_turn(episode, episode.turns[0], "blank").replayed
    assert blank.text == ""


# --- tree -------------------------------------------------------------------------------------------------------------
def seed_with(first: int, turns: int) -> str:
    """A seed with which the forks of the task begin at the given learning turn."""
    return next(seed for seed in map(str, count()) if seed_of(seed, TASK.id, 0) % turns == first)


def saying(texts: Mapping[tuple[int, int], str], seed: str) -> Callable[[Request], str]:
    """What sample i says at turn k; else its own numbers."""
    known = {seed_of(f"{seed}/{TASK.id}/{i}", k): text for (i, k), text in texts.items()}
    return lambda request: known.get(request.seed, "0")


def forks(
    runner: EpisodeRunner,
    *,
    samples: int,
    seed: str = "seed",
    tasks: Sequence[Task] = (TASK,),
    learn: Collection[str] = LEARN,
) -> list[Episode]:
    starts: list[Start] = []
    for task in tasks:
        first = sum(start.task.id == task.id for start in starts)
        starts += [Start(task=task, sample=first + i) for i in range(samples)]
    return asyncio.run(with_forks(runner, starts, seed, samples=samples, learns=learn))


# trunk: worth 8, its forks 2, 4 and 6; of its turns 0, 1, 2 the helper's, 1, is no one's to fork at
ENDS = {(0, 2): "8", (1, 2): "2", (2, 2): "4", (3, 2): "6"}
TREES: Sequence[tuple[int, list[int], list[tuple[float, ...]], list[list[tuple[int, int]]]]] = [
    # the first forks at turn 0, the second at 2, the third at 0 again
    (
        0,
        [0, 2, 0],
        [((8 + 4) / 2, (8 + 4) / 2, 8), (2, 2, 2), (0, 0, 4), (6, 6, 6)],
        [[(0, 0), (1, 0), (3, 0)], [(0, 2), (2, 2)], [(1, 2)], [(3, 2)]],
    ),
    (
        1,
        [2, 0, 2],
        [((8 + 2 + 6) / 3, (8 + 2 + 6) / 3, 8), (0, 0, 2), (4, 4, 4), (0, 0, 6)],
        [[(0, 0), (2, 0)], [(0, 2), (1, 2), (3, 2)], [(2, 2)]],
    ),
]


@pytest.mark.parametrize(("first", "points", "credits", "families"), TREES)
def test_forks_cycle_over_learning_turns_and_are_worth_their_leaves(
    first: int, points: list[int], credits: list[tuple[float, ...]], families: list[list[tuple[int, int]]]
) -> None:
    seed = seed_with(first, turns=2)
    runner, _ = runner_of(saying(ENDS, seed))
    found = forks(runner, samples=4, seed=seed)
    assert [episode.sample for episode in found] == [0, 1, 2, 3]
    assert [episode.trunk for episode in found] == [None, 0, 0, 0]
    assert [episode.forked_at for episode in found] == [0, *points]
    assert [episode.credits for episode in found] == credits
    batch = batch_of(found)
    assert family_of(batch) == {frozenset(family) for family in families}
    rows = list(zip(batch.episode_K.tolist(), batch.index_K.tolist(), batch.reward_K, strict=True))
    assert [(e, k) for e, k, _ in rows] == sorted({node for family in families for node in family})
    for e, k, reward in rows:
        assert float(reward) == pytest.approx(credits[e][k])
    assert set(batch.discount_K.tolist()) == {0.0}  # a turn scores its own credit alone


def batch_of(episodes: Sequence[Episode], learn: Collection[str] = LEARN) -> Batch:
    nothing: Any = None  # no tensor is computed with it
    members = [
        Seat(agent=name, adapter=name, critic=None, team=nothing, encode=nothing, temperature=1.0)
        for name in sorted(learn)
    ]
    whole = [episode for episode in episodes if episode.ended != "failed"]
    return make_batch(members, whole, Tree())


def family_of(batch: Batch) -> set[frozenset[tuple[int, int]]]:
    """Which turns (episode, index) are compared with one another."""
    families: dict[int, set[tuple[int, int]]] = {}
    for group, e, k in zip(batch.group_K.tolist(), batch.episode_K.tolist(), batch.index_K.tolist(), strict=True):
        families.setdefault(group, set()).add((e, k))
    return {frozenset(family) for family in families.values()}


def by_luck(request: Request) -> str:
    """A text, and for an orchestrator mostly a decision, that only the seed decides."""
    digest = hashlib.sha256(str(request.seed).encode()).hexdigest()
    if who(request) == "boss":
        return ("Next: solver", "Next: helper", "Done", f"Hm {digest}.")[int(digest[:4], 16) % 4]
    return str(int(digest[:8], 16))


class Worth(toys.Echo):
    """Every course of an episode is worth something else."""

    def reward(self, state: str) -> Reward:
        return Reward(team=int(hashlib.sha256(state.encode()).hexdigest()[:6], 16) / 2**24)


@settings(max_examples=40, deadline=None)
@given(
    workflow=st.sampled_from(["sequential", "debate", "orchestrated", "vote"]),
    samples=st.integers(2, 6),
    seed=st.integers(0, 1000),
    learn=st.sets(st.sampled_from(["boss", "helper", "solver"]), min_size=1),
)
def test_a_tree_is_what_its_turns_say(workflow: str, samples: int, seed: int, learn: set[str]) -> None:
    """Worked out again from the turns alone: the leaves below a turn are the episodes that hold it, its siblings are the
    turns with the same past. What two episodes share was generated once, and is learnt from once."""
    runner, voice = runner_of(
        by_luck, names=("boss", "helper", "solver"), learn=learn, env=Worth(), workflow=find_workflow(workflow)
    )
    tasks = [Task(id=f"t{i}", prompt=f"Task {i}.") for i in range(2)]
    found = forks(runner, samples=samples, seed=str(seed), tasks=tasks, learn=learn)
    spoken = {id(turn): turn for episode in found for turn in episode.turns if turn.observation}
    assert len(voice.asked) == len(spoken)

    wanted: dict[tuple[Any, ...], set[tuple[int, int]]] = {}  # a past, and what followed it
    for e, episode in enumerate(found):
        assert episode.credits is not None
        for k, turn in enumerate(episode.turns):
            new = k >= episode.forked_at
            if turn.observation and new:
                leaves = [other.reward.team for other in found if any(t is turn for t in other.turns)]
                assert episode.credits[k] == pytest.approx(sum(leaves) / len(leaves))
            if turn.agent in learn and new:
                past = (episode.task.id, *(id(before) for before in episode.turns[:k]))
                wanted.setdefault(past, set()).add((e, k))
    assert family_of(batch_of(found, learn)) == {frozenset(family) for family in wanted.values()}


def test_a_trunk_that_failed_has_no_forks() -> None:
    runner, voice = runner_of(chain, env=LastNumber(broken="7"))
    [trunk] = forks(runner, samples=4)
    assert (trunk.ended, trunk.credits) == ("failed", None)
    assert len(voice.asked) == 3


def test_a_fork_that_failed_is_no_leaf() -> None:
    seed = seed_with(1, turns=2)  # forks at 2, 0, 2
    runner, _ = runner_of(saying({**ENDS, (1, 2): "!"}, seed))
    trunk, second, third, failed = forks(runner, samples=4, seed=seed)
    assert (failed.sample, failed.ended, failed.credits) == (1, "failed", None)
    assert [trunk.credits, second.credits, third.credits] == [(7, 7, 8), (4, 4, 4), (0, 0, 6)]  # (8 + 6) / 2
    assert [trunk.ended, second.ended, third.ended] == ["terminated"] * 3
    assert family_of(batch_of([trunk, second, third, failed])) == {
        frozenset({(0, 0), (1, 0)}),
        frozenset({(0, 2), (2, 2)}),
        frozenset({(1, 2)}),
    }


def test_nobody_forks_where_nobody_learns() -> None:
    runner, _ = runner_of(chain)
    [trunk] = forks(runner, samples=3, learn={"someone-else"})
    assert trunk.credits == (7, 7, 7)


def test_a_task_that_comes_twice_grows_two_trees() -> None:
    runner, _ = runner_of(by_luck, env=Worth())
    found = forks(runner, samples=2, tasks=[TASK, TASK])
    assert [(episode.sample, episode.trunk) for episode in found] == [(0, None), (1, 0), (2, None), (3, 2)]
    for family in family_of(batch_of(found)):
        assert len({e // 2 for e, _ in family}) == 1


def test_trees_of_several_tasks_are_given_back_in_their_order() -> None:
    """One trunk fails, and the others keep their own forks."""
    tasks = [Task(id=name, prompt=f"{name}?") for name in ("x", "y", "z")]

    def script(request: Request) -> str:
        return "!" if "y?" in request.messages[1].content else by_luck(request)

    runner, _ = runner_of(script)
    found = forks(runner, samples=3, tasks=tasks)
    assert [(episode.task.id, episode.sample, episode.ended == "failed") for episode in found] == [
        *(("x", i, False) for i in range(3)),
        ("y", 0, True),
        *(("z", i, False) for i in range(3)),
    ]
    for trunk, *branches in (found[:3], found[4:]):
        for branch in branches:
            assert branch.turns[: branch.forked_at] == trunk.turns[: branch.forked_at]
