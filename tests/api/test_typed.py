"""What a user's type checker makes of the functions for Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import marft

PROGRAM = """
from collections.abc import Sequence

import marft


class Mine(marft.Environment[str]):
    def tasks(self, split: str) -> Sequence[marft.Task]:
        return [marft.Task(id=split, prompt=split)]

    def reset(self, task: marft.Task) -> str:
        return task.prompt

    def transition(self, state: str, turn: marft.Turn) -> str:
        return turn.text

    def reward(self, state: str) -> marft.Reward:
        return marft.Reward(team=1.0)


async def workflow(game: marft.Game) -> None:
    await game.act("solver")


def script(messages: Sequence[marft.Message]) -> str:
    return messages[0].content


summary = marft.train(env=Mine, workflow=workflow, agents={"a": "Solve.", "b": {"script": script}}, train={"tasks": 1})
reveal_type(summary["after"]["accuracy"])
with marft.load("runs/mine", env={"name": Mine}) as team:
    reveal_type(team)
    reveal_type(team.config.train.iterations)
    reveal_type(team.play(prompt="a prompt"))
    reveal_type(team.evaluate(tasks=3).figures.tokens_per_task)
reveal_type(marft.play("duo", 3).turns[0].text)
reveal_type(marft.evaluate("duo").path)
reveal_type(marft.compare(seeds=1).report.verdict)
"""
WRONG = """
import marft

marft.train(workflow=3)
marft.play("duo", 1.5)
marft.load("duo").plya()
"""
SETTINGS = """
[mypy]
strict = true
[mypy-torch.*,transformers.*,tensorboard.*,datasets.*,rich.*,matplotlib.*,safetensors.*,httpx2.*,numpy.*]
follow_imports = skip
ignore_missing_imports = true
[mypy-marft.*]
ignore_errors = true
"""


def check(folder: Path, program: str) -> str:
    (folder / "program.py").write_text(program)
    (folder / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-error-summary", "program.py"]
    done = subprocess.run(
        command, cwd=folder, env={"MYPYPATH": str(Path(marft.__file__).parents[1]), "HOME": str(folder)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def test_what_the_functions_take_and_give(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy comes with the extra dev")
    told = check(tmp_path, PROGRAM)
    assert ": error: " not in told, told
    assert re.findall(r'Revealed type is "([^"]+)"', told) == [
        "float", "marft.api.team.Team", "int", "marft.types.Episode", "float", "str", "pathlib.Path", "str",
    ]  # fmt: skip
    wrong = check(tmp_path, WRONG)
    assert [int(line) for line in re.findall(r"program\.py:(\d+): error", wrong)] == [4, 5, 6], wrong
