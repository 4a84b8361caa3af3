"""The methods: what they estimate from experience, and how their losses add up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from experience import estimated
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import (
    ACTION,
    AT_TOKENS,
    AT_TURNS,
    DR_GRPO,
    GRPO,
    GSPO,
    METHODS,
    RAE,
    REINFORCE_PP,
    RLOO,
    TOKEN,
    WITH_CRITIC,
    ActionMethod,
    TokenMethod,
    critic_values,
    experience,
    layouts,
    name,
    seeds,
)
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.base import Algorithm
from marft.algorithms.marft_action import MarftAction
from marft.algorithms.marft_token import MarftToken

few = settings(max_examples=40, deadline=None, derandomize=True)
every_method = pytest.mark.parametrize("method", METHODS, ids=name)
with_critic = pytest.mark.parametrize("method", WITH_CRITIC, ids=name)
at_tokens = pytest.mark.parametrize("method", AT_TOKENS, ids=name)
at_turns = pytest.mark.parametrize("method", AT_TURNS, ids=name)


# --- estimates by hand ------------------------------------------------------------------------------------------------
def test_marft_token_by_hand() -> None:
    # one episode, turns of two tokens, R = 1, γ = ½, λ = ½ between turns; v = (0.1, 0.2 | 0.4, 0.6)
    # A_3 = 1 − 0.6; A_2 = 0.2 + 0.4; A_1 = (½·0.4 − 0.2) + ¼·0.6; A_0 = 0.1 + 0.15; returns are A + v
    values = torch.tensor([0.1, 0.2, 0.4, 0.6])
    found = estimated(TOKEN, experience([[2, 2]], [1], values, gamma=0.5))
    assert_close(found.advantages_N, torch.tensor([0.25, 0.15, 0.6, 0.4]))
    assert_close(found.returns, torch.tensor([0.35, 0.35, 1.0, 1.0]))


def test_marft_action_by_hand() -> None:
    # turns of 2 and 3 tokens, R = 1, γ = λ = ½, V = (0.4, 0.6): A_1 = 0.4; A_0 = (½·0.6 − 0.4) + ¼·0.4 = 0
    found = estimated(ACTION, experience([[2, 3]], [1], torch.tensor([0.4, 0.6]), gamma=0.5))
    assert_close(found.advantages_N, torch.tensor([0.0, 0.0, 0.4, 0.4, 0.4]))
    assert_close(found.returns, torch.tensor([0.4, 1.0]))


def test_grpo_by_hand() -> None:
    # both agents' groups hold the scores 1, 0: mean ½, std ½
    found = estimated(GRPO, experience([[2, 1], [1, 2]], [1, 0]))
    assert found.advantages_N.tolist() == [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]
    assert found.returns is None


def test_gspo_has_the_advantages_of_grpo() -> None:
    data = experience([[2, 1], [1, 2], [3, 1]], [1, 0, 0.25])
    assert torch.equal(estimated(GSPO, data).advantages_N, estimated(GRPO, data).advantages_N)


def test_dr_grpo_by_hand() -> None:
    # both agents' groups hold the scores 1, 0: mean ½
    found = estimated(DR_GRPO, experience([[2, 1], [1, 2]], [1, 0]))
    assert found.advantages_N.tolist() == [0.5, 0.5, 0.5, -0.5, -0.5, -0.5]


def test_rloo_by_hand() -> None:
    # groups of three: 1 − (0 + 3)/2, 0 − (1 + 3)/2, 3 − (1 + 0)/2
    found = estimated(RLOO, experience([[2, 1], [1, 1], [1, 2]], [1, 0, 3]))
    assert found.advantages_N.tolist() == [-0.5, -0.5, -0.5, -2.0, -2.0, 2.5, 2.5, 2.5]


@pytest.mark.parametrize(
    ("method", "expected"),
    [(GRPO, [1, -1, 1, -1]), (GSPO, [1, -1, 1, -1]), (DR_GRPO, [0.5, -0.5, 2, -2]), (RLOO, [1, -1, 4, -4])],
    ids=["Grpo", "Gspo", "DrGrpo", "Rloo"],
)
def test_turns_of_one_agent_are_compared_within_their_groups(method: Algorithm, expected: list[float]) -> None:
    # one agent, two tasks: scores 1, 0 and 9, 5
    data = replace(experience([[1]] * 4, [1, 0, 9, 5]), group_K=torch.tensor([0, 0, 1, 1]))
    assert estimated(method, data).advantages_N.tolist() == expected


def test_lone_turns_by_hand() -> None:
    # agent 0 scores 1, 5 in group 0; 9, which nobody can be compared with, stands against (1 + 5)/2 of the other plays
    data = replace(experience([[1]] * 3, [1, 5, 9]), group_K=torch.tensor([0, 0, 1]))
    found = estimated(RLOO, data)
    assert found.advantages_N.tolist() == [-4.0, 4.0, 6.0]
    assert found.lone_K is not None
    assert found.lone_K.tolist() == [False, False, True]
    assert estimated(DR_GRPO, data).advantages_N.tolist() == [-2.0, 2.0, 6.0]
    deviation = (32 / 3) ** 0.5  # of 1, 5, 9
    for method in (GRPO, GSPO):
        assert_close(estimated(method, data).advantages_N, torch.tensor([-1.0, 1.0, 6 / deviation]))


def test_a_lone_turn_is_compared_within_its_task_where_that_is_possible() -> None:
    # plays 0 and 1 of a hard task score 0 and 1, play 2 alone of an easy one 9: 9 − ½, the mean of the batch's others
    data = replace(experience([[1]] * 3, [0, 1, 9]), group_K=torch.arange(3), task_K=torch.tensor([0, 0, 1]))
    assert estimated(RLOO, data).advantages_N.tolist() == [-1.0, 1.0, 8.5]


def test_a_lone_turn_is_not_compared_with_its_own_play() -> None:
    """Agent 0's turns 0 and 2 of one play share what either brought about: its other turn is no baseline."""
    data = replace(experience([[1, 1, 1], [1, 1]], [1, 5]), group_K=torch.arange(5))
    assert estimated(RLOO, data).advantages_N.tolist() == [-4.0, -4.0, -4.0, 4.0, 4.0]


