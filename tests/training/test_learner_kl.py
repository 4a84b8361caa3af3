"""KL to the untrained base in the loss, written out by hand, and the budget of KL from the policy that played."""

from __future__ import annotations

import pytest
import torch
from lessons import (
    DUO,
    GRPO,
    SCRIPTS,
    TOKEN,
    assert_same,
    episode,
    episodes,
    gradients,
    lesson_of,
    make_batch,
    make_learner,
    make_team,
    score,
    seat,
    snapshot,
    update,
)
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.losses import KlKind
from marft.models.scoring import action_span, hidden_states, logprobs
from marft.models.team import TeamModel
from marft.types import Turn


# --- to the untrained base --------------------------------------------------------------------------------------------
def distance(team: TeamModel, turn: Turn) -> Tensor:
    """d = ℓ_ref − ℓ of each token, with the adapter's graph."""
    ids = turn.completion.token_ids
    hidden = hidden_states(team, [action_span(turn.agent, turn.prompt_ids, ids)])
    new, _ = logprobs(team, hidden, torch.tensor(ids), torch.ones(len(ids)))
    return score(team, None, turn.prompt_ids, ids) - new


def by_hand(d: Tensor, kind: KlKind) -> Tensor:
    return {"k1": -d, "k2": d * d / 2, "k3": d.exp() - d - 1}[kind]


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_a_kl_in_the_loss_is_its_estimator_s_mean(kind: KlKind) -> None:
    """One episode is a group of one, so that the KL is all there is: its gradient is autograd's of the formula."""
    team = make_team()
    members = seat(team, critic=None)
    batch = make_batch(members, [episode(members, SCRIPTS[0][0], 1.0)])
    learner = make_learner(members, GRPO, kl_estimator=kind)
    lesson = lesson_of(learner, batch, kl=1.0)
    lesson.kl_weight_A[1] = 0.25  # each agent has a weight of its own
    found = gradients(learner, lesson)

    loss = torch.zeros(())
    for turn, weight in zip(batch.turns, (1.0, 0.25), strict=True):
        loss = loss + weight * by_hand(distance(team, turn), kind).mean()
    loss.backward()
    expected = {}
    for name in DUO:
        for key, parameter in team.parameters(name).items():
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
        each = [by_hand(distance(team, turn), kind) for turn in batch.turns]
    found = update(learner, lesson_of(learner, batch, kl=0.5)).statistics
    for agent in DUO:
        tokens = torch.cat([kl for kl, turn in zip(each, batch.turns, strict=True) if turn.agent == agent])
        assert found[agent]["reference_kl"] == pytest.approx(float(tokens.mean()), rel=1e-4)


def test_without_a_kl_nothing_pulls_back() -> None:
    members = seat(make_team(), critic=None)
    learner = make_learner(members, GRPO)
    batch = make_batch(members, [episode(members, SCRIPTS[0][0], 1.0)])
    assert all(float(g.abs().max()) == 0 for g in gradients(learner, lesson_of(learner, batch)).values())


# --- to the policy that played ----------------------------------------------------------------------------------------
def after(epochs: int, budget: float | None) -> tuple[TeamModel, dict[str, dict[str, float]], int]:
    """A planner in a hurry and a careful solver: what they are after so many epochs, the figures, and the tokens."""
    team = make_team()
    members = seat(team)
    lr = {"planner": 0.03, "solver": 1e-5, "critic": 1e-3}
    learner = make_learner(members, TOKEN, epochs=epochs, kl_budget=budget, lr=lr)
    done = update(learner, lesson_of(learner, make_batch(members, episodes(members))))
    return team, {name: dict(row) for name, row in done.statistics.items()}, done.tokens


def test_an_agent_that_passed_its_kl_budget_rests_while_the_others_go_on() -> None:
    """The second step sees a KL past the budget; it is computed and so it is taken, and it is the planner's last."""
    stopped, figures, _ = after(4, 1e-3)
    free, free_figures, _ = after(4, None)
    two, two_figures, _ = after(2, None)
    assert free_figures["planner"]["kl"] > 1e-3 > free_figures["solver"]["kl"]
    assert [figures[name]["steps"] for name in DUO] == [2, 4]
    for name, other in (("planner", two), ("solver", free), ("critic", free)):
        for key, tensor in snapshot(stopped, name).items():
            assert_close(tensor, snapshot(other, name)[key], atol=1e-6, rtol=0)
    assert figures["planner"]["kl"] == pytest.approx(two_figures["planner"]["kl"], rel=1e-4)
    moved = [
        not torch.allclose(a, b, atol=1e-4)
        for a, b in zip(snapshot(free, "planner").values(), snapshot(two, "planner").values(), strict=True)
    ]
    assert all(moved)  # it would have gone on


def test_no_pass_is_computed_for_an_agent_that_rests() -> None:
    _, _, stopped = after(4, 1e-3)
    _, _, free = after(4, None)
    members = seat(make_team())
    planner = [turn for one in episodes(members) for turn in one.turns if turn.agent == "planner"]
    assert free - stopped == 2 * sum(len(t.prompt_ids) + len(t.completion.token_ids) - 1 for t in planner)


def test_a_shared_adapter_rests_when_its_agents_together_passed_the_budget() -> None:
    members = seat(make_team(("both",)), {"planner": "both", "solver": "both"}, critic=None)
    batch = make_batch(members, episodes(members))
    learner = make_learner(members, GRPO, epochs=4, kl_budget=1e-4, lr={"both": 0.03})
    found = update(learner, lesson_of(learner, batch)).statistics
    assert [found[name]["steps"] for name in DUO] == [2, 2]


def test_a_budget_that_nobody_passes_changes_nothing() -> None:
    one, figures, _ = after(2, 1e9)
    two, _, _ = after(2, None)
    assert [figures[name]["steps"] for name in DUO] == [2, 2]
    for name in (*DUO, "critic"):
        other = snapshot(two, name)
        assert all(torch.equal(tensor, other[key]) for key, tensor in snapshot(one, name).items())


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
    for turn in batch.turns:
        new = score(team, turn.agent, turn.prompt_ids, turn.completion.token_ids)
        d = new - torch.tensor(turn.completion.logprobs)
        expected[turn.agent].append(d.exp() - d - 1)
    second = update(learner, lesson).statistics
    for name in DUO:
        kl = float(torch.cat(expected[name]).mean())
        assert kl > 1e-4
        assert second[name]["kl"] == pytest.approx(kl, rel=1e-3)
