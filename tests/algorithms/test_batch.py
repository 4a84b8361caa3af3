"""What a batch knows of itself: rows and scores, penalties, and parts of it that are batches again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lessons import Seat, make_batch
from samples import ACTION, DR_GRPO, GRPO, GSPO, RAE, RLOO, TOKEN, experience, layouts, seeds
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.batch import Batch, Scores, to_rows
from marft.algorithms.losses import sum_by_turn
from marft.rollouts.credit import Credit, Equal, PerPlayer, Tree
from marft.types import Completion, Episode, Message, Reward, Task, Turn

few = settings(max_examples=50, deadline=None, derandomize=True)


def noise(seed: int, size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_experience_knows_the_turns_and_ends_of_its_tokens() -> None:
    found = experience([[2, 1], [3]], [1, 0])
    assert found.turn_N.tolist() == [0, 0, 1, 2, 2, 2]
    assert found.ends_N.tolist() == [False, True, True, False, False, True]


def test_to_rows_lays_each_episode_in_its_own_row() -> None:
    # episode 1 has nothing: its row is padding alone
    grid, mask, column = to_rows(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 2]), 3)
    assert grid.tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]]
    assert mask.tolist() == [[True, True], [False, False], [True, False]]
    assert column.tolist() == [0, 1, 0]


# --- scores -----------------------------------------------------------------------------------------------------------
def test_returns_to_go_by_hand() -> None:
    # episode 0: c_2 = 4; c_1 = 2 + ½·4 = 4; c_0 = 1 + ¼·4 = 2. Episode 1 has no turns. Episode 2: 8, whatever follows
    data = replace(
        experience([[1, 1, 1], [], [1]], [0, 0, 0]),
        reward_K=torch.tensor([1.0, 2.0, 4.0, 8.0]),
        discount_K=torch.tensor([0.25, 0.5, 1.0, 1.0]),
    )
    assert data.episode_K.tolist() == [0, 0, 0, 2]
    assert data.score_K.tolist() == [2.0, 4.0, 4.0, 8.0]


def test_returns_of_several_players_are_chained_each_on_its_own() -> None:
    # one episode: player 0 has turns 0 and 2, player 1 has turn 1: c_2 = 4; c_1 = 2; c_0 = 1 + ½·4
    data = replace(
        experience([[1, 1, 1]], [0]), reward_K=torch.tensor([1.0, 2.0, 4.0]), discount_K=torch.full((3,), 0.5)
    )
    batch = replace(data.batch, return_K=torch.tensor([0, 1, 0]), episode_R=torch.tensor([0, 0]))
    assert batch.returns_to_go().tolist() == [3.0, 2.0, 4.0]


def test_turns_that_are_not_chained_score_their_own_rewards() -> None:
    data = replace(experience([[1, 1], [1]], [0, 0]), reward_K=torch.tensor([1.0, 2.0, 4.0]), discount_K=torch.zeros(3))
    assert data.score_K.tolist() == [1.0, 2.0, 4.0]


@few
@given(layout=layouts, seed=seeds)
def test_scores_are_the_plain_loop(layout: list[list[int]], seed: int) -> None:
    plain = experience(layout, [0] * len(layout))
    turns = len(plain.length_K)
    data = replace(plain, reward_K=noise(seed, turns), discount_K=noise(seed + 1, turns).sigmoid())
    expected = [0.0] * turns
    for k in reversed(range(turns)):
        chained = k + 1 < turns and data.episode_K[k + 1] == data.episode_K[k]
        expected[k] = float(data.reward_K[k]) + (float(data.discount_K[k]) * expected[k + 1] if chained else 0.0)
    assert data.score_K.tolist() == pytest.approx(expected, abs=1e-5)


@few
@given(layout=layouts, rewards=st.lists(st.floats(-3, 3, width=32), min_size=4, max_size=4))
def test_without_discount_everyone_scores_exactly_the_teams_reward(
    layout: list[list[int]], rewards: list[float]
) -> None:
    data = experience(layout, rewards)
    assert torch.equal(data.score_K, torch.tensor(rewards)[data.episode_K])


@few
@given(layout=layouts, seed=seeds)
def test_a_score_does_not_know_what_lies_beside_its_episode(layout: list[list[int]], seed: int) -> None:
    rewards = noise(seed, len(layout)).tolist()
    together = experience(layout, rewards, gamma=0.7).score_K
    alone = [experience([lengths], [rewards[e]], gamma=0.7).score_K for e, lengths in enumerate(layout)]
    assert torch.equal(together, torch.cat(alone))


# --- penalties --------------------------------------------------------------------------------------------------------
def test_penalties_by_hand() -> None:
    # turns of 2 and 1 tokens, R = 1 on the last, γ = ½: turn rewards −(0.1 + 0.2) and 1 − 0.4; c_0 = −0.3 + ½·0.6
    data = experience([[2, 1]], [1], gamma=0.5, penalty=torch.tensor([0.1, 0.2, 0.4]))
    assert_close(data.token_reward_N, torch.tensor([-0.1, -0.2, 0.6]))
    assert_close(data.turn_reward_K, torch.tensor([-0.3, 0.6]))
    assert_close(data.score_K, torch.tensor([0.0, 0.6]))


def test_without_penalties_rewards_are_as_they_came() -> None:
    data = experience([[2, 1], [3]], [1, 0.5])
    assert data.token_reward_N.tolist() == [0, 0, 1, 0, 0, 0.5]
    assert torch.equal(data.turn_reward_K, data.reward_K)


@few
@given(layout=layouts, seed=seeds)
def test_the_tokens_of_a_turn_earn_what_the_turn_earns(layout: list[list[int]], seed: int) -> None:
    penalty = noise(seed, sum(map(sum, layout)))
    data = experience(layout, noise(seed + 1, len(layout)).tolist(), penalty=penalty)
    assert_close(sum_by_turn(data.token_reward_N, data.turn_N, len(data.length_K)), data.turn_reward_K)


# --- parts ------------------------------------------------------------------------------------------------------------
NAMES = ("planner", "solver")  # the world speaks too, and does not learn
CREDITS: tuple[Credit, ...] = (Equal(), PerPlayer(gamma=0.5), Tree())


def spelled(messages: Sequence[Message]) -> tuple[int, ...]:
    """Ids of a state, as many as it has lines."""
    return tuple(len(line) for message in messages for line in message.content.splitlines())


def built(episodes: Sequence[Episode], credit: Credit) -> Batch:
    nothing: Any = None
    members = [
        Seat(agent=name, adapter="both", critic=f"critic-{name}", team=nothing, encode=spelled, temperature=heat)
        for name, heat in zip(NAMES, (0.5, 1.0), strict=True)
    ]
    return make_batch(members, episodes, credit)


@st.composite
def plays(draw: st.DrawFn) -> list[Episode]:
    """Samples of some tasks, in any order; some fork from their task's first, some were cut off."""
    found: list[Episode] = []
    for t in range(draw(st.integers(2, 4))):
        trunk: tuple[Turn, ...] = ()
        for sample in range(draw(st.integers(1, 3))):
            forked_at = draw(st.integers(0, len(trunk) - 1)) if sample and draw(st.booleans()) else 0
            shared = trunk[:forked_at]
            speakers = draw(st.lists(st.sampled_from((*NAMES, "world")), min_size=1, max_size=3))
            speakers = [turn.agent for turn in shared] + (speakers if sample else ["planner", *speakers])
            own = [turn_of(speakers, k, sample) for k in range(len(shared), len(speakers))]
            turns = (*shared, *own)
            cut = draw(st.booleans())
            found.append(
                Episode(
                    task=Task(id=f"t{t}", prompt=f"Task {t}."), sample=sample, turns=turns,
                    reward=Reward(team=draw(st.integers(-8, 8)) / 4, turns={0: 0.25}),
                    ended="cut_off" if cut else "terminated", cut_before="solver" if cut else None,
                    trunk=0 if shared else None, forked_at=forked_at,
                    credits=tuple((3 * k + sample) / 8 for k in range(len(turns))),
                )
            )  # fmt: skip
            trunk = trunk or turns
    return draw(st.permutations(found))