@pytest.mark.parametrize(
    "method",
    [GRPO, GSPO, REINFORCE_PP, TOKEN.model_copy(update={"whiten": True}), ACTION.model_copy(update={"whiten": True})],
    ids=name,
)
def test_scores_that_differ_by_rounding_alone_teach_nothing(method: Algorithm) -> None:
    layout = [[2, 1], [1, 2], [1, 1]]
    penalty, values = 0.01 * torch.linspace(-1, 1, 8), critic_values(method, layout, 0)
    equal, different = ((3 * [1.0]), [1.0, 0.0, 1.0])
    quiet = estimated(method, replace(experience(layout, equal, values, penalty=penalty), noise=0.3))
    assert quiet.advantages_N.abs().max() < 0.1
    loud = estimated(method, experience(layout, equal, values, penalty=penalty))
    assert loud.advantages_N.abs().max() > 0.1 or method.values_at is not None
    assert estimated(method, replace(experience(layout, different, values), noise=0.3)).advantages_N.abs().max() > 0.3


def test_reinforce_pp_by_hand() -> None:
    # agent 0 has all turns 0 and 2, whatever their groups: scores 1, 1, 0, 0 → ±1; agent 1 has 1, 0 → ±1
    data = experience([[1, 2, 1], [1, 1, 1]], [1, 0])
    data = replace(data, group_K=torch.arange(6))
    assert estimated(REINFORCE_PP, data).advantages_N.tolist() == [1.0] * 4 + [-1.0] * 3


def test_rae_by_hand() -> None:
    # baselines ¼ and −½ before, scores 1 and 0 for both agents (mean ½); decay ¾: ¾·¼ + ¼·½ and −¾·½ + ¼·½ after
    found = estimated(RAE, experience([[2, 1], [1, 2]], [1, 0]))
    assert found.advantages_N.tolist() == [0.75, 0.75, 1.5, -0.25, 0.5, 0.5]
    assert found.baseline_A is not None
    assert found.baseline_A.tolist() == [0.3125, -0.25]


