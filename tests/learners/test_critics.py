"""A critic for each agent: it judges and learns from its own agent's turns, whatever shares its passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lessons import (
    ACTION,
    DUO,
    SCRIPTS,
    TOKEN,
    Seat,
    assert_same,
    changed,
    differ,
    episode,
    episodes,
    gradients,
    lesson_of,
    make_batch,
    make_learner,
    make_team,
    only,
    said_in,
    seat,
    snapshot,
    update,
)
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.base import Algorithm
from marft.game.observation import central_state
from marft.models.scoring import Span, action_span, hidden_states

CRITICS = {"planner": "critic-planner", "solver": "critic-solver"}
BOTH = pytest.mark.parametrize("algorithm", [TOKEN, ACTION], ids=lambda a: type(a).__name__)


def judged() -> list[Seat]:
    return seat(make_team(critics=list(CRITICS.values())), critic=CRITICS)


def values_one_by_one(members: list[Seat], algorithm: Algorithm) -> Tensor:
    """Each turn alone, by the critic of its agent."""
    batch = make_batch(members, episodes(members))
    found = []
    for k, turn in enumerate(said_in(batch)):
        critic, team = CRITICS[turn.agent], members[0].team
        whole = action_span(critic, batch.states[k], turn.ids)
        span = whole if algorithm.values_at == "token" else Span(adapter=critic, ids=batch.states[k], asked=1)
        with torch.no_grad():
            found.append(team.values(critic, hidden_states(team, [span])))
    return torch.cat(found)


@BOTH
def test_every_turn_is_judged_by_its_agent_s_critic(algorithm: Algorithm) -> None:
    members = judged()
    batch = make_batch(members, episodes(members))
    expected = values_one_by_one(members, algorithm)
    for tokens in (8192, 64):
        found = make_learner(members, algorithm, tokens=tokens).values(batch)
        assert found is not None
        assert_close(found, expected, atol=1e-5, rtol=0)


def test_value_heads_are_not_mixed_up() -> None:
    """Heads that are told apart at a glance, in one pass."""
    members = judged()
    heads = members[0].team.value_heads
    with torch.no_grad():
        heads["critic-planner"].bias.fill_(100.0)
        heads["critic-solver"].bias.fill_(-100.0)
    batch = make_batch(members, episodes(members))
    values = make_learner(members, ACTION).values(batch)
    assert values is not None
    assert (values > 0).tolist() == [turn.agent == "planner" for turn in said_in(batch)]


@BOTH
def test_one_mixed_pass_is_each_critic_s_own(algorithm: Algorithm) -> None:
    members = judged()
    learner = make_learner(members, algorithm)
    lesson = lesson_of(learner, make_batch(members, episodes(members)))
    mixed = gradients(learner, lesson)
    assert {key.partition("/")[0] for key in mixed} == {*DUO, *CRITICS.values()}
    for critic in CRITICS.values():
        alone = gradients(learner, lesson, learning={critic})
        assert_same(only(mixed, critic), alone)
    in_pieces = make_learner(members, algorithm, tokens=64)
    assert_same(mixed, gradients(in_pieces, lesson))


@BOTH
def test_a_critic_learns_from_its_own_agent_s_turns_alone(algorithm: Algorithm) -> None:
    """Other returns of the solver's turns change the solver's critic and no other."""
    members = judged()
    learner = make_learner(members, algorithm)
    lesson = lesson_of(learner, make_batch(members, episodes(members)))
    batch, returns = lesson.batch, lesson.estimate.returns
    assert returns is not None
    solver_K = batch.agent_K == 1
    solver = solver_K if algorithm.values_at == "turn" else solver_K[batch.turn_N]
    estimate = replace(lesson.estimate, returns=torch.where(solver, returns + 1, returns))
    other = replace(lesson, data=replace(lesson.data, estimate=estimate))
    before, after = gradients(learner, lesson), gradients(learner, other)
    assert_same(only(before, "critic-planner"), only(after, "critic-planner"))
    assert differ(only(before, "critic-solver"), only(after, "critic-solver"))


def test_a_critic_s_loss_is_a_mean_over_its_own_values() -> None:
    """By hand: ½(V − R)² over the solver's turns, however many the planner has."""
    members = judged()
    learner = make_learner(members, ACTION)
    lesson = lesson_of(learner, make_batch(members, episodes(members)))
    assert lesson.values is not None
    assert lesson.estimate.returns is not None
    found = update(learner, lesson, (frozenset(),)).statistics
    for i, critic in enumerate(CRITICS.values()):
        own = lesson.batch.agent_K == i
        expected = (0.5 * (lesson.values - lesson.estimate.returns)[own].square()).mean()
        assert found[critic]["loss"] == pytest.approx(float(expected), rel=1e-4)


def test_minibatches_without_its_agent_are_nothing_to_a_critic() -> None:
    """The solver acts in one episode of three: its critic takes one step, and its loss is that minibatch's."""
    members = judged()
    team = members[0].team
    alone = [episode(members, [("planner", text)], reward) for text, reward in (("17+5", 1.0), ("no", 0.0))]
    batch = make_batch(members, [*alone, episode(members, SCRIPTS[0][0], 1.0)])
    learner = make_learner(members, ACTION, minibatches=3, lr=dict.fromkeys([*DUO, *CRITICS.values()], 1e-9))
    lesson = lesson_of(learner, batch)
    assert lesson.values is not None
    assert lesson.estimate.returns is not None
    before = snapshot(team, "critic-solver")
    found = update(learner, lesson).statistics
    assert {int(state["step"]) for state in learner.optimizers["critic-solver"].state.values()} == {1}
    assert changed(team, "critic-solver", before)
    (k,) = (batch.agent_K == 1).nonzero()[0].tolist()
    error = float(0.5 * (lesson.values[k] - lesson.estimate.returns[k]).square())
    assert found["critic-solver"]["loss"] == pytest.approx(error, rel=1e-3)
    planner = (batch.agent_K == 0).nonzero()[:, 0]
    errors = 0.5 * (lesson.values - lesson.estimate.returns)[planner].square()
    assert found["critic-planner"]["loss"] == pytest.approx(float(errors.mean()), rel=1e-3)


@pytest.mark.parametrize("before", DUO)
def test_where_an_episode_is_cut_off_the_critic_of_whoever_is_next_speaks(before: str) -> None:
    members = judged()
    team = members[0].team
    cut = replace(episode(members, SCRIPTS[0][0], 0.0), ended="cut_off", cut_before=before)
    final = make_learner(members, ACTION).final_values(make_batch(members, [cut]))
    state = members[0].encode(central_state(task=cut.task, shown="", turns=cut.turns, next_agent=before))
    with torch.no_grad():
        hidden = hidden_states(team, [Span(adapter=CRITICS[before], ids=state, asked=1)])
        expected = team.values(CRITICS[before], hidden)
        other = team.values(next(c for c in CRITICS.values() if c != CRITICS[before]), hidden)
    assert_close(final, expected, atol=1e-5, rtol=0)
    assert (expected - other).abs().min() > 1e-3
