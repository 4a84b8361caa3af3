"""What is written down of an iteration, worked out by hand from plays without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from lessons import Seat, make_batch

from marft.algorithms.batch import Estimate, Scores, TrainingBatch
from marft.algorithms.decoupled import Mismatch
from marft.learners.base import Update
from marft.rollouts.source import Rollout
from marft.training.metrics import (
    Play,
    episode_rows,
    failed_rows,
    iteration_row,
    reward_figures,
    share_without_spread,
)
from marft.types import ChatOptions, Completion, Episode, FunctionCall, Message, Reward, Task, Turn


def members(*names: str, critic: str | None = None) -> list[Seat]:
    """`critic` is shared, or each one's own where it ends in a dash."""
    nothing: Any = None
    return [
        Seat(
            agent=name,
            adapter=name,
            critic=f"{critic}{name}" if critic and critic.endswith("-") else critic,
            team=nothing,
            encode=lambda messages: (1,),
            temperature=1.0,
        )
        for name in names
    ]


def episode(speakers: str, reward: float = 0.0, *, version: int = 0, sample: int = 0, **more: Any) -> Episode:
    """Speaker number k (a letter) says k + 1 tokens."""
    turns = tuple(
        Turn(
            agent=name,
            index=k,
            nth=speakers[:k].count(name),
            shown="",
            observation=(),
            prompt_ids=(1,),
            completion=Completion(
                text=f"text {k}", token_ids=(5,) * (k + 1), logprobs=(-1.0,) * (k + 1), finish="stop", version=version
            ),
        )
        for k, name in enumerate(speakers)
    )
    correct = more.pop("correct", None)
    return Episode(
        task=Task(id="t", prompt="p"), sample=sample, turns=turns, reward=Reward(team=reward, correct=correct), **more
    )


def play(
    episodes: Sequence[Episode],
    team: Sequence[Seat],
    *,
    learning: str = "",
    version: int = 0,
    statistics: Mapping[str, Mapping[str, float]] | None = None,
    factors: Sequence[float] | None = None,
    values: Sequence[float] | None = None,
    returns: Sequence[float] | None = None,
    advantages: Sequence[float] | None = None,
) -> Play:
    batch = make_batch(team, [e for e in episodes if e.ended != "failed"])
    data = TrainingBatch(
        batch=batch,
        estimate=Estimate(
            advantages_N=torch.zeros_like(batch.old_N) if advantages is None else torch.tensor(advantages),
            returns=None if returns is None else torch.tensor(returns),
        ),
        scores=Scores(final_E=torch.zeros(len(batch.task_E)), values=None if values is None else torch.tensor(values)),
    )
    update = Update(
        statistics=statistics or {}, factor_E=None if factors is None else torch.tensor(factors), excess={}, tokens=0
    )
    rollout = Rollout(episodes=episodes, batch=batch)
    return Play(rollout=rollout, data=data, update=update, learning=frozenset(learning), version=version)


# --- the team ---------------------------------------------------------------------------------------------------------
def test_reward_accuracy_and_failures_are_those_of_all_plays() -> None:
    team = members("a")
    first = play([episode("a", 1.0, correct=True), episode("a", 0.5, correct=False)], team)
    second = play([episode("a", 0.0, correct=True), episode("", ended="failed", error="no")], team)
    row = iteration_row([first, second])
    assert row["reward"] == pytest.approx(0.5)
    assert row["accuracy"] == pytest.approx(2 / 3)
    assert row["failed"] == 1
    assert "critics" not in row
    assert "counts" not in row
    assert "factor" not in row


def test_a_task_without_a_right_answer_has_no_accuracy() -> None:
    assert "accuracy" not in iteration_row([play([episode("a", 1.0)], members("a"))])


def test_counts_add_up_over_the_episodes_that_were_played() -> None:
    failed = episode("", ended="failed", error="no", counts={"malformed": 100})
    first = [episode("a", counts={"malformed": 2}), episode("a", counts={"malformed": 1, "done": 1}), failed]
    second = [episode("a", counts={"elected": 3}), episode("a")]
    row = iteration_row([play(first, members("a")), play(second, members("a"))])
    assert row["counts"] == {"done": 1, "malformed": 3, "elected": 3}
    assert list(row["counts"]) == sorted(row["counts"])