def test_the_first_baseline_of_rae_is_the_first_batch_s_mean() -> None:
    # agent 0 has none yet: ½, the mean of its scores 1 and 0; agent 1 has −½
    data = replace(experience([[2, 1], [1, 2]], [1, 0]), baseline_A=torch.tensor([math.nan, -0.5, math.nan]))
    found = estimated(RAE, data)
    assert found.advantages_N.tolist() == [0.5, 0.5, 1.5, -0.5, 0.5, 0.5]
    assert found.baseline_A is not None
    assert found.baseline_A.tolist()[:2] == [0.5, -0.25]
    assert found.baseline_A.isnan().tolist() == [False, False, True]  # who has not acted has none


@pytest.mark.parametrize(
    "method",
    [TOKEN.model_copy(update={"whiten": True}), ACTION.model_copy(update={"whiten": True})],
    ids=["token", "action"],
)
def test_whitening_is_for_each_agent_and_leaves_returns_alone(method: MarftToken | MarftAction) -> None:
    layout, rewards = [[2, 3], [4, 1], [1, 1]], [1, 0, 1]
    values = 0.1 * critic_values(method, layout, 0)  # a critic whose errors are smaller than the rewards
    plain = estimated(method.model_copy(update={"whiten": False}), experience(layout, rewards, values))
    found = estimated(method, experience(layout, rewards, values))
    assert_close(found.returns, plain.returns)
    data = experience(layout, rewards, values)
    for agent in (0, 1):
        own = data.agent_K[data.turn_N] == agent
        entries = found.advantages_N[own] if method.values_at == "token" else found.advantages_N[own & data.ends_N]
        assert entries.mean().item() == pytest.approx(0, abs=1e-5)
        assert 0.5 < entries.std(correction=0).item() <= 1 + 1e-5


@pytest.mark.parametrize(
    "method",
    [TOKEN.model_copy(update={"whiten": True}), ACTION.model_copy(update={"whiten": True})],
    ids=["token", "action"],
)
def test_nothing_is_learnt_from_a_critic_s_noise(method: MarftToken | MarftAction) -> None:
    """All rewards are equal: whatever the critic says, however loudly, no advantage is left."""
    layout = [[2, 3], [4, 1], [1, 1]]
    values = 1e3 * critic_values(method, layout, 0)
    for reward in (0.0, 1.0):
        found = estimated(method, experience(layout, [reward] * 3, values)).advantages_N
        assert (found == 0).all()
    loud = estimated(method, experience(layout, [1, 0, 1], values)).advantages_N
    quiet = estimated(method, experience(layout, [1, 0, 1], 1e-6 * values)).advantages_N
    assert loud.abs().max() < 5e-2 < 0.5 < quiet.abs().max()


def test_penalties_reach_the_advantages() -> None:
    """Token by token where a method works on tokens, in the turn's reward elsewhere."""
    # one turn of two tokens, R = 1, V = 0, penalties 0.1 and 0.2: A = (0.7, 0.8) by tokens, 0.7 for the turn
    penalty = torch.tensor([0.1, 0.2])
    by_token = estimated(TOKEN, experience([[2]], [1], torch.zeros(2), penalty=penalty))
    assert_close(by_token.advantages_N, torch.tensor([0.7, 0.8]))
    by_turn = estimated(ACTION, experience([[2]], [1], torch.zeros(1), penalty=penalty))
    assert_close(by_turn.advantages_N, torch.tensor([0.7, 0.7]))
    by_score = estimated(RAE, experience([[2]], [1], penalty=penalty))  # its baseline is ¼
    assert_close(by_score.advantages_N, torch.tensor([0.45, 0.45]))


@with_critic
def test_an_episode_cut_off_bootstraps_past_turns_that_do_not_learn(method: MarftToken | MarftAction) -> None:
    # one turn of one token, V = 0.4, discount ¼ to V(s_K) = 0.8: A = ¼·0.8 − 0.4
    data = replace(experience([[1]], [0], torch.tensor([0.4]), gamma=0.25), final_E=torch.tensor([0.8]))
    assert_close(estimated(method, data).advantages_N, torch.tensor([-0.2]))


