"""A game small enough to enumerate: what each estimator is worth in expectation, against the exact policy gradient.

Agent 0 says 0 or 1, agent 1 hears it and says 0 or 1, the pair is paid REWARD[a0, a1]. A group is G plays; each of the
4^G possible groups is built, estimated and differentiated, and weighs what its probability is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch
from experience import Experience, estimated
from samples import (
    ACTION,
    DR_GRPO,
    GRPO,
    GSPO,
    METHODS,
    RAE,
    REINFORCE_PP,
    RLOO,
    TOKEN,
    WITH_CRITIC,
    episode,
    experience,
    name,
)
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.base import Algorithm
from marft.algorithms.credit import difference, tree_scores
from marft.algorithms.marft_action import MarftAction
from marft.algorithms.marft_token import MarftToken
from marft.algorithms.sequential import sequential_factor

REWARD = torch.tensor([[1.0, 0.0], [0.25, -0.5]])
BINARY = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
Play = tuple[int, int]
PLAYS: tuple[Play, ...] = ((0, 0), (0, 1), (1, 0), (1, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """log π_0(a0) and log π_1(a1 | a0), of logits that have gradients."""

    logits: tuple[Tensor, Tensor]

    @property
    def log_0(self) -> Tensor:
        return self.logits[0].log_softmax(0)

    @property
    def log_1(self) -> Tensor:
        return self.logits[1].log_softmax(1)

    def probability(self, play: Play) -> Tensor:
        return (self.log_0[play[0]] + self.log_1[play]).exp()

    def value(self, rewards: Tensor) -> Tensor:
        """J = Σ π_0(a0) π_1(a1 | a0) R(a0, a1)."""
        return (self.log_0.exp()[:, None] * self.log_1.exp() * rewards).sum()

    def gradient(self, of: Tensor) -> Tensor:
        found = torch.autograd.grad(of, self.logits, retain_graph=True)
        return torch.cat([x.flatten() for x in found])


def policies(first: float = 0.0) -> Policies:
    logits = torch.tensor([0.3 + first, -0.4]).double(), torch.tensor([[0.8, 0.1], [-0.6, 0.5]]).double()
    return Policies(logits=(logits[0].requires_grad_(), logits[1].requires_grad_()))


def groups(size: int) -> Iterator[tuple[Play, ...]]:
    return product(PLAYS, repeat=size)


def played(plays: tuple[Play, ...], rewards: Tensor, values: Tensor | None = None) -> Experience:
    """Two turns of one token a play."""
    return experience([[1, 1]] * len(plays), [float(rewards[play]) for play in plays], values)


def expected_step(
    method: Algorithm, team: Policies, size: int, build: Callable[[tuple[Play, ...]], Experience]
) -> Tensor:
    """The mean step uphill: −∇ of the surrogate at the policy that played, over all groups."""
    total = torch.zeros(()).double()
    for plays in groups(size):
        data = build(plays)
        logprobs = torch.stack([x for a0, a1 in plays for x in (team.log_0[a0], team.log_1[a0, a1])])
        weight = method.weights(data.length_K, data.agent_K, data.agent_K)
        surrogate = method.surrogate(
            logprobs, logprobs.detach(), estimated(method, data).advantages_N.double(), weight.double(),
            data.turn_N, torch.ones(2 * size),
        )  # fmt: skip
        chance = torch.stack([team.probability(play) for play in plays]).prod().detach()
        total = total + chance * surrogate.loss
    return -team.gradient(total)


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert_close(found, expected, atol=1e-6, rtol=1e-5)  # advantages are single precision


# --- without a critic -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [2, 3])
def test_rloo_is_unbiased(size: int) -> None:
    team = policies()
    found = expected_step(RLOO, team, size, lambda plays: played(plays, REWARD))
    assert_near(found, team.gradient(team.value(REWARD)))


@pytest.mark.parametrize("size", [2, 3])
def test_dr_grpo_is_shorter_by_the_share_of_oneself_in_the_mean(size: int) -> None:
    team = policies()
    found = expected_step(DR_GRPO, team, size, lambda plays: played(plays, REWARD))
    assert_near(found, (size - 1) / size * team.gradient(team.value(REWARD)))


@pytest.mark.parametrize("size", [1, 2])
def test_rae_is_unbiased_whatever_its_baselines(size: int) -> None:
    team = policies()
    found = expected_step(RAE, team, size, lambda plays: played(plays, REWARD))
    assert_near(found, team.gradient(team.value(REWARD)))


@pytest.mark.parametrize("method", [GRPO, GSPO, REINFORCE_PP], ids=name)
def test_pairs_that_win_or_lose_need_no_deviation(method: Algorithm) -> None:
    """Of two scores in {0, 1} that differ the deviation is ½: (c − mean)/½ is what RLOO gives, and unbiased."""
    team = policies()
    found = expected_step(method, team, 2, lambda plays: played(plays, BINARY))
    assert_near(found, team.gradient(team.value(BINARY)))


@pytest.mark.parametrize("method", [m for m in METHODS if m.values_at is None and m is not RAE], ids=name)
def test_a_group_of_one_teaches_nothing(method: Algorithm) -> None:
    found = expected_step(method, policies(), 1, lambda plays: played(plays, REWARD))
    assert (found == 0).all()


@pytest.mark.parametrize("method", [RLOO, DR_GRPO], ids=name)
@pytest.mark.parametrize("size", [2, 3])
def test_turns_alone_in_their_groups_are_compared_with_other_plays(method: Algorithm, size: int) -> None:
    """As unbiased as a group: late turns of episodes of different lengths are not starved."""
    team = policies()

    def build(plays: tuple[Play, ...]) -> Experience:
        return replace(played(plays, REWARD), group_K=torch.arange(2 * len(plays)))

    assert_near(expected_step(method, team, size, build), team.gradient(team.value(REWARD)))


def test_difference_rewards_are_unbiased() -> None:
    """Turn k replaced by a message that does not depend on what was said there: R_{-k} is a baseline."""
    team = policies()
    silent_0 = float((team.log_1[0].exp() * REWARD[0]).sum().detach())  # agent 0 says 0, agent 1 answers that

    def build(plays: tuple[Play, ...]) -> Experience:
        data = played(plays, REWARD)
        credits = [difference(float(REWARD[a]), {0: silent_0, 1: float(REWARD[a[0], 0])}, 2) for a in plays]
        return replace(data, reward_K=torch.tensor(credits).flatten(), discount_K=torch.zeros(2 * len(plays)))

    for method in (RLOO, RAE):
        assert_near(expected_step(method, team, 2, build), team.gradient(team.value(REWARD)))


def test_siblings_of_a_tree_are_unbiased() -> None:
    """A trunk (a0, a1), a fork at the first turn (b0, b1) and one at the second (a0, c1): siblings are {a0, b0} and
    {a1, c1}, turn b1 has none and the batch no other tree. Agent 0 gets the exact gradient; agent 1 gets ⅔ of it, for one
    of its three turns has nobody to be compared with."""
    team = policies()
    total = torch.zeros(()).double()
    for trunk, other, last in product(PLAYS, PLAYS, (0, 1)):
        late = trunk[0], last
        credits = tree_scores(
            episode(2, float(REWARD[trunk])),
            [episode(2, float(REWARD[other]), forked_at=0), episode(2, float(REWARD[late]), forked_at=1)],
        )
        data = replace(
            played((trunk, other, late), REWARD),
            group_K=torch.tensor([0, 1, 0, 2, 3, 1]),
            play_K=torch.zeros(6, dtype=torch.int64),
            reward_K=torch.tensor(credits).flatten(),
            discount_K=torch.zeros(6),
        )
        kept = torch.tensor([0, 1, 2, 3, 5])  # the late fork shares its first turn with the trunk
        data = replace(
            data, episode_K=data.episode_K[kept], agent_K=data.agent_K[kept], group_K=data.group_K[kept],
            task_K=data.task_K[kept], play_K=data.play_K[kept], length_K=data.length_K[kept], reward_K=data.reward_K[kept], discount_K=data.discount_K[kept],
        )  # fmt: skip
        said = torch.stack(
            [team.log_0[trunk[0]], team.log_1[trunk], team.log_0[other[0]], team.log_1[other], team.log_1[late]]
        )
        weight = RLOO.weights(data.length_K, data.agent_K, data.agent_K)
        loss = -(weight * estimated(RLOO, data).advantages_N * said).sum()
        chance = team.probability(trunk) * team.probability(other) * team.log_1[late].exp()
        total = total + chance.detach() * loss
    exact = team.gradient(team.value(REWARD))
    assert_near(-team.gradient(total), exact * torch.tensor([1.0] * 2 + [2 / 3] * 4))


# --- with a critic ----------------------------------------------------------------------------------------------------
def critic(team: Policies, plays: tuple[Play, ...], wrong_by: float = 0.0) -> Tensor:
    """V(s_0) = J and V(s_1) = Σ π_1(a1 | a0) R, or values that are wrong, and differently in every state."""
    start = float(team.value(REWARD).detach())
    heard = (team.log_1.exp() * REWARD).sum(1).tolist()
    return torch.tensor([v for a0, _ in plays for v in (start + wrong_by, heard[a0] - 2 * wrong_by * (a0 + 1))])


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("method", WITH_CRITIC, ids=name)
def test_a_right_critic_is_unbiased_with_any_lambda(method: MarftToken | MarftAction, lam: float) -> None:
    team = policies()
    found = expected_step(
        method.model_copy(update={"lam": lam}), team, 1, lambda plays: played(plays, REWARD, critic(team, plays))
    )
    assert_near(found, team.gradient(team.value(REWARD)))


@pytest.mark.parametrize("method", WITH_CRITIC, ids=name)
def test_a_wrong_critic_biases_unless_lambda_is_one(method: MarftToken | MarftAction) -> None:
    team = policies()
    exact = team.gradient(team.value(REWARD))

    def step(lam: float) -> Tensor:
        chosen = method.model_copy(update={"lam": lam})
        return expected_step(chosen, team, 1, lambda plays: played(plays, REWARD, critic(team, plays, 0.3)))

    assert_near(step(1.0), exact)
    assert (step(0.0) - exact).abs().max() > 0.01


@pytest.mark.parametrize("method", [TOKEN, ACTION], ids=name)
def test_advantages_decompose_over_agents(method: MarftToken | MarftAction) -> None:
    """With λ = 0: A(a0) + A(a1 | a0) = R − J, and each agent's advantages are 0 in the mean wherever it acts."""
    team = policies()
    found = torch.zeros(2, 2, 2)
    for play in PLAYS:
        data = played((play,), REWARD, critic(team, (play,)))
        found[play] = estimated(method.model_copy(update={"lam": 0.0}), data).advantages_N
    assert_close(found.sum(2), REWARD - float(team.value(REWARD).detach()))
    assert_close((team.log_1.exp().detach().float() * found[:, :, 1]).sum(1), torch.zeros(2))
    assert_close((team.log_0.exp().detach().float() * found[:, 0, 0]).sum(), torch.zeros(()))


# --- one agent after the other ----------------------------------------------------------------------------------------
def test_the_sequential_factor_is_the_gradient_beside_the_updated_agent() -> None:
    """Agent 0 has moved. Weighted by its factor, plays of the old team give agent 1 the gradient of the new team."""
    old, new = policies(), policies(first=0.7)
    total = torch.zeros(()).double()
    for play in PLAYS:
        moved = (new.log_0[play[0]] - old.log_0[play[0]]).detach()[None]
        factor = sequential_factor(torch.ones(1).double(), moved, torch.zeros(1).long(), clip=10.0)
        chance = old.probability(play).detach()
        total = total + chance * factor[0] * REWARD[play] * old.log_1[play]
    (found,) = torch.autograd.grad(total, old.logits[1])
    (exact,) = torch.autograd.grad(new.value(REWARD), new.logits[1])
    assert_close(found, exact)