def test_the_factor_between_agents_is_written_down() -> None:
    one = play([episode("a"), episode("a")], members("a"), factors=[1.5, 0.5])
    assert iteration_row([one])["factor"] == {"mean": 1.0, "std": 0.5}


# --- agents -----------------------------------------------------------------------------------------------------------
def test_an_agent_s_figures_by_hand() -> None:
    team = members("a", "b")
    episodes = [episode("ab", 1.0, version=2), episode("a", 0.0, version=3)]
    found = play(
        episodes, team, version=3, advantages=[3.0, 1.0, 1.0, -1.0], statistics={"a": {"kl": 0.25}, "b": {"kl": 0.5}}
    )
    row = iteration_row([found])
    assert row["agents"]["a"] == {
        "reward": 0.5,  # 1 and 0: with equal credit each turn scores its episode
        "score_min": 0.0,
        "score_max": 1.0,
        "advantage_std": 2.0,  # of 3 and −1
        "length": 1.0,
        "truncated": 0.0,
        "no_spread": 0.0,  # its one group has both
        "staleness": 0.5,  # one version behind in one of two turns
        "kl": 0.25,
    }
    assert row["agents"]["b"] == {  # a group of one compares nothing
        "reward": 1.0, "score_min": 1.0, "score_max": 1.0, "advantage_std": 0.0, "length": 2.0, "truncated": 0.0, "staleness": 1.0, "kl": 0.5,
    }  # fmt: skip


def test_staleness_is_that_of_a_turns_tokens() -> None:
    """The second turn of the first episode has two tokens, by versions 1 and 3; the third has three by 1, 2 and 2."""
    spoken = episode("aab", version=1)
    runs = ((1, 1),), ((1, 1), (3, 1)), ((1, 1), (2, 2))
    turns = tuple(
        replace(turn, completion=replace(turn.completion, versions=own))
        for turn, own in zip(spoken.turns, runs, strict=True)
    )
    found = play([episode("", ended="failed", error="no"), replace(spoken, turns=turns)], members("a", "b"), version=4)
    agents = iteration_row([found])["agents"]
    assert agents["a"]["staleness"] == (3 + 2) / 2
    assert agents["b"]["staleness"] == pytest.approx((3 + 2 + 2) / 3)
    [row] = episode_rows(found.rollout, found.data, 1, 1)
    assert [turn.get("versions") for turn in row["turns"]] == [None, *runs[1:]]
    assert [turn["version"] for turn in row["turns"]] == [1, 1, 1]


def test_an_agent_s_distance_from_the_policy_that_spoke() -> None:
    """`truncated` stays the share of turns cut at their limit."""
    figures = {"tokens": 4.0, "kl": 0.5, "mean": 0.25, "max": 1.0, "weight": 1.5, "truncated": 0.75}
    agents = {"a": {**figures, "kl": 0.125}, "b": {key: figures[key] for key in ("tokens", "kl", "mean", "max")}}
    found = replace(play([episode("ab")], members("a", "b")), mismatch=Mismatch(figures=figures, agents=agents))
    row = iteration_row([found])
    first, second = row["agents"]["a"], row["agents"]["b"]
    assert (first["behaviour_kl"], first["weight"], first["weight_truncated"], first["truncated"]) == (
        0.125,
        1.5,
        0.75,
        0,
    )
    assert second["behaviour_kl"] == 0.5
    assert "weight" not in second
    assert row["mismatch"] == {key: value for key, value in figures.items() if key != "tokens"}


def test_the_share_of_groups_without_spread() -> None:
    """Groups of scores 1 1, 0 1, 5: of the two that compare something, one has no spread."""
    scores, groups = torch.tensor([1.0, 0.0, 1.0, 5.0, 1.0]), torch.tensor([4, 2, 4, 7, 2])
    assert share_without_spread(scores, groups) == 0.5
    assert share_without_spread(scores[:2], groups[:2]) is None