@with_critic
@few
@given(layout=layouts, seed=seeds)
def test_turns_that_are_not_chained_learn_from_their_own_reward(
    method: MarftToken | MarftAction, layout: list[list[int]], seed: int
) -> None:
    values = critic_values(method, layout, seed)
    data = experience(layout, [1.0] * len(layout), values, gamma=0.0)
    data = replace(data, final_E=torch.ones(len(layout)))
    found = estimated(method, data)
    assert values is not None
    per_token = values if method.values_at == "token" else values[data.turn_N]
    assert_close(found.advantages_N, data.reward_K[data.turn_N] - per_token, atol=1e-5, rtol=1e-5)


# --- estimates as properties ------------------------------------------------------------------------------------------
@every_method
@few
@given(layout=layouts, seed=seeds)
def test_permuting_episodes_permutes_advantages(method: Algorithm, layout: list[list[int]], seed: int) -> None:
    rewards = [(seed >> e) & 1 for e in range(len(layout))]
    order = torch.randperm(len(layout), generator=torch.Generator().manual_seed(seed)).tolist()
    sizes = [sum(lengths) if method.values_at == "token" else len(lengths) for lengths in layout]
    values = critic_values(method, layout, seed)
    shuffled = None if values is None else torch.cat([values.split(sizes)[e] for e in order])
    found = estimated(method, experience(layout, rewards, values))
    other = estimated(method, experience([layout[e] for e in order], [rewards[e] for e in order], shuffled))
    pieces = found.advantages_N.split([sum(lengths) for lengths in layout])
    assert_close(other.advantages_N, torch.cat([pieces[e] for e in order]))
    assert_close(other.baseline_A, found.baseline_A)


@with_critic
@few
@given(layout=layouts, seed=seeds)
def test_defect_05_an_episode_is_worth_the_same_whatever_lies_beside_it(
    method: MarftToken | MarftAction, layout: list[list[int]], seed: int
) -> None:
    rewards = [(seed >> e) & 1 for e in range(len(layout))]
    values = critic_values(method, layout, seed)
    assert values is not None
    together = estimated(method, experience(layout, rewards, values))
    sizes = [sum(lengths) if method.values_at == "token" else len(lengths) for lengths in layout]
    own_values = values.split(sizes)
    alone = [
        estimated(method, experience([lengths], [rewards[e]], own_values[e])).advantages_N
        for e, lengths in enumerate(layout)
    ]
    assert_close(together.advantages_N, torch.cat(alone))


@pytest.mark.parametrize(
    "method",
    [TOKEN.model_copy(update={"lam": 1.0}), ACTION.model_copy(update={"lam": 1.0})],
    ids=lambda m: type(m).__name__,
)
@few
@given(layout=layouts)
def test_defect_03_the_reward_lands_on_a_token_that_the_loss_keeps(
    method: MarftToken | MarftAction, layout: list[list[int]]
) -> None:
    """With V = 0 and γ = λ = 1 every token of every turn gets its own episode's reward, and no token weighs nothing."""
    rewards = [float(e + 1) for e in range(len(layout))]
    entries = sum(map(len, layout)) if method.values_at == "turn" else sum(map(sum, layout))
    data = experience(layout, rewards, torch.zeros(entries))
    found = estimated(method, data)
    assert_close(found.advantages_N, torch.tensor(rewards)[data.episode_K[data.turn_N]])
    assert (method.weights(data.length_K, data.agent_K, data.agent_K) > 0).all()


@with_critic
def test_defect_04_failures_teach_and_an_all_success_batch_is_not_emptied(method: MarftToken | MarftAction) -> None:
    layout = [[2, 1], [1, 2]]
    sure = torch.full((6 if method.values_at == "token" else 4,), 0.5)
    failed = estimated(method, experience(layout, [0, 0], sure))
    assert (failed.advantages_N < 0).all()
    solved = estimated(method, experience(layout, [1, 1], sure))
    assert (solved.advantages_N > 0).all()
    assert solved.returns is not None
    assert solved.returns[-1].item() == pytest.approx(1.0)


def test_defect_04_grpo_counts_failures_in_its_groups() -> None:
    # 1, 0, 0, 0 → mean ¼, std √3/4
    found = estimated(GRPO, experience([[1], [1], [1], [1]], [1, 0, 0, 0]))
    assert_close(found.advantages_N, torch.tensor([3.0, -1.0, -1.0, -1.0]) / 3**0.5)
    solved = estimated(GRPO, experience([[1], [1]], [1, 1]))
    assert solved.advantages_N.tolist() == [0.0, 0.0]


