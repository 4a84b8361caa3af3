"""The code environment: finding the program in a message, rewards, settings."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.envs import make_env
from marft.envs.code import Code, environment
from marft.envs.code.environment import program_in
from marft.envs.sandbox import require_sandbox
from marft.types import Completion, MarftError, Turn

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def sandbox() -> None:
    try:
        require_sandbox()
    except MarftError as error:
        pytest.skip(str(error))


def turn(text: str) -> Turn:
    done = Completion(text=text, token_ids=(1,), logprobs=(0.0,), finish="stop", version=0)
    return Turn(agent="coder", index=0, nth=0, shown="", observation=(), prompt_ids=(1,), completion=done)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("So:\n```py\nprint(1)\n```\nDone.", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("```Python3 \nprint(1)\n  ```", "print(1)\n"),
        ("```python\na\n```\n```python\nb\n```", "b\n"),  # the last one
        ("```python\na\n```\n```cpp\nb\n```", "a\n"),  # the last one in Python
        ("```python\na\n```\n```python\nb", "a\n"),  # one that never closes is cut off
        ("```python\n\n```", None),
        ("```python\na = 1\n\n  b = 2\n```", "a = 1\n\n  b = 2\n"),
        ("print(1)", None),
        ("```python print(1)```", None),
        ("", None),
        ("```", None),
        ("```\n```", None),
        ("```\n```\nx\n```\ny\n```", "y\n"),
    ],
)
def test_the_program_of_a_message(text: str, program: str | None) -> None:
    assert program_in(text) == program


@given(st.lists(st.sampled_from(["```", "```python", "a", "", " ```", "````"])).map("\n".join) | st.text())
def test_no_message_is_too_odd(text: str) -> None:
    program = program_in(text)
    assert program is None or (program.strip() and program.strip() in text)


def test_votes() -> None:
    env = Code(data="mbpp")
    assert (
        env.answer("```python\na = 1 \n\nb = 2\n```") == env.answer("Hm.\n```\na = 1\nb = 2\n\n```") == "a = 1\nb = 2"
    )
    assert env.answer("a = 1") is None


def environment_with(folder: Path, **settings: Any) -> Code:
    row = {"problem": "Double it.", "tests": {"inputs": ["1", "2", "3", "4"], "outputs": ["2", "4", "6", "8"]}}
    (folder / "train.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "test.jsonl").write_text(json.dumps({**row, "problem": "Double that."}) + "\n")
    return Code(data=str(folder), **settings)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("message", "everything", "share"),
    [
        ("```python\nprint(2 * int(input()))\n```", 1.0, 1.0),
        ("```python\nn = int(input())\nprint(2 * n if n < 4 else 0)\n```", 0.0, 0.75),
        ("```python\nprint(0)\n```", 0.0, 0.0),
        ("print(2 * int(input()))", 0.0, 0.0),
    ],
)
def test_rewards(tmp_path: Path, message: str, everything: float, share: float) -> None:
    for kind, expected in (("all", everything), ("share", share)):
        env = environment_with(tmp_path, reward=kind)
        [task] = env.tasks("test")
        state = env.transition(env.transition(env.reset(task), turn("```python\nprint(7)\n```")), turn(message))
        state = pickle.loads(pickle.dumps(state))
        reward = env.reward(state)
        assert (reward.team, reward.correct, reward.done) == (expected, expected == 1.0, True)
        assert env.reward(env.reset(task)).team == 0.0  # before anybody has spoken


@pytest.mark.usefixtures("sandbox")
def test_fewer_tests(tmp_path: Path) -> None:
    env = environment_with(tmp_path, tests=2)
    assert env.tasks("train")[0].data["tests"]["inputs"] == ["1", "2"]
    assert not {t.id for t in env.tasks("train")} & {t.id for t in env.tasks("test")}


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"reward": "some"}, "env: reward must be all or share, not 'some'"),
        ({"seconds": 0}, "env: seconds must be a number of at least 0.5"),
        ({"seconds": True}, "env: seconds must be a number"),
        ({"seconds_in_all": float("inf")}, "env: seconds_in_all must be a number"),
        ({"memory": 1.5}, "env: memory must be a whole number of at least 64"),
        ({"memory": 8}, "env: memory must be a whole number of at least 64"),
        ({"tests": 0}, "env: tests must be a whole number of at least 1"),
        ({"data": "gsm8k"}, "env: data: gsm8k is a set of problems without tests"),
        ({"allow_unsafe_execution": True}, "unknown key 'env.allow_unsafe_execution'"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(MarftError, match=line):
        make_env("code", {"data": "mbpp", **settings})


def test_no_sandbox_no_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise MarftError("programs are run only inside bubblewrap: install it")

    monkeypatch.setattr(environment, "require_sandbox", absent)
    with pytest.raises(MarftError, match="only inside bubblewrap"):
        environment_with(tmp_path).tasks("train")


def test_making_one_loads_nothing_heavy() -> None:
    code = "from marft.envs import make_env; make_env('code', {'data': 'mbpp'}); import sys; print([m for m in ('datasets', 'pyarrow', 'torch', 'numpy') if m in sys.modules])"  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.usefixtures("sandbox")
@pytest.mark.skipif(not DATA.is_dir(), reason=f"MBPP is not here ({DATA})")
def test_solutions_of_mbpp_pass_and_those_of_others_do_not() -> None:
    file = str(DATA / "mbpp.jsonl")
    env = Code(data="mbpp", train=file, test=file)
    rows = {row["text"]: row["code"] for row in map(json.loads, (DATA / "mbpp.jsonl").read_text().splitlines())}
    tasks = env.tasks("test")
    assert (len(env.tasks("train")), len(tasks)) == (374, 500)
    for i in (0, 7, 123, 356, 499):  # the fourth builds objects of the program's own class
        own, other = (rows[tasks[j % 500].prompt.split("\nYour program")[0]] for j in (i, i + 1))
        assert env.reward(env.transition(env.reset(tasks[i]), turn(f"```python\n{own}\n```"))).correct
        assert not env.reward(env.transition(env.reset(tasks[i]), turn(f"```python\n{other}\n```"))).correct
    assert "Node(" in tasks[356].data["tests"]["setup"]