def test_a_reward_s_error_is_over_tasks() -> None:
    """Two tasks with mean rewards 1 and 0: σ = ½ over √(2 − 1)."""
    rewards = (("x", 1.0), ("x", 1.0), ("y", 0.0), ("y", 0.0))
    played = [replace(episode("a", reward), task=Task(id=task, prompt="p")) for task, reward in rewards]
    assert reward_figures(played) == {
        "reward": 0.5,
        "reward_error": 0.5,
        "reward_min": 0.0,
        "reward_max": 1.0,
        "episodes": 4,
    }
    assert reward_figures(played[:2])["reward_error"] is None  # of one task nobody knows


def test_an_agent_s_figures_are_from_the_play_in_which_it_learnt() -> None:
    """`resample`: a learns in the second play, b in the first, c in none, d does not speak in the first."""
    team = members("a", "b", "c", "d")
    figures = [{name: {"steps": float(n)} for name in "abcd"} for n in (1, 2)]
    first = play([episode("abc", 1.0)], team, learning="b", statistics=figures[0])
    second = play([episode("abcd", 0.25)], team, learning="a", statistics=figures[1])
    row = iteration_row([first, second])
    assert {name: found["steps"] for name, found in row["agents"].items()} == {"a": 2, "b": 1, "c": 1, "d": 2}
    assert {name: found["reward"] for name, found in row["agents"].items()} == {
        "a": 0.25,
        "b": 1.0,
        "c": 1.0,
        "d": 0.25,
    }
    assert row["reward"] == 0.625
    assert all("learnt" not in found for found in row["agents"].values())


def test_an_agent_that_never_speaks_has_no_figures() -> None:
    assert list(iteration_row([play([episode("a")], members("a", "b"))])["agents"]) == ["a"]


# --- critics ----------------------------------------------------------------------------------------------------------
STEPS = {"critic": {"loss": 0.5, "grad_norm": 1.0}}


def test_explained_variance_by_hand() -> None:
    """Returns 0, 1, 0, 1 have variance ¼, and what the values leave of them has 1/16."""
    one = play(
        [episode("ab"), episode("ab")], members("a", "b", critic="critic"), statistics=STEPS,
        values=[0.25, 0.75, 0.25, 0.75], returns=[0.0, 1.0, 0.0, 1.0],
    )  # fmt: skip
    assert iteration_row([one])["critics"] == {"critic": {"loss": 0.5, "grad_norm": 1.0, "explained_variance": 0.75}}


def test_values_of_tokens_count_each() -> None:
    """a says one token, b two."""
    one = play(
        [episode("ab")],
        members("a", "b", critic="critic"),
        statistics=STEPS,
        values=[0.0, 0.0, 0.0],
        returns=[0.0, 0.0, 3.0],
    )
    assert iteration_row([one])["critics"]["critic"]["explained_variance"] == 0.0  # a constant explains nothing
    good = play(
        [episode("ab")],
        members("a", "b", critic="critic"),
        statistics=STEPS,
        values=[0.5, 0.5, 3.5],
        returns=[0.0, 0.0, 3.0],
    )
    assert iteration_row([good])["critics"]["critic"]["explained_variance"] == pytest.approx(1.0)  # but for a constant


@pytest.mark.parametrize("returns", [[0.5, 0.5], [0.0, 1e-3]])
def test_of_returns_that_do_not_vary_the_explained_variance_is_undefined(returns: list[float]) -> None:
    """Also where they differ by the rounding of loud values alone; a division would say −10¹²."""
    one = play(
        [episode("ab")], members("a", "b", critic="critic"), statistics=STEPS, values=[0.0, 1e3], returns=returns
    )
    assert iteration_row([one])["critics"]["critic"]["explained_variance"] is None


@pytest.mark.parametrize("at", ["turn", "token"])
def test_every_critic_is_judged_by_its_own_agent_s_turns(at: str) -> None:
    """a's critic knows its two returns, b's has them upside down: 1 − 4/1."""
    statistics = {f"critic-{name}": {"loss": 0.5} for name in "ab"}
    turns = {"values": [0.0, 2.0, 2.0, 0.0], "returns": [0.0, 0.0, 2.0, 2.0]}  # a, b, a, b
    spread = [0, 1, 1, 2, 3, 3]  # b says two tokens a turn
    given: dict[str, Any] = (
        dict(turns) if at == "turn" else {key: [column[k] for k in spread] for key, column in turns.items()}
    )
    one = play([episode("ab"), episode("ab")], members("a", "b", critic="critic-"), statistics=statistics, **given)
    found = iteration_row([one])["critics"]
    assert found["critic-a"]["explained_variance"] == pytest.approx(1.0)
    assert found["critic-b"]["explained_variance"] == pytest.approx(-3.0)


