"""KL to the untrained base in the loss, and from the policy that played, written out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from lessons import (
    DUO,
    GRPO,
    SCRIPTS,
    Said,
    assert_same,
    episode,
    episodes,
    gradients,
    lesson_of,
    make_batch,
    make_learner,
    make_team,
    said_in,
    score,
    seat,
    update,
)
from torch import Tensor

from marft.algorithms.losses import KlKind
from marft.models.scoring import action_span, hidden_states, logprobs
from marft.models.team import TeamModel


# --- to the untrained base --------------------------------------------------------------------------------------------
def distance(team: TeamModel, turn: Said) -> Tensor:
    """d = ℓ_ref − ℓ of each token, with the adapter's graph."""
    hidden = hidden_states(team, [action_span(turn.agent, turn.prompt, turn.ids)])
    new, _ = logprobs(team, hidden, torch.tensor(turn.ids), torch.ones(len(turn.ids)))
    return score(team, None, turn.prompt, turn.ids) - new


def by_hand(d: Tensor, kind: KlKind) -> Tensor:
    return {"k1": -d, "k2": d * d / 2, "k3": d.exp() - d - 1}[kind]


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_a_kl_in_the_loss_is_its_estimator_s_mean(kind: KlKind) -> None:
    """One episode is a group of one, so that the KL is all there is: its gradient is autograd's of the formula."""
    team = make_team()
    members = seat(team, critic=None)
    batch = make_batch(members, [episode(members, SCRIPTS[0][0], 1.0)])
    learner = make_learner(members, GRPO, kl_estimator=kind)
    lesson = replace(lesson_of(learner, batch, kl=1.0), kl={"planner": 1.0, "solver": 0.25})  # each has its own
    found = gradients(learner, lesson)

    loss = torch.zeros(())
    for turn, weight in zip(said_in(batch), (1.0, 0.25), strict=True):
        loss = loss + weight * by_hand(distance(team, turn), kind).mean()
    loss.backward()
    expected = {}
    for name in DUO:
        for key, parameter in team.trainable_parameters(name).items():
            assert parameter.grad is not None
            expected[f"{name}/{key}"], parameter.grad = parameter.grad, None
    assert_same(found, expected)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_the_kl_that_is_written_down_is_each_agent_s_mean(kind: KlKind) -> None:
    team = make_team()
    members = seat(team, critic=None)
    batch = make_batch(members, episodes(members))
    learner = make_learner(members, GRPO, kl_estimator=kind)
    with torch.no_grad():
        each = [by_hand(distance(team, turn), kind) for turn in said_in(batch)]
    found = update(learner, lesson_of(learner, batch, kl=0.5)).statistics
    for agent in DUO:
        tokens = torch.cat([kl for kl, turn in zip(each, said_in(batch), strict=True) if turn.agent == agent])
        assert found[agent]["reference_kl"] == pytest.approx(float(tokens.mean()), rel=1e-4)


def test_without_a_kl_nothing_pulls_back() -> None:
    members = seat(make_team(), critic=None)
    learner = make_learner(members, GRPO)
    batch = make_batch(members, [episode(members, SCRIPTS[0][0], 1.0)])
    assert all(float(g.abs().max()) == 0 for g in gradients(learner, lesson_of(learner, batch)).values())


# --- to the policy that played ----------------------------------------------------------------------------------------
def test_the_kl_from_the_old_policy_is_measured_where_the_tokens_were_drawn() -> None:
    """By hand after one step: e^d − d − 1 with d = ℓ_new − ℓ_old, the mean over the agent's tokens, over both epochs."""
    team = make_team()
    members = seat(team, critic=None)
    batch = make_batch(members, episodes(members))
    lr = {"planner": 0.01, "solver": 0.01}
    learner = make_learner(members, GRPO, lr=lr)
    lesson = lesson_of(learner, batch)
    first = update(learner, lesson).statistics
    assert first["solver"]["kl"] == pytest.approx(0, abs=1e-7)
    expected: dict[str, list[Tensor]] = {name: [] for name in DUO}
    for turn in said_in(batch):
        d = score(team, turn.agent, turn.prompt, turn.ids) - turn.logprobs
        expected[turn.agent].append(d.exp() - d - 1)
    second = update(learner, lesson).statistics
    for name in DUO:
        kl = float(torch.cat(expected[name]).mean())
        assert kl > 1e-4
        assert second[name]["kl"] == pytest.approx(kl, rel=1e-3)
