"""Names that are no environment, and the words that were meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from marft.envs import BUILT_IN
from marft.envs.data import KNOWN
from marft.envs.reasoning.library import task_names
from marft.envs.suggestions import hint_for_env


@pytest.mark.parametrize("name", sorted(set(KNOWN) - set(BUILT_IN)))
def test_every_known_data_set(name: str) -> None:
    meant = f"; did you mean 'env={KNOWN[name].kind} env.data={name}'?"
    assert hint_for_env(name, BUILT_IN) == hint_for_env(name.upper(), BUILT_IN) == meant


def test_every_reasoning_task() -> None:
    pytest.importorskip("reasoning_gym")
    for task in set(task_names()) - set(BUILT_IN):
        assert hint_for_env(task, BUILT_IN) == f"; did you mean 'env=reasoning env.task={task}'?"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Math", "math"),
        ("ARITHMETIC", "arithmetic"),
        ("arithmetics", "arithmetic"),
        ("aime", "env=math env.data=aime-2024"),
        ("openai/gsm8k", "env=math env.data=gsm8k"),
        ("somebody/numbers", "env=math env.data=somebody/numbers"),
        ("mine.jsonl", "env=math env.data=mine.jsonl"),
        ("reasoning-gym", "env=reasoning env.task=chain_sum"),
        ("mine", "env=mine:CLASS"),
        ("mine.py", "env=mine:CLASS"),
    ],
)
def test_others(name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    assert hint_for_env(name, BUILT_IN) == f"; did you mean {words!r}?"


def test_games() -> None:
    pytest.importorskip("pettingzoo")
    for name in ("tictactoe", "tictactoe_v3", "TicTacToe"):
        meant = "; did you mean 'env=pettingzoo env.game=pettingzoo.classic.tictactoe_v3'?"
        assert hint_for_env(name, BUILT_IN) == meant


def test_what_nobody_meant() -> None:
    assert hint_for_env("zzzzz", BUILT_IN) == ""