def test_a_critic_without_turns_is_not_in_the_row() -> None:
    team = members("a", "b", critic="critic-")
    one = play([episode("a")], team, statistics={"critic-a": {"loss": 0.5}}, values=[0.0], returns=[1.0])
    assert list(iteration_row([one])["critics"]) == ["critic-a"]


# --- episodes ---------------------------------------------------------------------------------------------------------
def test_an_episode_is_written_whole_and_only_learners_have_advantages() -> None:
    one = play(
        [episode("axb", 1.0), episode("b", 0.5, sample=1)], members("a", "b"), advantages=[1.0, 2.0, 3.0, 4.0, 5.0]
    )
    first, second = episode_rows(one.rollout, one.data, 7, 2, lambda task: f"gold of {task.id}")
    assert (first["gold"], first["correct"]) == ("gold of t", one.rollout.episodes[0].reward.correct)
    assert (first["iteration"], first["task"], first["sample"], first["reward"], first["ended"]) == (
        7,
        "t",
        0,
        1.0,
        "terminated",
    )
    assert [turn["agent"] for turn in first["turns"]] == ["a", "x", "b"]
    assert [turn.get("advantages") for turn in first["turns"]] == [[1.0], None, [2.0, 3.0, 4.0]]
    assert [turn.get("reward") for turn in first["turns"]] == [0.0, None, 1.0]
    assert second["turns"][0]["advantages"] == [5.0]
    assert len(list(episode_rows(one.rollout, one.data, 7, 1))) == 1


def test_turns_that_a_fork_shares_are_written_without_advantages() -> None:
    trunk, fork = episode("ab", 1.0), episode("ab", 0.0, sample=1, trunk=0, forked_at=1)
    one = play([trunk, fork], members("a", "b"), advantages=[1.0, 2.0, 3.0, 4.0, 5.0])
    _, row = episode_rows(one.rollout, one.data, 1, 2)
    assert [turn.get("advantages") for turn in row["turns"]] == [None, [4.0, 5.0]]


def test_failed_episodes_say_why() -> None:
    failed = episode("a", ended="failed", error="out of paper", sample=3, fault="raised", trace="in line 7")
    [row] = failed_rows([episode("a"), failed, failed], 4, 1, lambda task: "7")
    assert row == {
        "iteration": 4, "task": "t", "prompt": "p", "gold": "7", "sample": 3, "ended": "failed", "error": "out of paper",
            "fault": "raised", "trace": "in line 7",
        "turns": [{"agent": "a", "text": "text 0"}],
    }  # fmt: skip


def test_calls_stand_in_the_row_and_in_episodes() -> None:
    called = episode("ab", calls={"a": {"calls": 2, "late_calls": 1}})
    call = FunctionCall(id="1", name="add", arguments='{"x": 1}')
    saw = (Message(role="user", content="1?"), Message(role="assistant", content="", calls=(call,)))
    told = ChatOptions(tools=('{"type": "function"}',))
    turns = (replace(called.turns[0], to="a", observation=saw, chat=told), called.turns[1])
    done = play([replace(called, turns=turns), episode("ab", 1.0, sample=1)], members("a", "b"))
    assert iteration_row([done])["calls"] == {"a": {"calls": 2, "late_calls": 1, "share": 0.5}}
    assert "calls" not in iteration_row([play([episode("ab")], members("a", "b"))])
    [row] = episode_rows(done.rollout, done.data, 1, 1)
    first, second = row["turns"]
    assert first["saw"] == [
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": "", "calls": [{"name": "add", "arguments": {"x": 1}}]},
    ]
    assert (first["to"], first["tools"]) == ("a", [{"type": "function"}])
    assert not {"to", "tools"} & second.keys()
