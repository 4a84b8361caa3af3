"""Which turns are steps of time: what agents do, once where they do it at once; and what `step_discounted` makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import toys
from lessons import Seat, make_batch
from test_tools import Calls, armed
from voices import in_turn, run, team

from marft.game.play import Game
from marft.game.workflows import Workflow, find_workflow
from marft.rollouts.credit import StepDiscounted
from marft.types import Episode, Reward


class Pays(toys.Echo):
    def reward(self, state: str) -> Reward:
        return Reward(team=8.0)


def steps(episode: Episode) -> list[str]:
    return [turn.step for turn in episode.turns]


def scores(episode: Episode) -> dict[tuple[str, int], float]:
    """What an agent's nth turn comes to, by `step_discounted` with β = ½, where everybody in the team learns."""
    members = [
        Seat(agent=name, adapter=name, critic=None, team=None, encode=lambda _: (), temperature=1.0)  # type: ignore[arg-type]
        for name in "abcd"
    ]
    batch = make_batch(members, [episode], StepDiscounted(beta=0.5))
    turns = [episode.turns[index] for index in batch.index_K.tolist()]
    return {(turn.agent, turn.nth): score for turn, score in zip(turns, batch.returns_to_go().tolist(), strict=True)}


@pytest.mark.parametrize(
    ("workflow", "names", "sees", "expected"),
    [
        (find_workflow("sequential"), "abc", {}, {("a", 0): 2, ("b", 0): 4, ("c", 0): 8}),
        # a and b at once, then c, then d
        (
            find_workflow("dag"), "abcd", {"c": ("a", "b"), "d": ("c",)},
            {("a", 0): 2, ("b", 0): 2, ("c", 0): 4, ("d", 0): 8},
        ),
        # two rounds of a and b at once, then the judge
        (
            find_workflow("debate", {"rounds": 2}), "abc", {},
            {("a", 0): 2, ("b", 0): 2, ("a", 1): 4, ("b", 1): 4, ("c", 0): 8},
        ),
        # everybody at once; the majority is nobody's act
        (find_workflow("vote", {"votes": 2}), "ab", {}, {(name, nth): 8 for name in "ab" for nth in (0, 1)}),
    ],
    ids=["sequential", "dag", "debate", "vote"],
)  # fmt: skip
def test_step_discounted_of_every_workflow_by_hand(
    workflow: Workflow, names: str, sees: dict[str, Sequence[str]], expected: dict[tuple[str, int], float]
) -> None:
    views = {name: tuple(sees.get(name, ())) for name in names} if sees else {}
    assert scores(run(team(*names, **views), workflow, env=Pays())) == expected


def test_a_tools_answer_is_no_step() -> None:
    voice = Calls(in_turn("Hm. <mirror>abc", "cba it is", "yes"))
    episode = run(armed(team("a", "b", voice=voice), "a"), env=Pays())
    assert [turn.agent for turn in episode.turns] == ["a", "mirror", "a", "b"]
    assert steps(episode) == ["next", "none", "next", "next"]
    assert scores(episode) == {("a", 0): 2, ("a", 1): 4, ("b", 0): 8}


def test_calls_at_once_are_one_step_and_so_are_those_who_speak_on() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a", "b", "c")

    voice = Calls(in_turn("<mirror>x", "<loud>y", "no tool", "x!", "Y!"))
    episode = run(armed(team("a", "b", "c", voice=voice), "a", "b"), workflow, env=Pays())
    assert [turn.agent for turn in episode.turns] == ["a", "b", "c", "mirror", "loud", "a", "b"]
    assert steps(episode) == ["next", "same", "same", "none", "none", "next", "same"]
    assert scores(episode) == {("a", 0): 4, ("b", 0): 4, ("c", 0): 4, ("a", 1): 8, ("b", 1): 8}


def test_what_the_workflow_says_is_no_step() -> None:
    async def workflow(game: Game) -> None:
        await game.say("referee", "begin")
        await game.act("a")
        await game.say("referee", "go on")
        await game.act("b")

    episode = run(team("a", "b"), workflow, env=Pays())
    assert steps(episode) == ["none", "next", "none", "next"]
    assert scores(episode) == {("a", 0): 4, ("b", 0): 8}


def test_a_fork_between_two_who_speak_at_once_keeps_its_steps() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a", "b")
        await game.act("c")

    whole = run(team("a", "b", "c"), workflow)
    fork = run(team("a", "b", "c"), workflow, replayed=whole.turns[:1], trunk=0)
    assert steps(fork) == steps(whole) == ["next", "same", "next"]
