"""Two processes at one folder: the second is refused and touches nothing, readers are not hindered, a dead one holds nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toys import ECHO, files, rows

from marft.cli import main
from marft.runs.lock import Lock
from marft.training.trainer import Trainer

SETTINGS = (*ECHO, "env.name=at_a_distance:Hosted", "env.workers=1", "eval.tasks=0", "checkpoint.every=1")


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A run in its second iteration, in a process of its own that has worker processes."""
    run, ready = tmp_path / "run", tmp_path / "ready"
    child = os.fork()
    if child == 0:
        try:
            real, calls = Trainer.estimate, 0

            def wait(self: Trainer, episodes: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == 2:
                    ready.touch()
                    time.sleep(600)
                return real(self, episodes)

            Trainer.estimate = wait  # type: ignore[method-assign]
            main(["train", *SETTINGS, "--run", str(run)])
        finally:
            os._exit(1)
    until = time.monotonic() + 60
    while not ready.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert ready.exists()
    yield run, child
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_run_that_is_trained_is_nobody_elses(
    training: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, child = training
    before = {path: (data, (run / path).stat().st_mtime_ns) for path, data in files(run).items()}
    again = ["train", *SETTINGS, "--run", str(run)]
    for command in (["train", "--resume", "--run", str(run)], again, ["eval", *ECHO, "--run", str(run)]):
        capsys.readouterr()
        assert main(command) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"marft: {run} is being written by process {child} on ")
    assert {path: (data, (run / path).stat().st_mtime_ns) for path, data in files(run).items()} == before

    assert main(["play", str(run)]) == 0
    assert main(["export", str(run), str(tmp_path / "exported")]) == 0
    assert main(["eval", str(run), "eval.tasks=2", "--run", str(tmp_path / "eval")]) == 0
    assert files(run).keys() == before.keys()

    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert main(["train", "--resume", "--run", str(run)]) == 0
    assert [row["iteration"] for row in rows(run / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize("command", ["eval", "compare"])
def test_evaluations_and_comparisons_too(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before any model is loaded."""

    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("marft.commands.train.assemble", load)
    with Lock(tmp_path / "folder"):
        assert main([command, *ECHO, "--run", str(tmp_path / "folder")]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert f"{tmp_path / 'folder'} is being written by process {os.getpid()} on " in line
        assert [p.name for p in (tmp_path / "folder").iterdir()] == ["lock"]


def test_a_cell_that_somebody_trains_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = tmp_path / "compared" / "cells" / "team-seed0"
    with Lock(cell):
        assert main(["compare", *ECHO, "--seeds", "1", "--run", str(tmp_path / "compared")]) == 2
    assert f"{cell} is being written by process" in capsys.readouterr().err