def turn_of(speakers: Sequence[str], k: int, sample: int) -> Turn:
    ids = tuple(range(10 * k, 10 * k + 1 + (k + sample) % 3))
    completion = Completion(
        text="said " * (k + 1), token_ids=ids, logprobs=tuple(-0.1 * (i + k) for i in range(len(ids))),
        finish="length" if sample else "stop", version=sample,
    )  # fmt: skip
    return Turn(
        agent=speakers[k], index=k, nth=list(speakers[:k]).count(speakers[k]), shown="", observation=(),
        prompt_ids=(1,) * (k + 1), completion=completion,
    )  # fmt: skip


def partition(numbers: Tensor) -> list[list[int]]:
    """Which entries have equal numbers, whatever these are."""
    return sorted((numbers == n).nonzero()[:, 0].tolist() for n in numbers.unique())


@few
@given(episodes=plays(), credit=st.sampled_from(CREDITS), data=st.data())
def test_a_part_is_the_batch_of_its_tasks_alone(episodes: list[Episode], credit: Credit, data: st.DataObject) -> None:
    """All columns are those of a batch that was made of these episodes; groups and plays keep their numbers."""
    whole = built(episodes, credit)
    tasks = data.draw(st.sets(st.integers(0, int(whole.task_E.max())), min_size=1).map(sorted))
    part = whole.of_tasks(tasks)
    kept = torch.isin(whole.task_E, torch.tensor(tasks))
    alone = built([episode for episode, mine in zip(episodes, kept.tolist(), strict=True) if mine], credit)
    for field in fields(Batch):
        ours, expected = getattr(part, field.name), getattr(alone, field.name)
        if field.name in ("group_K", "play_K"):
            assert torch.equal(ours, getattr(whole, field.name)[kept[whole.episode_K]])
            assert partition(ours) == partition(expected)
        elif isinstance(ours, Tensor):
            assert torch.equal(ours, expected), field.name
        else:
            assert ours == expected
    assert (part.prompts, part.completions, part.states) == (alone.prompts, alone.completions, alone.states)
    assert (part.cut_states, part.mean_lengths) == (alone.cut_states, alone.mean_lengths)
    assert part.holders() == alone.holders()
    assert torch.equal(part.returns_to_go(), whole.returns_to_go()[kept[whole.episode_K]])


