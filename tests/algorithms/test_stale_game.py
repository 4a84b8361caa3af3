"""Games small enough to enumerate, played by μ and learnt by π: the decoupled loss against exact policy gradients.

The surrogate of every possible play weighs its probability under μ, so the expectation is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import cast

import pytest
import torch
from samples import ACTION, AT_TOKENS, METHODS, experience, name
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch, Estimate
from marft.algorithms.decoupled import decouple

NO_LIMIT = 1e9
BY_SUM = ACTION.model_copy(update={"normalise": "sum"})
Play = tuple[int, int, int, int]
PLAYS = [cast(Play, play) for play in product((0, 1), repeat=4)]
REWARD = torch.tensor([[1.0, 0.0, 0.5, -0.5], [0.25, -1.0, 2.0, 0.0], [0.0, 0.75, -0.25, 1.0], [-1.5, 1.0, 0.0, 0.5]])
SPEAKERS = (0, 0, 1, 1)  # of the four tokens


def expected_step(
    method: Algorithm,
    batch: Batch,
    logprobs_N: Tensor,
    rewards_N: Tensor,
    chance_N: Tensor,
    correction: float | None,
) -> Tensor:
    """−L, the objective whose gradient is the mean step uphill; `batch` holds log μ. Without a correction it is re-based on π
    all the same, but not weighted."""
    found = decouple(batch, logprobs_N.detach(), method.ratio, correction or NO_LIMIT)
    estimate = Estimate(advantages_N=rewards_N)
    estimate = estimate if correction is None else found.weighted(estimate)
    surrogate = method.surrogate(
        logprobs_N, found.batch.old_N, estimate.advantages_N, chance_N, batch.turn_N, batch.words_K
    )
    return -surrogate.loss


# --- a bandit ---------------------------------------------------------------------------------------------------------
ARMS = torch.tensor([1.0, 0.25, -0.5]).double()
STALE = torch.tensor([0.6, 0.3, 0.1]).double()  # μ


def bandit(method: Algorithm, correction: float | None) -> tuple[Tensor, Tensor]:
    """The expected step in the logits of π = (0.2, 0.3, 0.5), and the policy gradient π_i (r_i − J)."""
    pi = torch.tensor([0.2, 0.3, 0.5]).double()
    logits = pi.log().requires_grad_()
    batch = replace(experience([[1]] * 3, [0.0] * 3).batch, old_N=STALE.log())
    step = expected_step(method, batch, logits.log_softmax(0), ARMS, STALE, correction)
    return torch.autograd.grad(step, logits)[0], pi * (ARMS - (pi * ARMS).sum())


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_a_bandit_is_climbed_as_if_it_had_been_played_by_the_learner(method: Algorithm) -> None:
    found, gradient = bandit(method, NO_LIMIT)
    assert gradient.tolist() == pytest.approx([0.195, 0.0675, -0.2625])  # J = 0.025
    assert_close(found, gradient)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_without_weights_it_is_not(method: Algorithm) -> None:
    """Re-based on π and not weighted, it climbs Σ μ(a) r(a) ∇ log π(a): μ_i r_i − π_i Σ μ r, with Σ μ r = 0.625."""
    found, gradient = bandit(method, None)
    assert found.tolist() == pytest.approx([0.475, -0.1125, -0.3625])
    assert (found - gradient).abs().max() > 0.1


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_truncated_by_hand(method: Algorithm) -> None:
    """π/μ = 1/3, 1, 5. With C = 2 the third arm pulls as if π were 0.2: Σ_a v_a r_a (1[a = i] − π_i), v = 0.2, 0.3, 0.2."""
    found, _ = bandit(method, 2.0)
    v = torch.tensor([0.2, 0.3, 0.2]).double()
    pulls = torch.tensor([0.2, 0.3, 0.5]).double() * 0.175  # Σ v r = 0.2 + 0.075 − 0.1
    assert_close(found, v * ARMS - pulls)


# --- two agents, two turns of two tokens ------------------------------------------------------------------------------
class Tables:
    """Logits of each token given all tokens before it: [1, 2], [2, 2], [4, 2] and [8, 2]."""

    def __init__(self, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        self.logits = [torch.randn(2**t, 2, generator=g).double().requires_grad_() for t in range(4)]

    def logprobs(self, play: Play) -> list[Tensor]:
        before = [sum(bit << i for i, bit in enumerate(reversed(play[:t]))) for t in range(4)]
        return [self.logits[t].log_softmax(1)[before[t], play[t]] for t in range(4)]


def reward(play: Play) -> float:
    return float(REWARD[2 * play[0] + play[1], 2 * play[2] + play[3]])


def mixed(pi: Tables, mu: Tables, fresh: Callable[[int], bool]) -> Tables:
    """π's tables where `fresh`, else μ's."""
    both = Tables(0)
    both.logits = [pi.logits[t] if fresh(t) else mu.logits[t].detach() for t in range(4)]
    return both


def value(team: Tables) -> Tensor:
    """J = Σ over all plays of their probability and reward."""
    return torch.stack([torch.stack(team.logprobs(play)).sum().exp() * reward(play) for play in PLAYS]).sum()


def game_step(method: Algorithm, pi: Tables, mu: Tables, correction: float | None = NO_LIMIT) -> Sequence[Tensor]:
    played = experience([[2, 2]] * len(PLAYS), [reward(play) for play in PLAYS]).batch
    log_mu = [torch.stack(mu.logprobs(play)).detach() for play in PLAYS]
    batch = replace(played, old_N=torch.cat(log_mu))
    logprobs = torch.cat([torch.stack(pi.logprobs(play)) for play in PLAYS])
    rewards = torch.tensor([reward(play) for play in PLAYS]).double().repeat_interleave(4)
    chances = torch.stack([one.sum().exp() for one in log_mu]).repeat_interleave(4)
    return torch.autograd.grad(expected_step(method, batch, logprobs, rewards, chances, correction), pi.logits)


def closed_form(pi: Tables, mu: Tables, corrected: Callable[[int, int], bool]) -> list[Tensor]:
    """Of each table the gradient of J, with π where a correction reaches and the others as they played."""
    return [
        torch.autograd.grad(value(mixed(pi, mu, lambda other, t=t: corrected(t, other))), pi.logits[t])[0]  # type: ignore[misc]
        for t in range(4)
    ]


def same_speaker(t: int, other: int) -> bool:
    return SPEAKERS[t] == SPEAKERS[other]


def same_token(t: int, other: int) -> bool:
    return t == other


def test_an_action_s_weight_gives_each_agent_its_gradient_in_the_team_as_it_played() -> None:
    pi, mu = Tables(1), Tables(2)
    found, expected = game_step(BY_SUM, pi, mu), closed_form(pi, mu, same_speaker)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, atol=1e-6, rtol=1e-5)
    unweighted = game_step(BY_SUM, pi, mu, None)
    assert all((one - other).abs().max() > 1e-2 for one, other in zip(unweighted, expected, strict=True))


@pytest.mark.parametrize("method", AT_TOKENS, ids=name)
def test_a_token_s_weight_gives_it_its_gradient_with_all_others_as_they_were_drawn(method: Algorithm) -> None:
    pi, mu = Tables(1), Tables(2)
    found, expected = game_step(method, pi, mu), closed_form(pi, mu, same_token)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, atol=1e-6, rtol=1e-5)
    unweighted = game_step(method, pi, mu, None)
    assert all((one - other).abs().max() > 1e-2 for one, other in zip(unweighted, expected, strict=True))


@pytest.mark.parametrize("agent", [0, 1])
def test_where_one_agent_is_stale_it_gets_its_policy_gradient(agent: int) -> None:
    """With weights of actions it is exact; the tokens of a turn are then corrected together."""
    pi = Tables(1)
    mu = mixed(pi, Tables(2), lambda t: SPEAKERS[t] != agent)
    truth = torch.autograd.grad(value(pi), pi.logits)
    found = game_step(BY_SUM, pi, mu)
    for t in range(4):
        if SPEAKERS[t] == agent:
            assert_close(found[t], truth[t], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("method", [*AT_TOKENS, BY_SUM], ids=name)
def test_a_policy_that_plays_itself_gets_its_policy_gradient(method: Algorithm) -> None:
    pi = Tables(1)
    for one, other in zip(game_step(method, pi, pi), torch.autograd.grad(value(pi), pi.logits), strict=True):
        assert_close(one, other, atol=1e-6, rtol=1e-5)
