"""The three methods: what they estimate from experience, and how their losses add up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.experience import Algorithm, Experience, to_rows
from marft.algorithms.grpo import Grpo
from marft.algorithms.marft_action import MarftAction
from marft.algorithms.marft_token import MarftToken

few = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)
# for each episode the lengths of its turns, which agents 0, 1, 0, 1, … take
layouts = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4)

TOKEN = MarftToken(
    lam=0.5, token_gamma=1.0, token_lam=1.0, whiten=False, clip_low=0.2, clip_high=0.3, aggregation="turn"
)
ACTION = MarftAction(lam=0.5, whiten=False, clip_low=0.2, clip_high=0.3, normalise="token")
GRPO = Grpo(std_floor=1e-4, clip_low=0.2, clip_high=0.3, aggregation="turn")
METHODS = pytest.mark.parametrize("method", [TOKEN, ACTION, GRPO], ids=lambda m: type(m).__name__)


def experience(
    layout: Sequence[Sequence[int]], rewards: Sequence[float], values: Tensor | None, gamma: float = 1.0
) -> Experience:
    """Episodes with the team's reward on the last turn; groups are (agent, nth turn), as if all played one task."""
    turns = [(e, k) for e, episode in enumerate(layout) for k in range(len(episode))]
    last = [k == len(layout[e]) - 1 for e, k in turns]
    return Experience(
        episode_K=torch.tensor([e for e, _ in turns]),
        agent_K=torch.tensor([k % 2 for _, k in turns]),
        group_K=torch.tensor([k for _, k in turns]),
        length_K=torch.tensor([length for episode in layout for length in episode]),
        reward_K=torch.tensor([float(rewards[e]) if final else 0.0 for (e, _), final in zip(turns, last, strict=True)]),
        score_K=torch.tensor([float(rewards[e]) for e, _ in turns]),
        gamma=gamma,
        final_E=torch.zeros(len(layout)),
        values=values,
    )


def critic_values(method: Algorithm, layout: Sequence[Sequence[int]], seed: int) -> Tensor | None:
    if method.values_at is None:
        return None
    entries = sum(map(len, layout)) if method.values_at == "turn" else sum(map(sum, layout))
    return torch.rand(entries, generator=torch.Generator().manual_seed(seed))


# --- experience -------------------------------------------------------------------------------------------------------
def test_experience_knows_the_turns_and_ends_of_its_tokens() -> None:
    found = experience([[2, 1], [3]], [1, 0], None)
    assert found.turn_N.tolist() == [0, 0, 1, 2, 2, 2]
    assert found.ends_N.tolist() == [False, True, True, False, False, True]


def test_to_rows_lays_each_episode_in_its_own_row() -> None:
    # episode 1 has nothing: its row is padding alone
    grid, mask, column = to_rows(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 2]), 3)
    assert grid.tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]]
    assert mask.tolist() == [[True, True], [False, False], [True, False]]
    assert column.tolist() == [0, 1, 0]


# --- estimates by hand ------------------------------------------------------------------------------------------------
def test_marft_token_by_hand() -> None:
    # one episode, turns of two tokens, R = 1, γ = ½, λ = ½ between turns; v = (0.1, 0.2 | 0.4, 0.6)
    # A_3 = 1 − 0.6; A_2 = 0.2 + 0.4; A_1 = (½·0.4 − 0.2) + ¼·0.6; A_0 = 0.1 + 0.15; returns are A + v
    values = torch.tensor([0.1, 0.2, 0.4, 0.6])
    found = TOKEN.estimate(experience([[2, 2]], [1], values, gamma=0.5))
    assert_close(found.advantages_N, torch.tensor([0.25, 0.15, 0.6, 0.4]))
    assert_close(found.returns, torch.tensor([0.35, 0.35, 1.0, 1.0]))


def test_marft_action_by_hand() -> None:
    # turns of 2 and 3 tokens, R = 1, γ = λ = ½, V = (0.4, 0.6): A_1 = 0.4; A_0 = (½·0.6 − 0.4) + ¼·0.4 = 0
    found = ACTION.estimate(experience([[2, 3]], [1], torch.tensor([0.4, 0.6]), gamma=0.5))
    assert_close(found.advantages_N, torch.tensor([0.0, 0.0, 0.4, 0.4, 0.4]))
    assert_close(found.returns, torch.tensor([0.4, 1.0]))


def test_grpo_by_hand() -> None:
    # both agents' groups hold the scores 1, 0: mean ½, std ½
    found = GRPO.estimate(experience([[2, 1], [1, 2]], [1, 0], None))
    assert found.advantages_N.tolist() == [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]
    assert found.returns is None


