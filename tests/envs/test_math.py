"""Math: from rows to tasks, one reward for the last message, and settings that are refused in one line."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.envs import make_env
from marft.envs.base import LastMessage
from marft.envs.math import Math
from marft.types import Completion, MarftError, Reward, Task, Turn

DATA = Path(__file__).parents[3] / "shared" / "data"
TASK = Task(id="t", prompt="What is $1 + 2$?", data={"answer": "3"})


def turn(text: str, index: int = 0) -> Turn:
    done = Completion(text=text, token_ids=(1,), logprobs=(0.0,), finish="stop", version=0)
    return Turn(agent="solver", index=index, nth=0, shown="", observation=(), prompt_ids=(1,), completion=done)


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def said(*texts: str, task: Task = TASK) -> Reward:
    env = Math(data="gsm8k")
    state = env.reset(task)
    for index, text in enumerate(texts):
        state = env.transition(state, turn(text, index))
    return env.reward(state)


def test_tasks_of_a_file(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.jsonl", {"question": " 1 + 1? ", "answer": "so\n#### 2"}, {"question": "b", "answer": "#### 3"}
    )
    env = Math(data="gsm8k", train=file, test=file, instruction="Put it in \\boxed{}.")
    [train], [test] = env.tasks("train"), env.tasks("test")
    assert {train.id, test.id} in ({"gsm8k/train/0", "gsm8k/test/1"}, {"gsm8k/train/1", "gsm8k/test/0"})
    first = min(train, test, key=lambda task: task.id.split("/")[-1])
    assert (first.prompt, first.data) == ("1 + 1?\nPut it in \\boxed{}.", {"answer": "2"})


def test_columns_can_be_named(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.jsonl", {"q": name, "a": 27.0, "answer": "x"}) for name in ("one", "two")]
    env = Math(data="mine", train=files[0], test=files[1], prompt="q", answer="a")
    assert [(t.id, t.prompt, t.data) for t in env.tasks("test")] == [("mine/test/0", "two", {"answer": "27"})]
    with pytest.raises(MarftError, match=r"no column 'z'; it has q, a, answer: choose one with env\.answer="):
        Math(data="mine", train=files[0], test=files[1], answer="z", prompt="q").tasks("train")


def test_a_numeric_prompt_is_a_text(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"prompt": 17, "answer": 3})
    assert Math(data="mine", train=file, test=write(tmp_path / "b.jsonl", {"x": 1})).tasks("train")[0].prompt == "17"


@pytest.mark.parametrize(
    "bad", [{"answer": ""}, {"answer": None}, {}, {"answer": "1", "prompt": ""}, {"answer": [None]}]
)
def test_rows_without_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: dict[str, Any]) -> None:
    rows = [{"prompt": f"p{i}", "answer": i} for i in range(200)]
    rows[7] = {"prompt": "p7"} | bad
    other = write(tmp_path / "b.jsonl", {"prompt": "x", "answer": 1})
    env = Math(data="mine", train=write(tmp_path / "a.jsonl", *rows), test=other)
    assert [task.id for task in env.tasks("train")] == [f"mine/train/{i}" for i in range(200) if i != 7]
    assert capsys.readouterr().err == (
        "marft: warning: mine/train: nothing in prompt or answer (found) of 1 of 200 rows: 7; left out\n"
    )
    env = Math(data="mine", train=write(tmp_path / "a.jsonl", *rows[:50]), test=other)
    with pytest.raises(
        MarftError, match=r"mine/train: nothing in .* of 1 of 50 rows: 7; repair them or choose the col"
    ):
        env.tasks("train")


def test_many_rows_without_an_answer_are_one_line(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", *({"problem": f"p{i}", "solution": "no box"} for i in range(30)))
    with pytest.raises(MarftError, match=r"\(last boxed\) of 30 of 30 rows: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9…; repair"):
        Math(data="math", train=file, test="test").tasks("train")


def test_the_last_message_decides() -> None:
    assert said(r"\boxed{3}") == Reward(team=1.0, correct=True)
    assert said(r"\boxed{4}") == Reward(team=0.0, correct=False)
    assert said(r"\boxed{3}", r"\boxed{4}").correct is False
    assert said(r"\boxed{4}", r"\boxed{3}").correct is True
    assert said(r"\boxed{3}", "").correct is False
    assert said() == Reward(team=0.0, correct=False)
    assert said(TASK.prompt).correct is False


def test_answers_are_votes() -> None:
    env = Math(data="gsm8k")
    assert env.answer(r"so \boxed{1,000}") == env.answer(r"\boxed{1000}") is not None
    assert env.answer("I do not know.") is None


def test_transition_is_pure() -> None:
    env = Math(data="gsm8k")
    state = env.reset(TASK)
    assert env.transition(state, turn("a")) == LastMessage(task=TASK, said="a")
    assert state == LastMessage(task=TASK)
    assert pickle.loads(pickle.dumps((env.source, state))) == (env.source, state)


@settings(max_examples=60, deadline=None)
@given(st.text() | st.text(alphabet="0123456789,.-$# Answer:\\boxed{}"))
def test_no_text_breaks_it_or_wins(text: str) -> None:
    reward = said(text, task=Task(id="t", prompt="?", data={"answer": "123456789.25"}))
    assert reward == Reward(team=0.0, correct=False)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"GSM8K is not here ({DATA})")
def test_gold_solutions_are_right_and_their_neighbours_wrong() -> None:
    env = Math(data="gsm8k", train="train", test=str(DATA / "gsm8k_test.jsonl"))
    solutions = [json.loads(line)["answer"] for line in (DATA / "gsm8k_test.jsonl").read_text().splitlines()]
    tasks = env.tasks("test")
    assert len(tasks) == 1319
    assert all(said(text, task=task).correct for task, text in zip(tasks, solutions, strict=True))
    assert not any(said(rf"\boxed{{{task.data['answer']}.5}}", task=task).correct for task in tasks)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "env.data is missing; math needs it, as in env.data=gsm8k or env.data=FILE.jsonl"),
        ({"data": "mbpp"}, "env: data: mbpp is a set of programs; use env=code"),
        ({"data": "gsm8k", "test": "humaneval"}, "env: test: humaneval is a set of programs; use env=code"),
        ({"data": "gsm8k", "held_out": 2}, "env: held_out must be a share between 0 and 1, such as 0.1, not 2"),
        (
            {"data": "gsm8k", "instruction": 5},
            "env: instruction must be a text, not 5; on the command line: 'env.instruction=\"…\"'",
        ),
        ({"data": ""}, "env: data must be a text that is not empty, not ''"),
    ],
)
def test_bad_settings_are_one_line(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(MarftError) as error:
        make_env("math", settings)
    assert str(error.value) == complaint


def test_a_reward_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is what the message is worth, a truth value also whether it is right, and a Reward is itself."""
    (tmp_path / "judging.py").write_text(
        "import marft\n"
        "def short(text, answer, prompt):\n    return (answer in text) / len(text)\n"
        "def right(text, answer, prompt):\n    return text == answer\n"
        "def whole(text, answer, prompt):\n    return marft.Reward(team=len(prompt), correct=None)\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    data = tmp_path / "d.jsonl"
    data.write_text("".join(f'{{"prompt": "1+{i}?", "answer": "2"}}\n' for i in range(8)))
    for name, said, reward in (
        ("short", "is 2", Reward(team=0.25, parts={"short": 0.25})),
        ("right", "2", Reward(team=1.0, correct=True, parts={"right": 1.0})),
        ("right", "3", Reward(team=0.0, correct=False, parts={"right": 0.0})),
        ("whole", "2", Reward(team=4, correct=None)),
    ):
        env = Math(data=str(data), reward=f"judging:{name}")
        state = LastMessage(task=env.tasks("train")[0], said=said)
        assert env.reward(state) == reward
    for name, line in (("number", "is not a function"), ("nothing", "cannot import 'judging:nothing'")):
        with pytest.raises((ValueError, MarftError), match=line):
            Math(data=str(data), reward=f"judging:{name}")
