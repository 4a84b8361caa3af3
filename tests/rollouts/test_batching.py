from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from lessons import Seat, make_batch, said_in

from marft.algorithms.batch import Batch, Scores
from marft.algorithms.credit import RewardStream
from marft.algorithms.marft_token import MarftToken
from marft.rollouts.credit import Credit, StepDiscounted
from marft.types import Completion, Episode, Message, Reward, Task, Turn

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


Encode = Callable[[Sequence[Message]], tuple[int, ...]]


def member(agent: str, *, adapter: str | None = None, critic: str | None = None, encode: Encode | None = None) -> Seat:
    nothing: Any = None  # a batch is made without a model
    return Seat(
        agent=agent,
        adapter=adapter or agent,
        critic=critic,
        team=nothing,
        encode=encode or nothing,
        temperature=TEMPERATURES[agent],
    )


def critics(encode: Encode, names: Mapping[str, str] | None = None) -> list[Seat]:
    """The whole team, judged by the shared critic or by those named."""
    return [member(agent, critic=(names or {}).get(agent, "critic"), encode=encode) for agent in TEMPERATURES]


class Encodes:
    """Numbers what it encodes, and remembers it."""

    def __init__(self, first: int = 1) -> None:
        self.first = first
        self.seen: list[Sequence[Message]] = []

    def __call__(self, messages: Sequence[Message]) -> tuple[int, ...]:
        self.seen.append(messages)
        return (self.first + len(self.seen) - 1,)


def batch_of(episodes: Sequence[Episode], members: Sequence[Seat] | None = None, credit: Credit | None = None) -> Batch:
    return make_batch(members or [member(agent) for agent in TEMPERATURES], episodes, credit)


class Given(Credit):
    """The same rewards and discounts for every episode."""

    name: str = "given"
    rewards: tuple[float, ...]
    discounts: tuple[float, ...]

    def assign(self, episode: Episode) -> RewardStream:
        return RewardStream(rewards=self.rewards, discounts=self.discounts)


def scores(batch: Batch) -> list[float]:
    """What each turn comes to: its return-to-go."""
    found = batch.returns_to_go()
    assert found.dtype == torch.float32
    return [float(score) for score in found]


def test_a_batch_lists_turns_in_order_of_play() -> None:
    found = batch_of([episode("x", ["planner", "solver"], 1.0), episode("y", ["solver"], 0.0)])
    assert [turn.agent for turn in said_in(found)] == ["planner", "solver", "solver"]
    assert found.episode_K.tolist() == [0, 0, 1]
    assert found.index_K.tolist() == [0, 1, 0]
    assert found.agent_K.tolist() == [0, 1, 1]
    assert found.length_K.tolist() == [2, 2, 2]
    assert found.words_K.tolist() == [2, 2, 2]
    assert found.starts_K.tolist() == [0, 2, 4]
    assert found.tokens_N.tolist() == [5, END, 6, END, 5, END]
    assert found.old_N.tolist() == [0.0, -0.5] * 3
    assert found.reward_K.tolist() == [0.0, 1.0, 0.0]
    assert found.discount_K.tolist() == [1.0, 1.0, 1.0]
    assert scores(found) == [1.0, 1.0, 0.0]


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
        lam=0.0, token_gamma=1.0, token_lam=0.0, whiten=False,
        clip_low=0.2, clip_high=0.2, dual_clip=None, aggregation="turn",
    )  # fmt: skip
    estimate = method.estimate(found, Scores(values=torch.zeros(5), final_E=torch.zeros(1)))
    assert estimate.advantages_N.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]  # λ = 0: the reward stays where it landed


def test_permuting_episodes_permutes_scores() -> None:
    episodes = [episode("x", ["planner", "solver"], 0.25), episode("y", ["judge"], 0.5), episode("x", ["solver"], 0.75)]
    assert scores(batch_of(episodes)) == [0.25, 0.25, 0.5, 0.75]
    assert scores(batch_of(episodes[::-1])) == [0.75, 0.5, 0.25, 0.25]


def test_the_central_state_shows_all_earlier_turns_and_who_is_next() -> None:
    encode = Encodes()
    found = batch_of([episode("x", ["planner", "solver"]), episode("y", ["judge"])], critics(encode))
    assert found.states == [(1,), (2,), (3,)]
    seen = encode.seen
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
    encode = Encodes()
    found = batch_of([episode("y", ["solver"]), cut], critics(encode))
    assert found.states == [(1,), (2,), (3,)]
    assert found.cut_states == {1: ("critic", (4,))}
    seen = encode.seen
    assert [messages[1].content for messages in seen[1:3]] == ["p\n\nboard 0", "p\n\nboard 1\n\nplanner: go"]
    last = seen[3]
    assert last[0].content.endswith("Next: judge.")
    assert last[1].content.endswith("planner: go\n\nsolver: on")


