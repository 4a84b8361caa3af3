"""Whole runs on real kinds of tasks, with a model of a dozen words: math, programs, puzzles, games, tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from quick import resume, start
from toys import files, rows

from marft.envs.sandbox import require_sandbox
from marft.types import MarftError, Message


def has_sandbox() -> bool:
    try:
        require_sandbox()
    except MarftError:
        return False
    return True


def adds(messages: Sequence[Message]) -> str:
    """Uses its calculator once, and says what it found."""
    _, called, answer = messages[-1].content.rpartition("</calculator>\n\ncalculator: ")
    return f"It is {answer}." if called else "Let me see: <calculator>2*(3+4)</calculator> never said"


def codes(messages: Sequence[Message]) -> str:
    """A program that is right for every other task."""
    wrong = "def double(x):\n    return 0"
    right = "def double(x):\n    return 2 * x"
    return f"```python\n{right if 'number 601' in messages[-1].content else wrong}\n```"


def written(path: Path, found: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return str(path)


MBPP = [
    {
        "task_id": number,
        "text": f"Double the number {number}.",
        "code": "def double(x):\n    return 2 * x",
        "test_list": ["assert double(2) == 4", "assert double(0) == 0"],
        "test_setup_code": "",
    }
    for number in (601, 602)
]


def test_an_agent_with_a_tool(tmp_path: Path) -> None:
    clerk = {"script": "test_real_tasks:adds", "tools": ["calculator"]}
    run = start(tmp_path / "run", team={"agents": {"bob": None, "clerk": clerk}}, train={"iterations": 1})
    for row in rows(run / "episodes.jsonl"):
        said = [(turn["agent"], turn["text"]) for turn in row["turns"]]
        assert said[1:] == [
            ("clerk", "Let me see: <calculator>2*(3+4)</calculator>"), ("calculator", "14"), ("clerk", "It is 14."),
        ]  # fmt: skip
        assert [("advantages" in turn) for turn in row["turns"]] == [True, False, False, False]


@pytest.mark.skipif(not has_sandbox(), reason="no sandbox for programs on this machine")
@pytest.mark.parametrize("reward", ["all", "share"])
def test_a_team_that_writes_programs(tmp_path: Path, reward: str) -> None:
    env = {"name": "code", "data": "mbpp", "train": written(tmp_path / "a.jsonl", MBPP), "reward": reward, "workers": 2}
    env["test"] = written(tmp_path / "b.jsonl", [{**MBPP[0], "task_id": 11, "text": "Another one."}])
    coder = {"script": "test_real_tasks:codes"}
    run = start(tmp_path / "run", env=env, team={"agents": {"bob": None, "coder": coder}}, train={"iterations": 1})
    assert rows(run / "metrics.jsonl")[0]["accuracy"] == 0.5
    assert rows(run / "metrics.jsonl")[0]["reward"] == (0.75 if reward == "share" else 0.5)  # 0 is twice 0


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        ({"name": "reasoning", "task": ["gcd", "chain_sum"]}, {}),
        (
            {
                "name": "pettingzoo",
                "game": "pettingzoo.classic.tictactoe_v3",
                "agents": ["ann", "bob"],
                "illegal": -0.5,
            },
            {"team": {"workflow": "turns"}, "credit": {"name": "per_step", "gamma": 0.0}},
        ),
    ],
)
def test_puzzles_and_games_train_and_resume_to_the_same_bytes(
    tmp_path: Path, env: dict[str, Any], changes: dict[str, Any]
) -> None:
    pytest.importorskip("reasoning_gym" if env["name"] == "reasoning" else "pettingzoo")
    settings = {"env": {**env, "workers": 2}, "optimizer": {"decay": "constant"}, **changes}
    whole = start(tmp_path / "whole", **settings)
    start(tmp_path / "half", train={"iterations": 2}, **settings)
    half = resume(tmp_path / "half", None, "train.iterations=4")
    assert rows(whole / "metrics.jsonl") == rows(half / "metrics.jsonl")
    assert {name: data for name, data in files(whole / "checkpoints").items() if "adapter_model" in name} == {
        name: data for name, data in files(half / "checkpoints").items() if "adapter_model" in name
    }
