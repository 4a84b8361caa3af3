from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from marft.algorithms.credit import RewardStream, equal
from marft.algorithms.marft_token import MarftToken
from marft.training.batch import Batch, build_batch
from marft.training.learner import token_rows
from marft.types import Completion, Episode, Message, Reward, Task, Turn

AGENTS = ("planner", "solver", "judge")
TEMPERATURES = {"planner": 0.5, "solver": 1.0, "judge": 2.0}
PAD, END = 0, 2


def turn(agent: str, ids: Sequence[int], *, index: int = 0, nth: int = 0, text: str = "a b", shown: str = "") -> Turn:
    completion = Completion(
        text=text,
        token_ids=tuple(ids),
        logprobs=tuple(-0.5 * i for i in range(len(ids))),
        finish="stop" if ids[-1] == END else "length",
        version=0,
    )
    return Turn(
        agent=agent, index=index, nth=nth, shown=shown, observation=(), prompt_ids=(1, 1), completion=completion
    )


def episode(task: str, speakers: Sequence[str], reward: float = 1.0, sample: int = 0) -> Episode:
    """Each speaker says two tokens."""
    turns = tuple(
        turn(agent, (5 + k, END), index=k, nth=list(speakers[:k]).count(agent), text=f"say {k}")
        for k, agent in enumerate(speakers)
    )
    return Episode(task=Task(id=task, prompt=f"Task {task}."), sample=sample, turns=turns, reward=Reward(team=reward))


def batch_of(episodes: Sequence[Episode]) -> Batch:
    return build_batch(episodes, agents=AGENTS, temperatures=TEMPERATURES, credit=equal, encode_state=None)


def test_a_batch_lists_turns_in_order_of_play() -> None:
    found = batch_of([episode("x", ["planner", "solver"], 1.0), episode("y", ["solver"], 0.0)])
    assert [t.agent for t in found.turns] == ["planner", "solver", "solver"]
    assert found.episode_K.tolist() == [0, 0, 1]
    assert found.agent_K.tolist() == [0, 1, 1]
    assert found.length_K.tolist() == [2, 2, 2]
    assert found.words_K.tolist() == [2, 2, 2]
    assert found.starts_K.tolist() == [0, 2, 4]
    assert found.tokens_N.tolist() == [5, END, 6, END, 5, END]
    assert found.old_N.tolist() == [0.0, -0.5] * 3
    assert found.reward_K.tolist() == [0.0, 1.0, 0.0]
    assert found.score_K.tolist() == [1.0, 1.0, 0.0]
    assert found.gamma == 1.0


def test_defect_06_every_turn_carries_the_temperature_of_its_agent() -> None:
    found = batch_of([episode("x", ["judge", "planner", "solver"])])
    assert found.temperature_K.tolist() == [2.0, 0.5, 1.0]


def test_defect_07_groups_are_task_agent_and_which_of_its_turns() -> None:
    """Samples differ in length and one is missing: what a cut by stride would mix stays apart."""
    episodes = [
        episode("x", ["planner", "solver"], sample=0),
        episode("x", ["planner", "solver", "planner", "solver"], sample=1),
        episode("y", ["planner", "solver"], sample=1),  # sample 0 failed
        episode("x", ["solver"], sample=3),
    ]
    found = batch_of(episodes)
    keys = [(e.task.id, t.agent, t.nth) for e in episodes for t in e.turns]
    for i, one in enumerate(keys):
        for j, other in enumerate(keys):
            assert (found.group_K[i] == found.group_K[j]).item() == (one == other)
    assert len(found.group_K.unique()) == 6


def test_defect_12_the_length_of_a_turn_is_the_number_of_its_ids() -> None:
    """Neither a pad id nor an end id inside a turn nor the width of the longest says where it ends."""
    odd = (turn("planner", (5, PAD, END, PAD)), turn("solver", (7, 8, 9, PAD, PAD, END)), turn("judge", (END,)))
    found = batch_of([Episode(task=Task(id="x", prompt="p"), sample=0, turns=odd, reward=Reward(team=1.0))])
    assert found.length_K.tolist() == [4, 6, 1]
    assert found.tokens_N.tolist() == [5, PAD, END, PAD, 7, 8, 9, PAD, PAD, END, END]


