"""Messages of very different lengths: the expected step of every algorithm as it is by default is the policy gradient.

One agent says one of three messages, each with probability ⅓. They pay 0.6, 1 and 0 and have 2, 20 and 20 tokens, of which
the first decides. The gradient in the messages' logits is p·(R − mean), so (⅛, ⅞, −1) of the largest. A batch in which each
message stands a hundred times is as good as its expectation.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from experience import Experience, estimated
from torch import Tensor

from marft.algorithms.base import Algorithm
from marft.config import ALGORITHMS, parse

REWARDS, LENGTHS, TIMES = torch.tensor([0.6, 1.0, 0.0]), torch.tensor([2, 20, 20]), 100
GRADIENT = torch.tensor([0.125, 0.875, -1.0])
TEAM = {"agents": {"solo": {"prompt": "x"}}}


def configured(name: str, **settings: Any) -> Algorithm:
    return parse({"team": TEAM, "algorithm": {"name": name, **settings}}).algorithm


def batch(algorithm: Algorithm, value: float, baseline: float) -> Experience:
    """Messages 0, 1, 2, 0, 1, 2, … of one turn each, all samples of one task; `value` is what the critic expects."""
    turns = 3 * TIMES
    length_K = LENGTHS.repeat(TIMES)
    entries = {"token": int(length_K.sum()), "turn": turns, None: 0}[algorithm.values_at]
    return Experience(
        episode_K=torch.arange(turns), agent_K=torch.zeros(turns, dtype=torch.int64),
        group_K=torch.zeros(turns, dtype=torch.int64), task_K=torch.zeros(turns, dtype=torch.int64),
        play_K=torch.arange(turns), length_K=length_K,
        reward_K=REWARDS.repeat(TIMES), discount_K=torch.ones(turns), final_E=torch.zeros(turns),
        values=torch.full((entries,), value) if entries else None, baseline_A=torch.tensor([baseline]),
    )  # fmt: skip


def step(algorithm: Algorithm, value: float = 0.0, baseline: float = 0.1) -> Tensor:
    """−∇ of the loss in the messages' logits, as a share of its largest entry."""
    data = batch(algorithm, value, baseline)
    logits = torch.zeros(3, requires_grad=True)
    chosen = logits.log_softmax(0).repeat(TIMES)
    first_K = data.length_K.cumsum(0) - data.length_K
    logprobs = torch.zeros(len(data.turn_N)).index_add(0, first_K, chosen)
    weight_K = algorithm.weights(data.length_K, data.agent_K, data.agent_K)
    advantages_N = estimated(algorithm, data).advantages_N
    found = algorithm.surrogate(
        logprobs, logprobs.detach(), advantages_N, weight_K[data.turn_N], data.turn_N, data.length_K
    )
    (slope,) = torch.autograd.grad(-found.loss, logits)
    return slope / slope.abs().max()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_default_step_is_the_gradient(name: str) -> None:
    torch.testing.assert_close(step(configured(name)), GRADIENT, atol=2e-3, rtol=0)


@pytest.mark.parametrize("normalise", ["sum", "token", "word"])
def test_what_a_ratio_is_divided_by_does_not_bias_the_step(normalise: str) -> None:
    torch.testing.assert_close(step(configured("marft-action", normalise=normalise)), GRADIENT, atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", ["marft-token", "marft-action"])
@pytest.mark.parametrize("value", [-1.0, 0.5, 2.0])
def test_nor_does_a_critic_that_is_wrong_everywhere_alike(name: str, value: float) -> None:
    torch.testing.assert_close(step(configured(name, whiten=False), value=value), GRADIENT, atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_mean_over_each_turn_favours_the_short_message(name: str) -> None:
    """What `aggregation: turn` is known for: it leads to the message that pays 0.6, and away from the best."""
    found = step(configured(name, aggregation="turn"), value=8 / 15, baseline=8 / 15)
    torch.testing.assert_close(
        found, torch.tensor([0.0667 / 2, 0.4667 / 20, -0.5333 / 20]) / (0.0667 / 2), atol=0.75, rtol=0
    )
    assert found.argmax() == 0
