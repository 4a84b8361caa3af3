"""Held-out tasks that stand in the training data are told before a run begins, and kept in its manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from quick import start

PROBLEMS = [f"A farmer has {n} hens and buys {n + 1} more. How many hens has he now?" for n in range(20)]


def written(path: Path, problems: list[str]) -> str:
    path.write_text("".join(json.dumps({"question": q, "answer": f"#### {i}"}) + "\n" for i, q in enumerate(problems)))
    return str(path)


@pytest.mark.parametrize(("test", "leaks"), [(PROBLEMS[:4], 2), (PROBLEMS[:2], 0)])
def test_leaks_are_told_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], test: list[str], leaks: int
) -> None:
    env = {"name": "math", "data": "gsm8k", "train": written(tmp_path / "a.jsonl", PROBLEMS[2:])}
    env |= {"test": written(tmp_path / "b.jsonl", test), "workers": 1}
    run = start(tmp_path / "run", env=env, eval={"tasks": 2}, train={"iterations": 1})
    found = json.loads((run / "manifest.json").read_text())["leaks"]
    line = "2 of 4 held-out tasks of math also stand in the training data, or nearly so: gsm8k/test/2 = gsm8k/train/0,"
    assert (found["math"]["tasks"] if found else 0) == leaks
    assert (line in capsys.readouterr().out) == bool(leaks)


def test_tasks_that_differ_in_what_is_hidden_are_no_leaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pettingzoo")
    env = {"name": "pettingzoo", "game": "pettingzoo.classic.tictactoe_v3", "agents": ["ann", "bob"], "workers": 1}
    run = start(tmp_path / "run", env=env, team={"workflow": "turns"}, eval={"tasks": 2}, train={"iterations": 1})
    assert json.loads((run / "manifest.json").read_text())["leaks"] == {}
    assert "also stand in the training data" not in capsys.readouterr().out
