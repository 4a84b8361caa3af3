"""A team learns to use a tool: the example's solver guesses at first, and then asks."""

from __future__ import annotations

from pathlib import Path

import pytest

import marft
from marft.runs.directory import RunDirectory

ROOT = Path(__file__).parents[2]


def test_the_share_of_episodes_with_calls_rises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # whose folder `examples` the config names
    run = tmp_path / "run"
    marft.train(
        ROOT / "examples" / "tools" / "dial.yaml",
        run=run,
        device="cpu",
        train={"iterations": 6, "tasks": 32},
        optimizer={"decay": "constant"},
        eval={"tasks": 0},
    )
    rows = RunDirectory(run).metrics()
    share = [row["calls"]["solver"]["share"] for row in rows]
    assert 0.4 < share[0] < 0.7
    assert sum(share[-2:]) > sum(share[:2]) + 0.3  # of two
    assert rows[-1]["reward"] > rows[0]["reward"] + 0.1
