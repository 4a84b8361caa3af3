"""Agents that share an adapter: its gradient is the sum of theirs, weighted as the aggregation says."""

from __future__ import annotations

import pytest
import torch
from lessons import (
    GRPO,
    TOKEN,
    assert_same,
    changed,
    episodes,
    gradients,
    learn,
    lesson_of,
    make_batch,
    make_learner,
    make_team,
    only,
    said_in,
    seat,
    snapshot,
)
from torch import Tensor

from marft.algorithms.losses import Aggregation
from marft.models.team import TeamModel

OWN = {"planner": "planner", "solver": "solver"}
SHARED = {"planner": "planner", "solver": "planner"}


def twins() -> TeamModel:
    """Two adapters with the same weights: agents that share the first say what agents with one each would say."""
    team = make_team()
    with torch.no_grad():
        for key, parameter in team.trainable_parameters("solver").items():
            parameter.copy_(team.trainable_parameters("planner")[key])
    return team


@pytest.mark.parametrize("aggregation", ["token", "turn", "agent"])
def test_the_gradient_of_a_shared_adapter_is_that_of_its_agents_together(aggregation: Aggregation) -> None:
    team = twins()
    algorithm = TOKEN.model_copy(update={"aggregation": aggregation})
    found = {}
    for adapters in (OWN, SHARED):
        members = seat(team, adapters)
        batch = make_batch(members, episodes(members))
        learner = make_learner(members, algorithm)
        found[len(set(adapters.values()))] = gradients(learner, lesson_of(learner, batch))
    apart, together = found[2], found[1]
    # apart, each adapter's weights sum to 1; together, all of them do
    turns = {"planner": 4, "solver": 3}
    tokens = {a: sum(len(turn.ids) for turn in said_in(batch) if turn.agent == a) for a in turns}
    assert tokens["planner"] != tokens["solver"]
    share = {"token": tokens, "turn": turns, "agent": dict.fromkeys(turns, 1)}[aggregation]
    expected: dict[str, Tensor] = {}
    for key, planner in only(apart, "planner").items():
        solver = apart[key.replace("planner/", "solver/")]
        expected[key] = (share["planner"] * planner + share["solver"] * solver) / sum(share.values())
    assert_same(only(together, "planner"), expected)
    assert only(together, "solver") == {}
    assert_same(only(together, "critic"), only(apart, "critic"))  # who speaks with what is nothing to the critic


def test_a_shared_adapter_has_one_optimizer_and_takes_one_step_a_minibatch() -> None:
    team = make_team(("both", "spare"))
    members = seat(team, {"planner": "both", "solver": "both"}, critic=None)
    before = {name: snapshot(team, name) for name in team.adapters}
    learner = make_learner(members, GRPO, epochs=2, minibatches=3)
    assert list(learner.optimizers) == list(learner.adapters()) == ["both"]
    found = learn(learner, make_batch(members, episodes(members)))
    [taken] = {int(state["step"]) for state in learner.optimizers["both"].state.values()}
    assert 0 < taken <= 6  # none where a minibatch has no gradient
    assert found["planner"]["steps"] == found["solver"]["steps"] == 6
    assert found["planner"]["grad_norm"] == found["solver"]["grad_norm"] > 0
    assert found["planner"]["kl"] != found["solver"]["kl"]  # but what they say is each one's own
    assert [name for name in before if changed(team, name, before[name])] == ["both"]
