"""Agents on two base models with different tokenizers, sizes and critics, trained in one update."""

from __future__ import annotations

import pytest
import torch
from known_answers.tiny import model_folder
from lessons import (
    ACTION,
    GRPO,
    TOKEN,
    Seat,
    assert_same,
    changed,
    episode,
    gradients,
    lesson_of,
    make_batch,
    make_learner,
    make_team,
    only,
    said_in,
    score,
    seat,
    snapshot,
    update,
)
from torch.testing import assert_close

from marft.algorithms.base import Algorithm
from marft.models.scoring import Span, action_span, hidden_states
from marft.models.team import TeamModel
from marft.types import Episode

Bases = tuple[TeamModel, TeamModel]


def bases() -> Bases:
    """The planner on nano, the solver on a model of a dozen words; each base also has an adapter that nobody trains."""
    nano = make_team(("planner", "idle"))
    tiny = make_team(("solver", "frozen"), critics=("critic-1",), model=str(model_folder()), stir=0.5)
    return nano, tiny


def team_on(both: Bases, *, critic: bool = True) -> list[Seat]:
    nano, tiny = both
    return [
        *seat(nano, ["planner"], critic="critic" if critic else None, temperature=0.6),
        *seat(tiny, ["solver"], critic="critic-1" if critic else None, temperature=0.7),
    ]


def play(members: list[Seat]) -> list[Episode]:
    return [
        episode(members, [("planner", "17+5"), ("solver", "red blue 1")], 1.0),
        episode(members, [("solver", "2"), ("planner", "Be careful."), ("solver", "0 cat")], 0.0),
        episode(members, [("planner", "12-4"), ("solver", "1 1")], 0.5),
    ]


def test_the_bases_have_nothing_in_common() -> None:
    nano, tiny = bases()
    assert len(nano.tokenizer) != len(tiny.tokenizer)
    assert nano.config.hidden_size != tiny.config.hidden_size
    members = team_on((nano, tiny))
    planner, solver = play(members)[0].turns
    assert nano.tokenizer.decode(list(planner.completion.token_ids)) == "17+5<|im_end|>"
    assert solver.completion.token_ids == tuple(tiny.tokenizer.convert_tokens_to_ids(["red", "blue", "1", "<end>"]))


@pytest.mark.parametrize("algorithm", [TOKEN, ACTION, GRPO], ids=lambda a: type(a).__name__)
def test_one_update_trains_both_and_touches_nothing_else(algorithm: Algorithm) -> None:
    both = bases()
    members = team_on(both, critic=algorithm.values_at is not None)
    learner = make_learner(members, algorithm)
    lesson = lesson_of(learner, make_batch(members, play(members)))
    before = {name: snapshot(team, name) for team in both for name in team.adapters}
    weights = [[p.detach().clone() for p in team.base.parameters() if not p.requires_grad] for team in both]
    found = update(learner, lesson)
    moved = [name for team in both for name in team.adapters if changed(team, name, before[name])]
    assert moved == (["planner", "critic", "solver", "critic-1"] if algorithm.values_at else ["planner", "solver"])
    for team, known in zip(both, weights, strict=True):
        now = [p for p in team.base.parameters() if not p.requires_grad]
        assert all(torch.equal(a, b) for a, b in zip(known, now, strict=True))
    for name in ("planner", "solver"):
        assert found.statistics[name]["kl"] == pytest.approx(0, abs=1e-7)  # each scored by its own base
        assert found.statistics[name]["steps"] == 1


@pytest.mark.parametrize("algorithm", [TOKEN, ACTION], ids=lambda a: type(a).__name__)
def test_values_come_in_the_order_of_the_turns(algorithm: Algorithm) -> None:
    members = team_on(bases())
    batch = make_batch(members, play(members))
    found = make_learner(members, algorithm).values(batch)
    expected = []
    seats = {member.agent: member for member in members}
    for k, turn in enumerate(said_in(batch)):
        member = seats[turn.agent]
        assert member.critic is not None
        whole = action_span(member.critic, batch.states[k], turn.ids)
        span = whole if algorithm.values_at == "token" else Span(adapter=member.critic, ids=batch.states[k], asked=1)
        with torch.no_grad():
            expected.append(member.team.values(member.critic, hidden_states(member.team, [span])))
    assert found is not None
    assert_close(found, torch.cat(expected), atol=1e-5, rtol=0)


def test_the_reference_is_each_agent_s_own_base() -> None:
    members = team_on(bases())
    batch = make_batch(members, play(members))
    found = make_learner(members).reference(batch)
    seats = {member.agent: member for member in members}
    expected = [
        score(seats[turn.agent].team, None, turn.prompt, turn.ids, seats[turn.agent].temperature)
        for turn in said_in(batch)
    ]
    assert_close(found, torch.cat(expected), atol=2e-5, rtol=0)
    solver = found[batch.starts_K[1] : batch.starts_K[1] + batch.length_K[1]]
    # the tiny base knows nothing, so that all its tokens are equally likely
    assert_close(solver, torch.full_like(solver, -float(torch.tensor(16.0).log())), atol=1e-5, rtol=0)


def test_a_base_s_gradients_are_what_they_would_be_without_the_other() -> None:
    members = team_on(bases())
    learner = make_learner(members)
    lesson = lesson_of(learner, make_batch(members, play(members)))
    mixed = gradients(learner, lesson)
    for own in ({"planner", "critic"}, {"solver", "critic-1"}):
        alone = gradients(learner, lesson, learning=own)
        for name in own:
            assert_same(only(mixed, name), only(alone, name))


def test_who_comes_later_on_another_base_learns_against_the_first() -> None:
    both = bases()
    members = team_on(both, critic=False)
    learner = make_learner(members, GRPO, lr={"planner": 0.003, "solver": 0.003}, factor_clip=100.0)
    played = play(members)
    batch = make_batch(members, played)
    found = update(learner, lesson_of(learner, batch), (frozenset({"planner"}), frozenset({"solver"})))
    products = []
    for one in played:
        [turn] = [turn for turn in one.turns if turn.agent == "planner"]
        new = score(both[0], "planner", turn.prompt_ids, turn.completion.token_ids, 0.6)
        products.append((new - torch.tensor(turn.completion.logprobs)).sum().exp())
    torch.testing.assert_close(found.factor_E, torch.stack(products).clamp(0.01, 100), rtol=1e-4, atol=0)
    assert torch.stack(products).std() > 0.01