# --- losses -----------------------------------------------------------------------------------------------------------
def flat(length_K: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs, old ones, advantages (equal inside a turn) and turns of the tokens."""
    g = torch.Generator().manual_seed(seed)
    turn = torch.repeat_interleave(torch.arange(len(length_K)), length_K)
    old = -torch.rand(len(turn), generator=g)
    new = old + 0.3 * torch.randn(len(turn), generator=g)
    return new, old, torch.randn(len(length_K), generator=g)[turn], turn


@every_method
@few
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=8), seed=seeds, cut=st.integers(1, 7))
def test_cutting_a_minibatch_into_passes_changes_nothing(
    method: Algorithm, lengths: list[int], seed: int, cut: int
) -> None:
    length, agent = torch.tensor(lengths), torch.arange(len(lengths)) % 2
    weight = method.weights(length, agent, agent)
    new, old, advantages, turn = flat(length, seed)
    words = torch.ones(len(lengths))
    whole = method.surrogate(new, old, advantages, weight[turn], turn, words)
    loss = torch.zeros(())
    clipped: list[Tensor] = []
    for part in (torch.arange(len(lengths))[:cut], torch.arange(len(lengths))[cut:]):
        rows = torch.isin(turn, part)
        if len(part):
            own = turn[rows] - part[0]
            piece = method.surrogate(new[rows], old[rows], advantages[rows], weight[turn[rows]], own, words[part])
            loss = loss + piece.loss
            clipped.append(piece.clipped_N)
    assert_close(loss, whole.loss, atol=1e-5, rtol=1e-5)
    assert torch.equal(torch.cat(clipped), whole.clipped_N)


@every_method
@few
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=8), seed=seeds)
def test_an_agents_loss_depends_on_its_own_turns_only(method: Algorithm, lengths: list[int], seed: int) -> None:
    """The loss of two agents together is the sum of their losses alone: neither's weight knows of the other."""
    length, agent = torch.tensor(lengths), torch.arange(len(lengths)) % 2
    new, old, advantages, turn = flat(length, seed)
    words = torch.ones(len(lengths))
    whole = method.surrogate(new, old, advantages, method.weights(length, agent, agent)[turn], turn, words)
    total = torch.zeros(())
    for i in (0, 1):
        own = agent == i
        rows = own[turn]
        renamed = torch.repeat_interleave(torch.arange(int(own.sum())), length[own])
        weight = method.weights(length[own], agent[own], agent[own])[renamed]
        total = total + method.surrogate(new[rows], old[rows], advantages[rows], weight, renamed, words[own]).loss
    assert_close(total, whole.loss, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("normalise", "power"), [("sum", 0.6), ("token", 0.2), ("word", 0.3)])
def test_marft_action_loss_by_hand(normalise: str, power: float) -> None:
    # one turn of 3 tokens and 2 words whose log-ratios sum to 0.6; A = 1, ε_high = 1: the loss is −n/3 · e^{0.6 / n}
    method = ACTION.model_copy(update={"normalise": normalise, "clip_high": 1.0})  # type: ignore[arg-type]
    found = method.surrogate(
        torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3), torch.ones(3), torch.full((3,), 1 / 3),
        torch.zeros(3, dtype=torch.int64), torch.tensor([2]),
    )  # fmt: skip
    assert found.loss.item() == pytest.approx(-0.6 / power / 3 * math.exp(power))
    assert found.clipped_N.tolist() == [False] * 3


@pytest.mark.parametrize("normalise", ["sum", "token", "word"])
@pytest.mark.parametrize("aggregation", ["token", "turn", "agent"])
def test_at_a_ratio_of_one_every_token_pulls_with_its_own_weight(normalise: str, aggregation: str) -> None:
    """What the ratio is divided by decides what is clipped, and not how turns add up."""
    method = ACTION.model_copy(update={"normalise": normalise, "aggregation": aggregation})  # type: ignore[arg-type]
    length, agent = torch.tensor([2, 5, 1]), torch.tensor([0, 1, 0])
    turn = torch.repeat_interleave(torch.arange(3), length)
    weight, advantages = method.weights(length, agent, agent)[turn], torch.tensor([1.0, -2.0, 0.5])[turn]
    new = torch.zeros(8, requires_grad=True)
    found = method.surrogate(new, torch.zeros(8), advantages, weight, turn, torch.tensor([1, 3, 0]))
    (slope,) = torch.autograd.grad(found.loss, new)
    assert_close(slope, -advantages * weight)


