"""Whole runs on a base in few bits: they learn, go on where they were, and know the base they were trained on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import ECHO, files, rows

from marft.cli import main
from marft.config import load_config
from marft.models.team import TeamModel
from marft.training.build import load_base, make_team

SETTINGS = (*ECHO, "quantize=nf4", "train.iterations=4", "checkpoint.every=2", "eval.tasks=2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupts."""
    path = tmp_path_factory.mktemp("whole") / "run"
    assert main(["train", *SETTINGS, "--run", str(path)]) == 0
    return path


def ending(run: Path) -> dict[str, Any]:
    """Checkpoints and what was said and measured, times left out."""
    found: dict[str, Any] = {
        name: content for name, content in files(run).items() if name.startswith("checkpoints/000004/")
    }
    return {**found, **{name: rows(run / name) for name in ("metrics.jsonl", "episodes.jsonl")}}


def test_a_resumed_run_ends_with_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(whole, copy)
    assert main(["train", "--resume", "--run", str(copy), "--at", "2"]) == 0
    assert ending(copy) == ending(whole)


def test_a_worker_plays_with_the_same_base(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("alone", "worker")]
    for run, workers in zip(runs, (0, 1), strict=True):
        more = [f"rollout.workers={workers}", "rollout.shards=1", "rollout.threads=1", "train.iterations=2"]
        assert main(["train", *SETTINGS, *more, "--run", str(run)]) == 0
    one, other = (rows(run / "episodes.jsonl") for run in runs)
    assert one == other


def test_another_base_is_refused(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["model"]["fingerprint"].startswith("nf4-")
    assert main(["eval", str(whole), "quantize=int8"]) == 2
    assert "its weights, its dtype or its bits differ" in capsys.readouterr().err


def test_a_short_run_of_the_default_task_learns(tmp_path: Path) -> None:
    """In three iterations, from 0.3 to more than 0.6: as on the base itself."""
    run = tmp_path / "run"
    more = [
        "train.iterations=3",
        "train.tasks=48",
        "optimizer.decay=constant",
        "eval.tasks=96",
        "track.tensorboard=false",
    ]
    assert main(["train", "device=cpu", "quantize=nf4", *more, "--run", str(run)]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["after"]["accuracy"] > summary["before"]["accuracy"] + 0.2, summary


@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_all_who_load_a_base_get_it_in_few_bits(kind: str) -> None:
    config = load_config(None, [f"quantize={kind}", "device=cpu", "dtype=bfloat16"])
    team = make_team(config, "nano", load_base(config, "nano"))
    assert isinstance(team, TeamModel)
    assert all(product.quantized is not None and product.quantized.kind == kind for product in team.products)
    assert {p.dtype for p in team.trainable_parameters("solver").values()} == {torch.float32}