@pytest.mark.parametrize("method", [replace(TOKEN, whiten=True), replace(ACTION, whiten=True)], ids=["token", "action"])
def test_whitening_is_for_each_agent_and_leaves_returns_alone(method: MarftToken | MarftAction) -> None:
    layout, rewards = [[2, 3], [4, 1], [1, 1]], [1, 0, 1]
    values = critic_values(method, layout, 0)
    plain = replace(method, whiten=False).estimate(experience(layout, rewards, values))
    found = method.estimate(experience(layout, rewards, values))
    assert_close(found.returns, plain.returns)
    data = experience(layout, rewards, values)
    for agent in (0, 1):
        own = data.agent_K[data.turn_N] == agent
        entries = found.advantages_N[own] if method.values_at == "token" else found.advantages_N[own & data.ends_N]
        assert entries.mean().item() == pytest.approx(0, abs=1e-5)
        assert entries.std(correction=0).item() == pytest.approx(1, abs=1e-5)


# --- estimates as properties ------------------------------------------------------------------------------------------
@METHODS
@few
@given(layout=layouts, seed=seeds)
def test_permuting_episodes_permutes_advantages(method: Algorithm, layout: list[list[int]], seed: int) -> None:
    rewards = [(seed >> e) & 1 for e in range(len(layout))]
    order = torch.randperm(len(layout), generator=torch.Generator().manual_seed(seed)).tolist()
    sizes = [sum(lengths) if method.values_at == "token" else len(lengths) for lengths in layout]
    values = critic_values(method, layout, seed)
    shuffled = None if values is None else torch.cat([values.split(sizes)[e] for e in order])
    found = method.estimate(experience(layout, rewards, values))
    other = method.estimate(experience([layout[e] for e in order], [rewards[e] for e in order], shuffled))
    pieces = found.advantages_N.split([sum(lengths) for lengths in layout])
    assert_close(other.advantages_N, torch.cat([pieces[e] for e in order]))


@pytest.mark.parametrize("method", [TOKEN, ACTION], ids=["token", "action"])
@few
@given(layout=layouts, seed=seeds)
def test_defect_05_an_episode_is_worth_the_same_whatever_lies_beside_it(
    method: MarftToken | MarftAction, layout: list[list[int]], seed: int
) -> None:
    rewards = [(seed >> e) & 1 for e in range(len(layout))]
    values = critic_values(method, layout, seed)
    assert values is not None
    together = method.estimate(experience(layout, rewards, values))
    sizes = [sum(lengths) if method.values_at == "token" else len(lengths) for lengths in layout]
    own_values = values.split(sizes)
    alone = [
        method.estimate(experience([lengths], [rewards[e]], own_values[e])).advantages_N
        for e, lengths in enumerate(layout)
    ]
    assert_close(together.advantages_N, torch.cat(alone))


@pytest.mark.parametrize("method", [replace(TOKEN, lam=1.0), replace(ACTION, lam=1.0)], ids=lambda m: type(m).__name__)
@few
@given(layout=layouts)
def test_defect_03_the_reward_lands_on_a_token_that_the_loss_keeps(
    method: MarftToken | MarftAction, layout: list[list[int]]
) -> None:
    """With V = 0 and γ = λ = 1 every token of every turn gets its own episode's reward, and no token weighs nothing."""
    rewards = [float(e + 1) for e in range(len(layout))]
    entries = sum(map(len, layout)) if method.values_at == "turn" else sum(map(sum, layout))
    data = experience(layout, rewards, torch.zeros(entries))
    found = method.estimate(data)
    assert_close(found.advantages_N, torch.tensor(rewards)[data.episode_K[data.turn_N]])
    assert (method.weights(data.length_K, data.agent_K) > 0).all()


@pytest.mark.parametrize("method", [TOKEN, ACTION], ids=["token", "action"])
def test_defect_04_failures_teach_and_an_all_success_batch_is_not_emptied(method: MarftToken | MarftAction) -> None:
    layout = [[2, 1], [1, 2]]
    sure = torch.full((6 if method.values_at == "token" else 4,), 0.5)
    failed = method.estimate(experience(layout, [0, 0], sure))
    assert (failed.advantages_N < 0).all()
    solved = method.estimate(experience(layout, [1, 1], sure))
    assert (solved.advantages_N > 0).all()
    assert solved.returns is not None
    assert solved.returns[-1].item() == pytest.approx(1.0)


def test_defect_04_grpo_counts_failures_in_its_groups() -> None:
    # 1, 0, 0, 0 → mean ¼, std √3/4
    found = GRPO.estimate(experience([[1], [1], [1], [1]], [1, 0, 0, 0], None))
    assert_close(found.advantages_N, torch.tensor([3.0, -1.0, -1.0, -1.0]) / 3**0.5)
    solved = GRPO.estimate(experience([[1], [1]], [1, 1], None))
    assert solved.advantages_N.tolist() == [0.0, 0.0]