@few
@given(episodes=plays(), credit=st.sampled_from(CREDITS), seed=seeds)
def test_a_part_is_worth_what_it_was_worth_in_the_whole(episodes: list[Episode], credit: Credit, seed: int) -> None:
    """Where nothing is compared across tasks: in groups, against critics and running baselines."""
    whole = built(episodes, credit)
    final_E = noise(seed, len(episodes))
    values = {"token": noise(seed + 1, len(whole.tokens_N)), "turn": noise(seed + 2, len(whole.length_K)), None: None}
    for method in (GRPO, GSPO, DR_GRPO, RLOO, RAE, TOKEN, ACTION):
        scores = Scores(final_E=final_E, values=values[method.values_at], baseline_A=torch.tensor([0.25, -0.5]))
        found = method.estimate(whole, scores)
        for task in whole.task_E.unique().tolist():
            mine_E = whole.task_E == task
            mine_K = mine_E[whole.episode_K]
            mine_N = mine_K[whole.turn_N]
            rows = {"token": mine_N, "turn": mine_K, None: mine_N}[method.values_at]
            own = None if scores.values is None else scores.values[rows]
            part = whole.of_tasks([task])
            alone = method.estimate(part, replace(scores, final_E=final_E[mine_E], values=own))
            # a turn that has nobody to be compared with is measured by other tasks too
            compared = torch.ones_like(mine_N) if found.lone_K is None else ~found.lone_K[whole.turn_N]
            assert_close(alone.advantages_N[compared[mine_N]], found.advantages_N[mine_N & compared], atol=1e-6, rtol=0)
            if found.lone_K is not None:
                assert alone.lone_K is not None
                assert torch.equal(alone.lone_K, found.lone_K[mine_K])
            if found.returns is not None:
                assert alone.returns is not None
                assert_close(alone.returns, found.returns[rows], atol=1e-6, rtol=0)


@few
@given(episodes=plays())
def test_parts_add_up(episodes: list[Episode]) -> None:
    whole = built(episodes, Equal())
    parts = [whole.of_tasks([task]) for task in range(int(whole.task_E.max()) + 1)]
    for count in ("length_K", "tokens_N", "task_E", "episode_R", "prompt_ids", "state_ids", "cut_ids"):
        assert sum(len(getattr(part, count)) for part in parts) == len(getattr(whole, count))
    assert sum(int(part.tokens_N.sum()) for part in parts) == int(whole.tokens_N.sum())
    everything = whole.of_tasks(range(len(parts)))
    assert all(
        torch.equal(getattr(everything, field.name), getattr(whole, field.name))
        for field in fields(Batch)
        if field.name != "members"
    )


@few
@given(episodes=plays())
def test_a_turn_is_held_by_its_episode_and_by_the_forks_that_begin_with_it(episodes: list[Episode]) -> None:
    """Worked out again from the turns: an episode holds a turn that it has in common with another."""
    found = built(episodes, Tree())
    places = zip(found.episode_K.tolist(), found.index_K.tolist(), strict=True)
    expected = {
        (k, other)
        for k, (e, index) in enumerate(places)
        for other, episode in enumerate(episodes)
        if any(turn is episodes[e].turns[index] for turn in episode.turns)
    }
    assert sorted(found.holders()) == sorted(expected)
    assert len(found.holders()) == len(expected)


def test_a_part_by_hand() -> None:
    """Task t1, the second of two, with a fork: numbers begin at 0, and the fork still knows its trunk."""
    first, trunk, fork = (
        Episode(
            task=Task(id=task, prompt="p"), sample=sample, reward=Reward(team=1.0), credits=(0.5, 0.75),
            turns=tuple(turn_of(NAMES, k, sample) for k in range(2)), trunk=of, forked_at=at,
        )
        for task, sample, of, at in (("t0", 0, None, 0), ("t1", 0, None, 0), ("t1", 1, 0, 1))
    )  # fmt: skip
    whole = built([first, trunk, fork], PerPlayer())
    assert whole.trunk_E.tolist() == [-1, -1, 1]
    assert whole.return_K.tolist() == [0, 1, 2, 3, 4]
    part = whole.of_tasks([1])
    assert part.task_E.tolist() == [0, 0]
    assert part.episode_K.tolist() == [0, 0, 1]
    assert part.index_K.tolist() == [0, 1, 1]
    assert part.trunk_E.tolist() == [-1, 0]
    assert part.forked_at_E.tolist() == [0, 1]
    assert part.return_K.tolist() == [0, 1, 2]
    assert part.episode_R.tolist() == [0, 0, 1]
    assert part.holders() == [(0, 0), (0, 1), (1, 0), (2, 1)]
    assert part.group_K.tolist() == whole.group_K.tolist()[2:]
    assert part.play_K.tolist() == [1, 1, 2]
