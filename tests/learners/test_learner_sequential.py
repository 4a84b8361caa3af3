"""Agents updated one after the other on one batch: who comes later learns against the others as they now are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from lessons import (
    DUO,
    GRPO,
    SCRIPTS,
    TOKEN,
    Lesson,
    Seat,
    episode,
    episodes,
    lesson_of,
    make_batch,
    make_learner,
    make_team,
    said_in,
    score,
    seat,
    snapshot,
    update,
)
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.batch import Batch
from marft.learners.base import Steps
from marft.learners.local import LocalLearner
from marft.models.team import TeamModel
from marft.types import Episode

LR = 0.003  # enough to be seen in the ratios after one step
TRIO = ("planner", "solver", "judge")


def one_by_one(*names: str) -> Steps:
    return tuple(frozenset({name}) for name in names)


def play(members: Sequence[Seat]) -> list[Episode]:
    """Two tasks, so that there are advantages of both signs; in one episode the planner says nothing."""
    scripts = [*SCRIPTS[:2], (SCRIPTS[2][0][1:2], 0.5), (SCRIPTS[2][0], 0.0)]
    return [episode(members, script, reward) for script, reward in scripts]


def prepare(
    agents: Sequence[str] = DUO, **settings: object
) -> tuple[TeamModel, LocalLearner, Sequence[Episode], Batch]:
    team = make_team(agents, critics=())
    members = seat(team, critic=None)
    learner = make_learner(members, GRPO, lr=dict.fromkeys(agents, LR), grad_clip=1e9, weight_decay=0.0, **settings)
    played = play(members)
    if "judge" in agents:
        played += [
            episode(members, [("planner", "12-4"), ("solver", "Answer: 8"), ("judge", "yes")], 1.0),
            episode(members, [("solver", "Answer: 9"), ("judge", "no")], 0.0),
        ]
    return team, learner, played, make_batch(members, played)


def moved(team: TeamModel, played: Sequence[Episode], agent: str, clip: float) -> Tensor:
    """exp(Σ ℓ_new − ℓ_old over the agent's tokens) of each episode, within 1/clip … clip; 1 without any."""
    found = []
    for one in played:
        ratios = [
            score(team, agent, turn.prompt_ids, turn.completion.token_ids) - torch.tensor(turn.completion.logprobs)
            for turn in one.turns
            if turn.agent == agent
        ]
        total = torch.cat(ratios).sum() if ratios else torch.zeros(())
        found.append(total.exp().clamp(1 / clip, clip))
    return torch.stack(found)


def multiplied(lesson: Lesson, factor_E: Tensor) -> Tensor:
    batch = lesson.batch
    return lesson.estimate.advantages_N * factor_E[batch.episode_K[batch.turn_N]]


def gradient_taken(learner: LocalLearner, name: str) -> list[Tensor]:
    """Of the one step that was taken: Adam's first moment is a tenth of it."""
    return [state["exp_avg"] * 10 for state in learner.optimizers[name].state.values()]


def assert_same_gradient(one: LocalLearner, other: LocalLearner, name: str) -> None:
    first, second = gradient_taken(one, name), gradient_taken(other, name)
    largest = max(float(gradient.abs().max()) for gradient in first)
    assert largest > 1e-3
    for ours, theirs in zip(first, second, strict=True):
        assert_close(ours, theirs, atol=1e-4 * largest, rtol=0)


@pytest.mark.parametrize("clip", [1e6, 1.2])
def test_the_second_agent_s_advantages_are_multiplied_by_how_the_first_moved(clip: float) -> None:
    _, learner, _, batch = prepare(factor_clip=clip)
    found = update(learner, lesson_of(learner, batch), one_by_one("planner", "solver"))

    team, by_hand, played, batch = prepare()
    lesson = lesson_of(by_hand, batch)
    update(by_hand, lesson, one_by_one("planner"))
    factor_E = moved(team, played, "planner", clip)
    assert factor_E[2] == 1  # where the planner said nothing
    assert len(factor_E.unique()) >= 3
    assert (clip == 1.2) == bool(
        (factor_E.log().abs() > math.log(clip) - 1e-6).any()
    )  # with the narrow clip some are cut
    update(by_hand, lesson_of(by_hand, batch, advantages=multiplied(lesson, factor_E)), one_by_one("solver"))
    for name in DUO:
        assert_same_gradient(learner, by_hand, name)

    _, plain, _, batch = prepare()
    for name in DUO:
        update(plain, lesson_of(plain, batch), one_by_one(name))
    with pytest.raises(AssertionError, match="not close"):  # the factor is no trifle
        assert_same_gradient(learner, plain, "solver")
    torch.testing.assert_close(found.factor_E, factor_E, rtol=1e-4, atol=0)


def test_a_third_agent_learns_against_the_first_two() -> None:
    """M³ = M² · ρ₂, and the figure is what the last agent learnt with."""
    _, learner, _, batch = prepare(TRIO, factor_clip=1.5)
    found = update(learner, lesson_of(learner, batch), one_by_one(*TRIO))
    team, by_hand, played, batch = prepare(TRIO)
    lesson = lesson_of(by_hand, batch)
    factor_E = torch.ones(6)
    for name in TRIO:
        update(by_hand, lesson_of(by_hand, batch, advantages=multiplied(lesson, factor_E)), one_by_one(name))
        assert_same_gradient(learner, by_hand, name)
        if name != TRIO[-1]:
            factor_E = factor_E * moved(team, played, name, 1.5)
    torch.testing.assert_close(found.factor_E, factor_E, rtol=1e-4, atol=0)


def test_a_fork_is_moved_by_what_it_shares_with_its_trunk() -> None:
    """The plan stands once in the batch, and the solutions that follow it, siblings, have one factor."""
    team, learner, *_ = prepare(factor_clip=100.0)
    members = seat(team, critic=None)
    trunk, other = (episode(members, script, reward) for script, reward in SCRIPTS[:2])
    fork = replace(episode(members, [SCRIPTS[0][0][0], ("solver", "Answer: 9")], 0.0), sample=1, trunk=0, forked_at=1)
    played = [trunk, replace(other, sample=2), fork]
    batch = make_batch(members, played)
    assert [turn.agent for turn in said_in(batch)] == ["planner", "solver", "planner", "solver", "solver"]
    found = update(learner, lesson_of(learner, batch), one_by_one("planner", "solver"))
    factor_E = moved(team, played, "planner", 100.0)
    assert factor_E[0] == factor_E[2] != 1
    torch.testing.assert_close(found.factor_E, factor_E, rtol=1e-4, atol=0)


def test_an_engine_s_rounding_is_no_movement() -> None:
    """Log-probs that are off by a hundredth a token would add up over a long turn."""
    factors = []
    for off in (0.0, 0.01):
        _, learner, _, batch = prepare(factor_clip=1e6)
        g = torch.Generator().manual_seed(0)
        rounded = replace(batch, old_N=batch.old_N + off * torch.randn(batch.old_N.shape, generator=g))
        lesson = lesson_of(learner, batch)
        lesson = replace(lesson, data=replace(lesson.data, batch=rounded))
        factors.append(update(learner, lesson, (frozenset[str](), frozenset({"solver"}))).factor_E)
    for factor_E in factors:
        assert factor_E is not None
        assert torch.equal(factor_E, torch.ones_like(factor_E))  # nobody has moved before the solver
    _, learner, _, batch = prepare(factor_clip=1e6)
    own_N = learner.logprobs(batch)
    off = replace(batch, old_N=batch.old_N + 0.5)
    update(learner, lesson_of(learner, batch), one_by_one("planner"))
    found = learner._factor(off, torch.ones(len(batch.task_E)), {"planner"}, own_N)
    assert_close(found, learner._factor(batch, torch.ones(len(batch.task_E)), {"planner"}, own_N))


@pytest.mark.parametrize("order", [DUO, DUO[::-1]])
def test_the_first_agent_learns_as_if_it_were_alone(order: tuple[str, ...]) -> None:
    _, learner, _, batch = prepare()
    update(learner, lesson_of(learner, batch), one_by_one(*order))
    _, alone, _, batch = prepare()
    update(alone, lesson_of(alone, batch), one_by_one(order[0]))
    assert_same_gradient(learner, alone, order[0])


def test_critics_learn_once_however_many_steps_there_are() -> None:
    teams = []
    for steps in (one_by_one(*DUO), (frozenset(DUO),)):
        team = make_team()
        members = seat(team)
        learner = make_learner(members, TOKEN, epochs=2, minibatches=3)
        batch = make_batch(members, episodes(members))
        found = update(learner, lesson_of(learner, batch), steps)
        assert {int(state["step"]) for state in learner.optimizers["critic"].state.values()} == {6}
        assert [found.statistics[name]["steps"] for name in DUO] == [6, 6]
        assert (found.factor_E is not None) == (len(steps) == 2)
        teams.append(team)
    one, two = (snapshot(team, "critic") for team in teams)
    assert all(torch.allclose(one[key], two[key], atol=1e-5) for key in one)


def test_a_step_touches_only_its_own_adapters() -> None:
    team, learner, _, batch = prepare()
    before = snapshot(team, "solver")
    found = update(learner, lesson_of(learner, batch), one_by_one("planner")).statistics
    assert all(torch.equal(before[key], tensor) for key, tensor in snapshot(team, "solver").items())
    assert (found["solver"]["steps"], found["solver"]["grad_norm"]) == (0, 0)
    assert not learner.optimizers["solver"].state
