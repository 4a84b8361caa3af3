"""Where episodes come from: which tasks, with whose luck, with which play-outs, and when there is nothing to learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toys
from quick import start, trainer_of
from toys import rows

import marft
from marft.game.play import Game
from marft.rollouts.source import EpisodeSource, OrderedSource, task_order
from marft.types import Episode, MarftError


class Steps(toys.Echo):
    """Rewards every turn with its number."""

    def reward(self, state: str) -> marft.Reward:
        return replace(super().reward(state), turns={0: 0.5, 1: 1.0})


class SometimesSteps(toys.Echo):
    """Rewards turns in some states only."""

    def reward(self, state: str) -> marft.Reward:
        found = super().reward(state)
        return replace(found, turns={0: 1.0}) if found.team > 0.5 else found


class Silence(toys.Echo):
    """Cannot judge."""

    def reward(self, state: str) -> marft.Reward:
        raise RuntimeError("illegible")


async def bob_alone(game: Game) -> None:
    await game.act("bob")


def source_of(**changes: Any) -> EpisodeSource:
    return trainer_of(Path("some/run"), **changes).source


def played(source: EpisodeSource, iteration: int = 0, play: int = 0, tasks_drawn: int = 0) -> list[Episode]:
    """What the source plays once so many tasks have been drawn."""
    source.load_state_dict({"tasks_drawn": tasks_drawn})
    return list(source.next_batch(iteration, play).episodes)


def texts(episodes: list[Episode]) -> list[tuple[str, ...]]:
    return [tuple(turn.text for turn in episode.turns) for episode in episodes]


# --- tasks ------------------------------------------------------------------------------------------------------------
def test_task_order_is_a_permutation_of_its_seed_and_epoch() -> None:
    orders = [task_order(seed, epoch, 50) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 6
    assert task_order(1, 2, 50) == orders[-1]
    assert task_order(2**63 - 1, 5, 3)


def test_no_task_comes_twice_before_all_came_once(tmp_path: Path) -> None:
    train = {"tasks": 2, "samples": 1, "minibatches": 1, "iterations": 5}
    run = start(tmp_path / "run", train=train, algorithm="rae")
    drawn = [row["task"] for row in rows(run / "episodes.jsonl")]
    assert len(drawn) == 10
    first, second = drawn[:5], drawn[5:]
    assert sorted(first) == sorted(second) == [f"train/{i}" for i in range(5)]
    assert first != second


def test_a_task_that_comes_twice_in_an_iteration_is_sampled_afresh() -> None:
    """Five tasks, ten drawn: every episode has its own luck."""
    episodes = played(source_of(train={"tasks": 10, "samples": 2}))
    assert len(episodes) == 20
    assert len({(episode.task.id, episode.sample) for episode in episodes}) == 20


def test_resampled_plays_go_on_through_the_tasks(tmp_path: Path) -> None:
    """Two plays an iteration, two tasks each: the second iteration begins with the fifth of five tasks."""
    train = {"tasks": 2, "samples": 2, "minibatches": 1, "iterations": 2}
    run = start(tmp_path / "run", train=train, schedule="resample")
    assert [row["task"] for row in rows(run / "episodes.jsonl")[:8:2]] == [
        f"train/{i}" for i in (*task_order(0, 0, 5)[:2], task_order(0, 0, 5)[4], task_order(0, 1, 5)[0])
    ]  # fmt: skip


# --- luck -------------------------------------------------------------------------------------------------------------
def test_what_is_played_depends_on_the_position_alone() -> None:
    source = source_of()
    once = played(source, 3, tasks_drawn=6)
    played(source, 4, tasks_drawn=8)
    assert played(source, 3, tasks_drawn=6) == once


def test_a_source_knows_how_far_it_is() -> None:
    """Two tasks a batch: the second batch goes on where the first ended, in this run and in one that is resumed."""
    source, resumed = source_of(), source_of()
    assert isinstance(source, OrderedSource)
    source.next_batch(0)
    assert source.state_dict() == {"tasks_drawn": 2}
    resumed.load_state_dict(source.state_dict())
    second = source.next_batch(1)
    assert list(second.episodes) == list(resumed.next_batch(1).episodes) == played(source_of(), 1, tasks_drawn=2)
    assert source.tasks_drawn == 4
    assert len(second.batch.task_E) == len(second.learnt) == 4


def test_a_batch_that_failed_has_drawn_nothing() -> None:
    source = source_of(env="test_source:Silence")
    with pytest.raises(MarftError, match="episodes failed"):
        source.next_batch(0)
    assert source.state_dict() == {"tasks_drawn": 0}


@pytest.mark.parametrize("other", [(1, 0), (0, 1)])
def test_every_iteration_and_every_play_has_luck_of_its_own(other: tuple[int, int]) -> None:
    source = source_of()
    one, two = played(source), played(source, *other)
    assert [episode.task for episode in one] == [episode.task for episode in two]
    assert texts(one) != texts(two)


# --- play-outs --------------------------------------------------------------------------------------------------------
def test_credit_by_playing_on_is_worked_out_while_playing() -> None:
    plain = played(source_of())
    assert {episode.credits for episode in plain} == {None}
    blank = played(source_of(credit="difference"))
    assert texts(blank) == texts(plain)
    assert all(episode.credits is not None and episode.trunk is None for episode in blank)
    tree = played(source_of(credit="tree", train={"samples": 3}))
    assert [(episode.sample, episode.trunk) for episode in tree] == [(0, None), (1, 0), (2, 0)] * 2
    assert all(episode.credits is not None for episode in tree)


def test_only_those_who_learn_are_played_without() -> None:
    frozen = {"agents": {"ann": {"trainable": False}}}
    for episode in played(source_of(credit="difference", team=frozen)):
        assert episode.credits is not None
        assert episode.credits[0] == 0
    assert {e.forked_at for e in played(source_of(credit="tree", team=frozen))} == {0, 1}


# --- nothing to learn from --------------------------------------------------------------------------------------------
def one_line(**changes: Any) -> str:
    with pytest.raises(MarftError) as caught:
        played(source_of(**changes), iteration=6)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_per_step_without_rewards_of_turns_is_one_line() -> None:
    assert "credit: per_step needs rewards of single turns (Reward.turns)" in one_line(credit="per_step")
    for env in ("test_source:Steps", "test_source:SometimesSteps"):
        assert played(source_of(credit="per_step", env=env))


def test_per_step_scores_are_the_environment_s(tmp_path: Path) -> None:
    run = start(tmp_path / "run", credit="per_step", env="test_source:Steps", train={"iterations": 1})
    for row in rows(run / "episodes.jsonl"):
        assert [turn["reward"] for turn in row["turns"]] == [0.5, pytest.approx(1.0 + row["reward"])]


def test_nobody_who_learns_acts_is_one_line() -> None:
    line = "nobody who learns acted in any episode; the workflow must call game.act"
    assert one_line(team={"workflow": "toys:nobody"}) == line
    alone = {"workflow": "test_source:bob_alone", "agents": {"bob": {"trainable": False}}}
    assert one_line(team=alone) == line
    assert played(source_of(team={"workflow": "test_source:bob_alone"}))


def test_too_many_failures_are_one_line_that_says_how_to_go_on() -> None:
    line = one_line(env="test_source:Silence")
    assert line.startswith(
        "4 of 4 episodes failed in iteration 7; the first: environment.reward raised RuntimeError: illegible"
    )
    assert line.endswith("marft train --resume --run some/run")