# --- losses -----------------------------------------------------------------------------------------------------------
def flat(length_K: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probs, old ones, advantages (equal inside a turn) and turns of the tokens."""
    g = torch.Generator().manual_seed(seed)
    turn = torch.repeat_interleave(torch.arange(len(length_K)), length_K)
    old = -torch.rand(len(turn), generator=g)
    new = old + 0.3 * torch.randn(len(turn), generator=g)
    return new, old, torch.randn(len(length_K), generator=g)[turn], turn


@METHODS
@few
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=8), seed=seeds, cut=st.integers(1, 7))
def test_cutting_a_minibatch_into_passes_changes_nothing(
    method: Algorithm, lengths: list[int], seed: int, cut: int
) -> None:
    length, agent = torch.tensor(lengths), torch.arange(len(lengths)) % 2
    weight = method.weights(length, agent)
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


@METHODS
@few
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=8), seed=seeds)
def test_an_agents_loss_depends_on_its_own_turns_only(method: Algorithm, lengths: list[int], seed: int) -> None:
    """The loss of two agents together is the sum of their losses alone: neither's weight knows of the other."""
    length, agent = torch.tensor(lengths), torch.arange(len(lengths)) % 2
    new, old, advantages, turn = flat(length, seed)
    words = torch.ones(len(lengths))
    whole = method.surrogate(new, old, advantages, method.weights(length, agent)[turn], turn, words)
    total = torch.zeros(())
    for i in (0, 1):
        own = agent == i
        rows = own[turn]
        renamed = torch.repeat_interleave(torch.arange(int(own.sum())), length[own])
        weight = method.weights(length[own], agent[own])[renamed]
        total = total + method.surrogate(new[rows], old[rows], advantages[rows], weight, renamed, words[own]).loss
    assert_close(total, whole.loss, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("normalise", "power"), [("sum", 0.6), ("token", 0.2), ("word", 0.3)])
def test_marft_action_loss_by_hand(normalise: str, power: float) -> None:
    # one turn of 3 tokens and 2 words whose log-ratios sum to 0.6; A = 1, ε_high = 1: the loss is −ρ = −e^{0.6 / n}
    method = replace(ACTION, normalise=normalise, clip_high=1.0)  # type: ignore[arg-type]
    found = method.surrogate(
        torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3), torch.ones(3), torch.full((3,), 1 / 3),
        torch.zeros(3, dtype=torch.int64), torch.tensor([2]),
    )  # fmt: skip
    assert found.loss.item() == pytest.approx(-math.exp(power))
    assert found.clipped_N.tolist() == [False] * 3


def test_marft_action_clips_whole_turns() -> None:
    # ε_high = 0.3: e^{0.6/2} = 1.35 is clipped on both its tokens; e^{0.1} is not
    found = ACTION.surrogate(
        torch.tensor([0.6, 0.0, 0.1]), torch.zeros(3), torch.ones(3), torch.tensor([0.25, 0.25, 0.5]),
        torch.tensor([0, 0, 1]), torch.tensor([1, 1]),
    )  # fmt: skip
    assert found.loss.item() == pytest.approx(-0.5 * 1.3 - 0.5 * math.exp(0.1))
    assert found.clipped_N.tolist() == [True, True, False]


def test_a_turn_without_words_still_has_a_ratio() -> None:
    method = replace(ACTION, normalise="word")
    one = torch.ones(1)
    found = method.surrogate(torch.tensor([0.1]), torch.zeros(1), one, one, torch.zeros(1).long(), torch.tensor([0]))
    assert found.loss.item() == pytest.approx(-math.exp(0.1))


@pytest.mark.parametrize("method", [TOKEN, GRPO], ids=["MarftToken", "Grpo"])
def test_token_level_loss_by_hand(method: Algorithm) -> None:
    # ρ = (2, 1), A = (1, −1), ε_high = 0.3, one turn: −½·1.3 + ½·1
    found = method.surrogate(
        torch.tensor([math.log(2), 0.0]), torch.zeros(2), torch.tensor([1.0, -1.0]), torch.full((2,), 0.5),
        torch.zeros(2, dtype=torch.int64), torch.ones(1),
    )  # fmt: skip
    assert found.loss.item() == pytest.approx(-0.15)
    assert found.clipped_N.tolist() == [True, False]


@METHODS
def test_weights_of_a_method_by_hand(method: Algorithm) -> None:
    found = method.weights(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 0]))
    assert_close(found, torch.tensor([1 / 2, 1 / 2, 1 / 6]))


def test_token_aggregation_reaches_the_weights() -> None:
    for method in (replace(TOKEN, aggregation="token"), replace(GRPO, aggregation="token")):
        found = method.weights(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 0]))
        assert_close(found, torch.tensor([1 / 4, 1 / 2, 1 / 4]))
