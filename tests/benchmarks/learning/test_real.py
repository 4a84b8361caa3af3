"""The words that train and measure each team of a real result, and runs whose time is up."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from benchmarks.learning import real
from marft.config import load_config
from marft.types import MarftError


def test_a_sitting_writes_down_how_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split in ("train", "test"):
        (tmp_path / f"gsm8k_{split}.jsonl").write_text("")
    monkeypatch.setattr(real, "go", lambda entry, sitting: None)
    monkeypatch.setattr(real, "machine", lambda: "a GPU")
    words = (
        f"real.py run train.iterations=7 --model {tmp_path} --data {tmp_path} --out {tmp_path}/out --seconds 9 --jobs 2"
    )
    monkeypatch.setattr("sys.argv", [*words.split(), "--only", "untuned-duo", "duo-token"])
    real.main()
    [file] = (tmp_path / "out").glob("*/sittings.jsonl")
    row = json.loads(file.read_text())
    assert row.pop("seconds") >= 0
    assert row == {
        "machine": "a GPU", "entries": ["untuned-duo", "duo-token"], "iterations": {"duo-token": 7}, "jobs": 2,
        "limit": 9.0, "overrides": ["train.iterations=7"],
    }  # fmt: skip


def test_every_team_resolves(tmp_path: Path) -> None:
    for name in ("gsm8k", "math"):
        for split in ("train", "test"):
            (tmp_path / f"{name}_{split}.jsonl").write_text("")
        sitting = real.Sitting(
            set=name, model=tmp_path, data=tmp_path, folder=tmp_path, tasks=1, until=None, overrides=["seed=3"]
        )
        configs = {
            entry: load_config(words[0], words[1:]) for entry in real.ENTRIES for words in [sitting.words(entry)]
        }
        assert {entry: config.algorithm.name for entry, config in configs.items() if "untuned" not in entry} == {
            "single-token": "marft-token", "duo-action": "marft-action", "duo-token": "marft-token", "duo-grpo": "grpo",
        }  # fmt: skip
        spoken = {e: sum(a.max_tokens for a in c.team.agents.values()) for e, c in configs.items()}
        assert spoken["single-token"] == spoken["duo-token"] == spoken["untuned-duo"] < spoken["untuned-duo-long"]
        for config in configs.values():
            assert {agent.temperature for agent in config.team.agents.values()} == {0.7}
            assert (config.seed, config.eval.tasks, config.eval.benchmarks) == (3, 0, {})
            assert config.algorithm.clip_high == 0.28
        prompts = {e: [a.prompt for a in c.team.agents.values()] for e, c in configs.items()}
        assert prompts["untuned-duo"] == prompts["duo-token"] == prompts["duo-grpo"] == prompts["duo-action"]


def test_time_that_is_up_interrupts_a_run_and_is_no_failure(tmp_path: Path) -> None:
    log = tmp_path / "log"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as real.py's main does
    real.marft(log, "train", "duo", "--run", str(tmp_path / "run"), seconds=5)
    assert "marft: interrupted" in log.read_text()
    with pytest.raises(MarftError, match="marft train failed"):
        real.marft(log, "train", "no-such-recipe", seconds=60)