def test_the_credit_decides_rewards_and_discount() -> None:
    halving = Given(rewards=(0.0, 1.0), discounts=(0.5, 0.5))
    found = batch_of([episode("x", ["planner", "solver"])], credit=halving)
    assert found.discount_K.tolist() == [0.5, 0.5]
    assert scores(found) == [0.5, 1.0]


@pytest.mark.parametrize("reward", [1, True])
def test_whole_rewards_are_numbers_like_any_other(reward: float) -> None:
    """An environment may say 1 or True: single-turn episodes must not turn the batch into integers."""
    found = batch_of([episode("x", ["solver"], reward), episode("y", ["solver"], reward)])
    assert found.reward_K.dtype == torch.float32
    assert scores(found) == [1.0, 1.0]


def test_token_rows_of_some_turns_in_their_order() -> None:
    found = batch_of([episode("x", ["planner", "solver"]), episode("y", ["judge"])])
    rows, owner = found.token_rows(torch.tensor([2, 0]))
    assert rows.tolist() == [4, 5, 0, 1]
    assert owner.tolist() == [0, 0, 1, 1]


# --- turns that nobody learns from ------------------------------------------------------------------------------------
def test_turns_of_those_who_do_not_learn_are_part_of_the_world() -> None:
    """Their turns are left out, whoever they are; what they said stays in everybody's view of the episode."""
    encode = Encodes()
    only = [member("planner", critic="critic", encode=encode), member("judge", critic="critic", encode=encode)]
    found = batch_of([episode("x", ["solver", "planner", "solver", "judge", "stranger"])], only)
    assert [(found.member(k).agent, index) for k, index in enumerate(found.index_K.tolist())] == [
        ("planner", 1),
        ("judge", 3),
    ]
    assert found.agent_K.tolist() == [0, 1]
    assert found.temperature_K.tolist() == [0.5, 2.0]
    assert found.tokens_N.tolist() == [6, END, 8, END]
    assert [messages[1].content for messages in encode.seen] == [
        "Task x.\n\nsolver: say 0",
        "Task x.\n\nsolver: say 0\n\nplanner: say 1\n\nsolver: say 2",
    ]


def test_an_episode_without_a_learning_turn_has_no_rows() -> None:
    found = batch_of([episode("x", ["solver"]), episode("y", ["planner"], 0.5)], [member("planner")])
    assert len(found.task_E) == 2
    assert found.episode_K.tolist() == [1]
    assert scores(found) == [0.5]


def test_what_was_earned_in_between_goes_to_the_learning_turn_before() -> None:
    """With γ = ½ and rewards 1, 2, 4, 8, 16 the learning turns 1 and 3 earn 2 + ½·4 and 8 + ½·16, two steps apart."""

    given = Given(rewards=(1.0, 2.0, 4.0, 8.0, 16.0), discounts=(0.5,) * 5)
    played = [episode("x", ["solver", "planner", "solver", "planner", "solver"])]
    found = batch_of(played, [member("planner")], credit=given)
    assert found.reward_K.tolist() == [4.0, 16.0]
    assert found.discount_K.tolist() == [0.25, 0.25]
    assert scores(found) == [8.0, 16.0]
    whole = batch_of(played, credit=given)
    assert [scores(whole)[1], scores(whole)[3]] == [8.0, 16.0]  # as if everybody learnt


def test_the_team_s_reward_reaches_those_who_learn_before_the_last_turn() -> None:
    found = batch_of([episode("x", ["planner", "solver", "judge"], 1.0)], [member("planner")])
    assert (scores(found), found.discount_K.tolist()) == ([1.0], [1.0])
    half = StepDiscounted(beta=0.5)
    found = batch_of([episode("x", ["planner", "solver", "judge"], 1.0)], [member("planner")], credit=half)
    assert (scores(found), found.discount_K.tolist()) == ([0.25], [0.125])


def test_a_fork_brings_only_its_own_turns() -> None:
    trunk = episode("x", ["planner", "solver", "planner"])
    fork = replace(trunk, sample=1, trunk=0, forked_at=2)
    found = batch_of([trunk, fork])
    assert found.episode_K.tolist() == [0, 0, 0, 1]
    assert found.index_K.tolist() == [0, 1, 2, 2]


