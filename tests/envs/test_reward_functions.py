"""Reward functions in TRL's form and in ours: what they are called with, what they add up to, and what fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import marft
from marft.envs import make_env
from marft.envs.base import LastMessage
from marft.envs.math import Math
from marft.envs.reward_functions import Message, RewardFunction, RewardFunctions
from marft.types import MarftError, Reward

JUDGES = """
from marft.types import Reward

seen = []

def length(completions, **kwargs):
    seen.append((completions, kwargs))
    return [float(len(text)) for text in completions]

def near(prompts, completions, target):
    return [1.0 if str(value) in text else 0.5 for text, value in zip(completions, target)]

def polite(completions, kind, **kwargs):
    return [float("please" in text) if one == "letter" else None for text, one in zip(completions, kind)]

async def later(completions, **kwargs):
    return [2.0 for _ in completions]

def said(completions, **kwargs):
    return [message[0]["content"].count("e") for message in completions]

def asked(prompts, completions, **kwargs):
    return [prompt[-1]["content"] == "Reply." for prompt in prompts]

def ours(text, answer, prompt):
    return text == answer

async def ours_later(text, answer, prompt):
    return 3.0

def forgotten(text, answer, prompt):
    text == answer

def whole(text, answer, prompt):
    return Reward(team=1.0, turns={0: 4.0}, parts={"a": 3.0, "b": -2.0}, correct=True, itemised=True)

def hinted(completions, hint):
    return [0.25 if one is None else 1.0 for one in hint]

def raises(completions, **kwargs):
    raise KeyError("target")

def nan(completions, **kwargs):
    return [float("nan")]

def twice(completions, **kwargs):
    return [1.0, 1.0]

def text(completions, **kwargs):
    return ["good"]

def number(completions, **kwargs):
    return 1.0

def wants_ids(completions, completion_ids):
    return [0.0]
