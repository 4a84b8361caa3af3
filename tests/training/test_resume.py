"""A run that is killed anywhere and resumed ends with the same bytes as one that was not."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from quick import Silent
from toys import ECHO, files, rows

from marft.cli import main

SETTINGS = (
    *ECHO, "train.iterations=4", "checkpoint.every=2", "checkpoint.keep=2", "optimizer.warmup=3", "optimizer.decay=constant",
    "critic.warmup=1", "train.tasks=2", "eval.tasks=2", "team.agents.planner.max_tokens=3", "team.agents.solver.max_tokens=3",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody interrupts."""
    path = tmp_path_factory.mktemp("whole") / "run"
    assert main(["train", *SETTINGS, "--run", str(path)]) == 0
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def ending(run: Path) -> dict[str, Any]:
    """All that a run has become, times left out."""
    # the first checkpoint goes with the last save; a kill just before that may leave it, and does no harm
    found: dict[str, Any] = {k: v for k, v in files(run).items() if not k.startswith("checkpoints/000000/")}
    for name in ("metrics.jsonl", "episodes.jsonl", "held_out.jsonl"):
        found[name] = rows(run / name)
    found.pop("events.jsonl", None)  # a history with times, which also tells of the kill
    summary = json.loads(found.pop("summary.json"))
    del summary["seconds"]
    return {**found, "summary": summary}


def killed(path: Path, prepare: Callable[[], None]) -> None:
    """Start the run in a process of its own, in which `prepare` has set the trap that kills it."""
    child = os.fork()
    if child == 0:
        try:
            prepare()
            main(["train", *SETTINGS, "--run", str(path)])
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def trap(where: str, nth: int) -> Callable[[], None]:
    """Die instead of the `nth` call of `module:name` or `module:Class.name`."""

    def prepare() -> None:
        module, _, path = where.partition(":")
        owner: Any = import_module(module)
        *classes, name = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        real, calls = getattr(owner, name), 0

        def trapped(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                die()
            return real(*arguments, **named)

        setattr(owner, name, trapped)

    return prepare


POINTS = {
    "before the first evaluation": ("marft.evaluation.held_out:evaluate_held_out", 1),
    "between the first transcripts and their figures": ("marft.runs.directory:RunDirectory.write_summary", 1),
    "in the first save": ("marft.training.checkpoint:save_adapter", 2),
    "after the first rollout": ("marft.training.trainer:Trainer.estimate", 1),
    "in the middle of an update": ("marft.learners.local:LocalLearner._clip", 6),
    "between episodes and metrics": ("marft.runs.directory:RunDirectory.append_metrics", 3),
    "in the middle of a save": ("marft.training.checkpoint:save_adapter", 5),
    "before the manifest of a save": ("marft.runs.checkpoints:seal", 2),
    "before a save is published": ("marft.runs.checkpoints:Checkpoints._publish", 3),
    "before an old checkpoint goes": ("marft.runs.checkpoints:Checkpoints._delete", 1),
    "before the last evaluation": ("marft.evaluation.held_out:evaluate_held_out", 2),
    "between the last transcripts and their figures": ("marft.runs.directory:RunDirectory.write_summary", 2),
    "before the last word": ("marft.training.trainer:Trainer.summarise", 1),
}


@pytest.mark.parametrize("point", POINTS)
def test_defect_11_a_killed_run_ends_like_one_that_was_not(
    point: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adapters, critic, Adam, metrics, episodes: all of it comes back, and nothing is trained twice or left out."""
    run = tmp_path / "run"
    killed(run, trap(*POINTS[point]))
    assert main(["train", "--resume", "--run", str(run)]) == 0
    assert "warning" not in capsys.readouterr().err
    assert ending(run) == ending(whole)


def test_a_line_torn_by_the_kill_is_written_again(whole: Path, tmp_path: Path) -> None:
    def prepare() -> None:
        import marft.runs.directory as directory

        real = directory.append_whole

        def torn(path: Path, data: bytes) -> None:
            if path.name == "metrics.jsonl" and b'"iteration": 3' in data:
                real(path, data[: len(data) // 2])
                die()
            real(path, data)

        directory.append_whole = torn

    run = tmp_path / "run"
    killed(run, prepare)
    assert not (run / "metrics.jsonl").read_bytes().endswith(b"\n")
    assert main(["train", "--resume", "--run", str(run)]) == 0
    assert ending(run) == ending(whole)


def test_a_run_killed_twice(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    killed(run, trap("marft.training.trainer:Trainer.estimate", 2))
    child = os.fork()
    if child == 0:
        try:
            trap("marft.training.trainer:Trainer.estimate", 4)()
            main(["train", "--resume", "--run", str(run)])
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert main(["train", "--resume", "--run", str(run)]) == 0
    assert ending(run) == ending(whole)


@pytest.mark.parametrize(
    "name", ["agents/solver/adapter_model.safetensors", "optimizers/critic.safetensors", "state.json", "manifest.json"]
)
def test_a_corrupt_checkpoint_is_passed_over_with_a_warning(
    name: str, whole: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt = copy / "checkpoints" / "000004" / name
    data = bytearray(spoilt.read_bytes())
    data[len(data) // 2] ^= 1
    spoilt.write_bytes(data)
    assert main(["train", "--resume", "--run", str(copy)]) == 0
    [warning] = capsys.readouterr().err.splitlines()
    assert warning.startswith("marft: warning: checkpoint")
    assert "000004 is corrupt" in warning
    assert warning.endswith("going on from iteration 2, and keeping what is damaged as 000004.damaged")
    assert (copy / "checkpoints" / "000004.damaged" / name).read_bytes() == data
    shutil.rmtree(copy / "checkpoints" / "000004.damaged")
    assert ending(copy) == ending(whole)


def test_going_back_and_on_again(whole: Path, copy: Path) -> None:
    assert main(["train", "--resume", "--run", str(copy), "--at", "2"]) == 0
    assert ending(copy) == ending(whole)


def test_going_back_forgets_the_other_future(copy: Path) -> None:
    from marft.evaluation.held_out import HeldOut
    from marft.runs.directory import RunDirectory
    from marft.training import resuming
    from marft.training.build import assemble
    from marft.training.trainer import Trainer

    run = RunDirectory.open(copy)
    config, parts = run.config(), assemble(run.config())
    trainer = Trainer(config, parts, run, HeldOut(config, parts, ""), Silent())
    resuming.resume(trainer, print, 2)
    assert trainer.position.iteration == 2
    assert [row["iteration"] for row in rows(copy / "metrics.jsonl")] == [1, 2]
    assert {row["iteration"] for row in rows(copy / "episodes.jsonl")} == {1, 2}
    assert trainer.checkpoints.list() == [2]


@pytest.mark.parametrize("at", ["3", "-1"])
def test_a_checkpoint_that_is_not_there(copy: Path, capsys: pytest.CaptureFixture[str], at: str) -> None:
    before = ending(copy)
    assert main(["train", "--resume", "--run", str(copy), "--at", at]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"has no checkpoint of iteration {at}; available: 2, 4" in line
    assert ending(copy) == before


def test_resuming_a_finished_run_changes_nothing(whole: Path, copy: Path) -> None:
    assert main(["train", "--resume", "--run", str(copy)]) == 0
    assert ending(copy) == ending(whole)


def test_a_run_can_be_made_longer(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", *SETTINGS, "train.iterations=2", "--run", str(run)]) == 0
    assert main(["train", "--resume", "--run", str(run), "train.iterations=4"]) == 0
    assert ending(run) == ending(whole)