def test_a_fork_holds_its_trunk_s_turns_up_to_the_fork() -> None:
    """Two trees of one task and one of another: nobody holds the turns of a tree that is not its own."""
    trunk = episode("x", ["planner", "solver", "planner"])
    fork = replace(trunk, sample=1, trunk=0, forked_at=2)
    second = replace(trunk, sample=2)
    other = replace(episode("y", ["planner", "solver"]), sample=3, trunk=0, forked_at=1)
    found = batch_of([trunk, fork, second, other])
    assert found.episode_K.tolist() == [0, 0, 0, 1, 2, 2, 2, 3]
    assert found.holders() == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3)]


# --- adapters, critics and tokenizers ---------------------------------------------------------------------------------
def test_agents_that_share_an_adapter_have_one_number() -> None:
    members = [member("planner", adapter="both"), member("solver", adapter="own"), member("judge", adapter="both")]
    found = batch_of([episode("x", ["judge", "solver", "planner", "judge"])], members)
    assert found.agent_K.tolist() == [2, 1, 0, 2]
    assert found.adapter_K.tolist() == [0, 1, 0, 0]
    assert [found.member(k).agent for k in range(4)] == ["judge", "solver", "planner", "judge"]
    assert len(found.group_K.unique()) == 4  # what is compared is an agent's own


def test_states_are_spelled_by_the_base_of_who_acts() -> None:
    """Two bases, two tokenizers: each critic reads its own."""
    small, large = Encodes(100), Encodes(200)
    members = [
        member("planner", critic="critic", encode=small),
        member("solver", critic="critic-1", encode=large),
        member("judge", critic="critic", encode=small),
    ]
    found = batch_of([episode("x", ["planner", "solver", "judge", "solver"])], members)
    assert found.states == [(100,), (200,), (101,), (201,)]
    assert [messages[0].content[-7:] for messages in large.seen] == ["solver."] * 2


@pytest.mark.parametrize(
    ("before", "judge", "spelled"),
    [
        ("planner", "critic-planner", "small"),  # who would have acted judges
        ("solver", "critic-solver", "large"),
        ("judge", "critic-solver", "large"),  # the judge does not learn: the last who does
    ],
)
def test_a_cut_off_episode_is_judged_by_the_critic_of_whoever_is_next(before: str, judge: str, spelled: str) -> None:
    voices = {"small": Encodes(100), "large": Encodes(200)}
    members = [
        member("planner", critic="critic-planner", encode=voices["small"]),
        member("solver", critic="critic-solver", encode=voices["large"]),
    ]
    cut = replace(
        episode("x", ["planner", "solver", "judge"]), ended="cut_off", cut_before=before, cut_shown="the board"
    )
    found = batch_of([cut], members)
    [(e, (critic, ids))] = found.cut_states.items()
    assert (e, critic) == (0, judge)
    last = voices[spelled].seen[-1]
    assert ids == (voices[spelled].first + len(voices[spelled].seen) - 1,)
    assert last[0].content.endswith(f"Next: {before}.")
    assert last[1].content == "Task x.\n\nthe board\n\nplanner: say 0\n\nsolver: say 1\n\njudge: say 2"


def test_what_a_cut_off_episode_has_not_earned_yet_is_the_critics_to_say() -> None:
    cut = replace(episode("x", ["planner", "solver"]), ended="cut_off", cut_before="planner")
    cut = replace(cut, reward=Reward(team=7.0, turns={0: 2.0}))
    judged = batch_of([cut], [member(name, critic="critic", encode=Encodes()) for name in ("planner", "solver")])
    assert judged.reward_K.tolist() == [0.0, 0.0]
    assert batch_of([cut], [member("planner"), member("solver")]).reward_K.tolist() == [0.0, 7.0]  # all there will be


def test_without_a_critic_there_are_no_states() -> None:
    cut = replace(episode("x", ["planner"]), ended="cut_off", cut_before="solver")
    found = batch_of([cut])
    assert (found.states, len(found.state_ids), found.cut_states) == ([()], 0, {})


def test_a_cut_off_episode_that_nobody_learns_from_is_not_judged() -> None:
    cut = replace(episode("x", ["solver"]), ended="cut_off", cut_before="planner")
    encode = Encodes()
    found = batch_of([cut, episode("y", ["planner"])], [member("planner", critic="critic", encode=encode)])
    assert found.cut_states == {}