"""


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Math]:
    """An environment with rows of these columns, judged by what the module above has."""
    (tmp_path / "judges.py").write_text(JUDGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "judges", raising=False)

    def make(reward: Any, talk: bool = False, **columns: Any) -> Math:
        data = tmp_path / "rows.jsonl"
        row = {"target": 7, "kind": "sum", **columns}
        rows = [{"prompt": conversation(i) if talk else f"Say 7 in {i} words."} | row | {"number": i} for i in range(8)]
        data.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
        made = make_env("math", {"data": str(data), "reward": reward})
        assert isinstance(made, Math)
        return made

    return make


def conversation(number: int) -> list[dict[str, str]]:
    return [{"role": "system", "content": f"Be brief, {number}."}, {"role": "user", "content": "Reply."}]


def judged(env: Math, said: str) -> Reward:
    return env.reward(LastMessage(task=env.tasks("train")[0], said=said))


def test_a_function_of_trl_gets_prompts_completions_and_columns(env: Callable[..., Math]) -> None:
    made = env("judges:length")
    import judges

    assert judged(made, "It is 7.") == Reward(team=8.0, parts={"length": 8.0})
    [(completions, columns)] = judges.seen
    assert completions == ["It is 7."]
    row = made.tasks("train")[0].data["row"]
    assert columns == {"prompts": [row["prompt"]], "target": [7], "kind": ["sum"], "number": [row["number"]]}


def test_conversations_are_given_as_messages(env: Callable[..., Math]) -> None:
    made = env(["judges:said", "judges:asked"], talk=True)
    task = made.tasks("train")[0]
    assert task.prompt == f"Be brief, {task.data['row']['number']}.\n\nReply."
    assert judged(made, "eel").parts == {"said": 2.0, "asked": 1.0}


def test_parts_are_weighted_and_summed_and_none_does_not_apply(env: Callable[..., Math]) -> None:
    both = [{"function": "judges:near", "weight": 2}, {"function": "judges:polite", "weight": -0.5}, "judges:later"]
    assert judged(env(both), "7, please") == Reward(team=4.0, parts={"near": 2.0, "later": 2.0})
    assert judged(env(both, kind="letter"), "please") == Reward(
        team=2.5, parts={"near": 1.0, "polite": -0.5, "later": 2.0}
    )


@pytest.mark.parametrize("weight", [0.5, -2.0])
def test_a_whole_reward_is_weighted(env: Callable[..., Math], weight: float) -> None:
    made = env({"function": "judges:whole", "weight": weight}, answer="7")
    assert judged(made, "7") == Reward(
        team=weight, turns={0: 4 * weight}, parts={"a": 3 * weight, "b": -2 * weight}, correct=True, itemised=True
    )


def test_none_is_a_failed_episode_where_no_function_applies_or_it_is_of_our_form(env: Callable[..., Math]) -> None:
    with pytest.raises(ValueError, match=r"env\.reward: no function applies to this row; polite gave None"):
        judged(env("judges:polite"), "7")
    for reward in ("judges:forgotten", ["judges:forgotten", "judges:near"]):
        with pytest.raises(ValueError, match=r"env\.reward: forgotten gave None, not a finite number"):
            judged(env(reward, answer="7"), "7")


def test_a_column_that_a_row_lacks_is_none(env: Callable[..., Math], tmp_path: Path) -> None:
    made = env("judges:hinted")
    rows = [{"prompt": f"Say {i}."} | ({"hint": "x"} if i % 2 else {}) for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    found = [(task.prompt, made.reward(LastMessage(task=task, said="7")).team) for task in made.tasks("train")]
    assert found == [(prompt, 1.0 if int(prompt[4]) % 2 else 0.25) for prompt, _ in found]
    assert {reward for _, reward in found} == {0.25, 1.0}


def test_tasks_keep_rows_for_functions_of_trl_alone(env: Callable[..., Math]) -> None:
    made = env("judges:ours", answer="7")
    assert made.tasks("train")[0].data == {"answer": "7"}
    assert judged(made, "7") == Reward(team=1.0, parts={"ours": 1.0}, correct=True)
    assert "row" in env(["judges:ours", "judges:near"], answer="7").tasks("train")[0].data


def test_async_functions_of_our_form_are_awaited(env: Callable[..., Math]) -> None:
    assert judged(env("judges:ours_later", answer="7"), "7") == Reward(team=3.0, parts={"ours_later": 3.0})


def test_both_forms_side_by_side(env: Callable[..., Math]) -> None:
    made = env(["judges:ours", "judges:near"], answer="7")
    assert judged(made, "7") == Reward(team=2.0, parts={"ours": 1.0, "near": 1.0}, correct=True)
    with pytest.raises(MarftError, match="no column that looks like the answer"):
        env(["judges:ours", "judges:near"]).tasks("train")


@given(parts=st.lists(st.tuples(st.floats(-9, 9), st.none() | st.floats(-9, 9)), min_size=1, max_size=5))
def test_the_reward_is_the_sum_of_its_parts(parts: list[tuple[float, float | None]]) -> None:
    functions = tuple(
        RewardFunction(name=f"f{i}", function=lambda completions, v=value: [v], weight=weight, batched=True)
        for i, (weight, value) in enumerate(parts)
    )
    assume(any(value is not None for _, value in parts))
    found = RewardFunctions(functions=functions).judge(Message(text="", answer=None, prompt="", row={}, asked=""))
    assert found.team == sum(found.parts.values())
    assert found.parts == {f"f{i}": weight * value for i, (weight, value) in enumerate(parts) if value is not None}


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("raises", "'target'"),
        ("nan", "env.reward: nan gave nan, not a finite number"),
        ("twice", "env.reward: twice returned 2 values for 1 completion"),
        ("text", "env.reward: text gave 'good', not a finite number"),
        ("number", "env.reward: number returned float for 1 completion"),
    ],
)
def test_what_a_function_does_wrong_fails_the_episode(env: Callable[..., Math], name: str, complaint: str) -> None:
    with pytest.raises((ValueError, KeyError)) as error:
        judged(env(f"judges:{name}"), "7")
    assert str(error.value) == complaint


@pytest.mark.parametrize(
    ("reward", "complaint"),
    [
        ([], "env: reward names no function; write package.module:function"),
        (3, "env: reward must be package.module:function, or .*, not 3"),
        (
            {"function": "judges:near", "wieght": 1},
            "env: reward must be .*not {'function': 'judges:near', 'wieght': 1}",
        ),
        ({"function": "judges:near", "weight": "1"}, "env: reward: weight of judges:near must be a finite number"),
        (["judges:near", "judges:near"], "env: reward: judges:near stands there twice"),
        ("judges:seen", "env: reward: 'judges:seen' is not a function"),
        ("judges:nothing", "env.reward: cannot import 'judges:nothing'"),
    ],
)
def test_bad_settings_are_one_line(env: Callable[..., Math], reward: Any, complaint: str) -> None:
    with pytest.raises(MarftError, match=complaint):
        env(reward)


def test_a_parameter_that_nothing_fills_is_one_line(env: Callable[..., Math]) -> None:
    with pytest.raises(MarftError) as error:
        env("judges:wants_ids").tasks("train")
    assert str(error.value) == (
        "env.reward: wants_ids asks for 'completion_ids', which is no column of the data; it has target, kind, number"
    )


def test_a_team_is_trained_with_them(env: Callable[..., Math], tmp_path: Path) -> None:
    """Each part is in the metrics, in TensorBoard and with every episode; one that raises is a failed episode."""
    env("judges:near")
    settings: dict[str, Any] = {
        "algorithm": "grpo", "device": "cpu", "lora": {"rank": 4}, "eval": {"tasks": 0},
        "train": {"iterations": 2, "tasks": 2, "samples": 2, "minibatches": 1},
        "agents": {name: {"prompt": "", "max_tokens": 6} for name in ("writer", "editor")},
    }  # fmt: skip
    rewards = [{"function": "judges:length", "weight": 0.1}, "judges:near", "judges:polite"]
    data = {"name": "math", "data": str(tmp_path / "rows.jsonl"), "reward": rewards}
    marft.train(env=data, run=tmp_path / "run", **settings)
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert set(row["reward_parts"]) == {"length", "near"}
        assert sum(row["reward_parts"].values()) == pytest.approx(row["reward"])
    for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines():
        episode = json.loads(line)
        assert sum(episode["parts"].values()) == pytest.approx(episode["reward"])
        assert episode["parts"]["length"] == pytest.approx(0.1 * len(episode["turns"][-1]["text"]))
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert {"reward_parts/length", "reward_parts/near"} <= set(events.Tags()["scalars"])
    with pytest.raises(MarftError, match="raised KeyError"):
        marft.train(env=data | {"reward": ["judges:raises"]}, run=tmp_path / "failing", **settings)