def test_defect_03_a_turn_cut_by_its_limit_earns_on_its_last_token() -> None:
    """No end-of-turn token, and yet the reward arrives, at the token that is really the last."""
    turns = (turn("planner", (5, 6, 7)), turn("solver", (8, 9)))
    found = batch_of([Episode(task=Task(id="x", prompt="p"), sample=0, turns=turns, reward=Reward(team=1.0))])
    method = MarftToken(
        lam=0.0, token_gamma=1.0, token_lam=0.0, whiten=False, clip_low=0.2, clip_high=0.2, aggregation="turn"
    )
    estimate = method.estimate(found.experience(torch.zeros(5), torch.zeros(1)))
    assert estimate.advantages_N.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]  # λ = 0: the reward stays where it landed


def test_permuting_episodes_permutes_scores() -> None:
    episodes = [episode("x", ["planner", "solver"], 0.25), episode("y", ["judge"], 0.5), episode("x", ["solver"], 0.75)]
    assert batch_of(episodes).score_K.tolist() == [0.25, 0.25, 0.5, 0.75]
    assert batch_of(episodes[::-1]).score_K.tolist() == [0.75, 0.5, 0.25, 0.25]


def test_the_central_state_shows_all_earlier_turns_and_who_is_next() -> None:
    seen: list[Sequence[Message]] = []

    def encode(messages: Sequence[Message]) -> tuple[int, ...]:
        seen.append(messages)
        return (len(seen),)

    found = build_batch(
        [episode("x", ["planner", "solver"]), episode("y", ["judge"])],
        agents=AGENTS,
        temperatures=TEMPERATURES,
        credit=equal,
        encode_state=encode,
    )
    assert found.states == ((1,), (2,), (3,))
    assert [messages[1].content for messages in seen] == ["Task x.", "Task x.\n\nplanner: say 0", "Task y."]
    assert [messages[0].content.rpartition("Next: ")[2] for messages in seen] == ["planner.", "solver.", "judge."]


def test_the_central_state_shows_what_the_environment_showed_and_where_an_episode_was_cut() -> None:
    turns = (
        turn("planner", (5, END), text="go", shown="board 0"),
        turn("solver", (6, END), index=1, text="on", shown="board 1"),
    )
    cut = Episode(
        task=Task(id="x", prompt="p"),
        sample=0,
        turns=turns,
        reward=Reward(team=0.0),
        ended="cut_off",
        cut_before="judge",
    )
    seen: list[Sequence[Message]] = []

    def encode(messages: Sequence[Message]) -> tuple[int, ...]:
        seen.append(messages)
        return (len(seen),)

    found = build_batch(
        [episode("y", ["solver"]), cut], agents=AGENTS, temperatures=TEMPERATURES, credit=equal, encode_state=encode
    )
    assert found.states == ((1,), (2,), (3,))
    assert found.cut_states == {1: (4,)}
    assert [messages[1].content for messages in seen[1:3]] == ["p\n\nboard 0", "p\n\nboard 1\n\nplanner: go"]
    last = seen[3]
    assert last[0].content.endswith("Next: judge.")
    assert last[1].content.endswith("planner: go\n\nsolver: on")


def test_the_credit_decides_rewards_and_discount() -> None:
    def halving(episode: Episode) -> RewardStream:
        return RewardStream(rewards=(0.0,) * (len(episode.turns) - 1) + (1.0,), gamma=0.5, chained=True)

    found = build_batch(
        [episode("x", ["planner", "solver"])],
        agents=AGENTS,
        temperatures=TEMPERATURES,
        credit=halving,
        encode_state=None,
    )
    assert found.gamma == 0.5
    assert found.score_K.tolist() == [0.5, 1.0]


@pytest.mark.parametrize("reward", [1, True])
def test_whole_rewards_are_numbers_like_any_other(reward: float) -> None:
    """An environment may say 1 or True: single-turn episodes must not turn the batch into integers."""
    found = batch_of([episode("x", ["solver"], reward), episode("y", ["solver"], reward)])
    assert found.reward_K.dtype == torch.float32
    assert found.score_K.dtype == torch.float32


def test_token_rows_of_some_turns_in_their_order() -> None:
    found = batch_of([episode("x", ["planner", "solver"]), episode("y", ["judge"])])
    rows, owner = token_rows(found, torch.tensor([2, 0]))
    assert rows.tolist() == [4, 5, 0, 1]
    assert owner.tolist() == [0, 0, 1, 1]