@at_turns
def test_action_level_clips_whole_turns(method: ActionMethod) -> None:
    # ε_high = 0.3, tokens' geometric mean: e^{0.6/2} = 1.35 is clipped on both its tokens; e^{0.4/2} = 1.22 is not
    found = method.surrogate(
        torch.tensor([0.6, 0.0, 0.1, 0.3]), torch.zeros(4), torch.ones(4), torch.full((4,), 0.25),
        torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1]),
    )  # fmt: skip
    assert found.loss.item() == pytest.approx(-0.5 * 1.3 - 0.5 * math.exp(0.2))
    assert found.clipped_N.tolist() == [True, True, False, False]


def test_a_turn_without_words_still_has_a_ratio() -> None:
    method = ACTION.model_copy(update={"normalise": "word"})
    one = torch.ones(1)
    found = method.surrogate(torch.tensor([0.1]), torch.zeros(1), one, one, torch.zeros(1).long(), torch.tensor([0]))
    assert found.loss.item() == pytest.approx(-math.exp(0.1))


@at_tokens
def test_token_level_loss_by_hand(method: Algorithm) -> None:
    # ρ = (2, 1), A = (1, −1), ε_high = 0.3, one turn: −½·1.3 + ½·1
    found = method.surrogate(
        torch.tensor([math.log(2), 0.0]), torch.zeros(2), torch.tensor([1.0, -1.0]), torch.full((2,), 0.5),
        torch.zeros(2, dtype=torch.int64), torch.ones(1),
    )  # fmt: skip
    assert found.loss.item() == pytest.approx(-0.15)
    assert found.clipped_N.tolist() == [True, False]


@every_method
def test_every_method_has_a_dual_clip(method: TokenMethod | ActionMethod) -> None:
    # one token, ρ = 4, A = −1: a loss of 4, or of 3 with a dual clip there
    one, turn = torch.ones(1), torch.zeros(1, dtype=torch.int64)
    for dual, loss in ((None, 4.0), (3.0, 3.0)):
        clipped = method.model_copy(update={"dual_clip": dual})
        found = clipped.surrogate(torch.tensor([math.log(4)]), torch.zeros(1), -one, one, turn, one)
        assert found.loss.item() == pytest.approx(loss)
        assert found.clipped_N.tolist() == [dual is not None]


# --- weights ----------------------------------------------------------------------------------------------------------
@every_method
def test_weights_of_a_method_by_hand(method: Algorithm) -> None:
    agents = torch.tensor([0, 1, 0])
    assert_close(method.weights(torch.tensor([1, 2, 3]), agents, agents), torch.tensor([1 / 2, 1 / 2, 1 / 6]))


@every_method
def test_token_aggregation_reaches_the_weights(method: TokenMethod | ActionMethod) -> None:
    agents = torch.tensor([0, 1, 0])
    found = method.model_copy(update={"aggregation": "token"}).weights(torch.tensor([1, 2, 3]), agents, agents)
    assert_close(found, torch.tensor([1 / 4, 1 / 2, 1 / 4]))


@every_method
def test_agents_that_share_an_adapter_reach_the_weights(method: TokenMethod | ActionMethod) -> None:
    # agent 0 has two of the three turns and 4 of the 6 tokens: by turn it weighs ⅔, by agent ½
    lengths, agents, shared = torch.tensor([1, 2, 3]), torch.tensor([0, 1, 0]), torch.zeros(3, dtype=torch.int64)
    assert_close(method.weights(lengths, agents, shared), torch.tensor([1 / 3, 1 / 6, 1 / 9]))
    by_agent = method.model_copy(update={"aggregation": "agent"})
    assert_close(by_agent.weights(lengths, agents, shared), torch.tensor([1 / 8, 1 / 4, 1 / 8]))
