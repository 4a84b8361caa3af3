"""Evaluation beside training: the figures of one that stopped it, under the iteration they belong to, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from quick import resume, start
from toys import rows

from marft.distributed.remote_worker import RemoteWorker
from marft.training import trainer as trainer_module
from marft.training.trainer import Trainer

TRAIN = {"iterations": 4, "tasks": 4}
EVAL = {
    "tasks": 5,
    "every": 1,
    "temperature": 0.7,
    "benchmarks": {"few": {"size": 3}, "flaky": {"name": "toys:Flaky", "size": 4}},
}
PATIENCE = 60.0


def run_of(path: Path, workers: int, lag: int = 1, **changes: Any) -> Path:
    given = {"eval": EVAL, "checkpoint": {"every": 1}, **changes}
    return start(path, train={**TRAIN, "lag": lag}, rollout={"workers": workers, "shards": 2}, **given)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A run by its lag, in which one process does everything, one thing after the other."""
    return cache(lambda lag: run_of(tmp_path_factory.mktemp("alone") / "run", 0, lag))


def evaluations(run: Path) -> dict[int, Any]:
    return {row["iteration"]: row["eval"] for row in rows(run / "metrics.jsonl") if "eval" in row}


def assert_same(run: Path, other: Path) -> None:
    assert rows(run / "metrics.jsonl") == rows(other / "metrics.jsonl")
    assert rows(run / "held_out.jsonl") == rows(other / "held_out.jsonl")


@pytest.mark.parametrize("lag", [0, 1])
def test_the_figures_are_those_of_an_evaluation_that_stops_training(
    tmp_path: Path, alone: Callable[[int], Path], lag: int
) -> None:
    beside = run_of(tmp_path / "beside", 2, lag)
    assert list(evaluations(beside)) == [1, 2, 3, 4]
    assert len({json.dumps(found) for found in evaluations(beside).values()}) == 4  # every version has its own
    assert_same(beside, alone(lag))


def hold_evaluation(monkeypatch: pytest.MonkeyPatch, iteration: int, until: threading.Event) -> list[int]:
    """The last part of an evaluation is played once `until` is set; the iterations whose last parts were played."""
    done: list[int] = []
    plays = RemoteWorker.play

    def play(self: RemoteWorker, assignment: Any, *rest: Any) -> Any:
        is_last = assignment.key.held_out and assignment.benchmark == "flaky"
        if is_last and assignment.key.iteration == iteration:
            assert until.wait(PATIENCE)
        played = plays(self, assignment, *rest)
        if is_last:
            done.append(assignment.key.iteration)
        return played

    monkeypatch.setattr(RemoteWorker, "play", play)
    return done


def test_training_goes_on_meanwhile_and_waits_at_a_fixed_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Callable[[int], Path]
) -> None:
    """With a lag of 1 the evaluation of iteration 1 may take until the end of iteration 3. Two workers: one is held."""
    until, begun, seen = threading.Event(), [], {}
    done = hold_evaluation(monkeypatch, 1, until)
    reports = Trainer.report

    def report(self: Trainer, *given: Any) -> None:
        begun.append(self.position.iteration)
        seen[self.position.iteration] = (1 in done, 1 in self.beside)
        if self.position.iteration == 3:
            until.set()
        reports(self, *given)
        assert (1 in self.beside) == (self.position.iteration < 3)

    monkeypatch.setattr(Trainer, "report", report)
    slow = run_of(tmp_path / "slow", 2)
    assert begun == [1, 2, 3, 4]
    assert seen[2] == seen[3] == (False, True)  # iterations 2 and 3 were learnt while it was held
    assert_same(slow, alone(1))


def test_a_worker_that_dies_in_an_evaluation_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Callable[[int], Path]
) -> None:
    killed: list[int] = []
    plays = RemoteWorker.play

    def play(self: RemoteWorker, assignment: Any, *rest: Any) -> Any:
        if assignment.key.held_out and assignment.key.iteration % 2 == 0 and assignment.key.iteration not in killed:
            killed.append(assignment.key.iteration)
            threading.Timer(0.02, os.kill, (self.channel.pid, signal.SIGKILL)).start()
        return plays(self, assignment, *rest)

    monkeypatch.setattr(RemoteWorker, "play", play)
    run = run_of(tmp_path / "killed", 1)
    assert killed == [2, 4]
    assert_same(run, alone(1))
    lost = [event for event in rows(run / "events.jsonl") if event["event"] == "player"]
    assert lost
    assert {event["iteration"] for event in lost} <= {1, 2, 3, 4}


class Killed(BaseException):
    """As kill -9: nothing is tidied up."""


@pytest.mark.parametrize(("lag", "moment"), [(0, "saved"), (1, "saved"), (1, "evaluated")])
def test_what_was_under_way_when_a_run_is_killed_is_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Callable[[int], Path], lag: int, moment: str
) -> None:
    """After the checkpoint of iteration 3; or with transcripts of an evaluation written, and its figures not."""
    if moment == "saved":
        saves = Trainer.save

        def save(self: Trainer) -> None:
            saves(self)
            if self.position.iteration == 3:
                raise Killed

        monkeypatch.setattr(Trainer, "save", save)
    else:

        def add(self: Any, iteration: int, figures: Any) -> None:
            raise Killed

        monkeypatch.setattr("marft.runs.directory.RunDirectory.add_evaluation", add)
    with pytest.raises(Killed):
        run_of(tmp_path / "run", 1, lag)
    monkeypatch.undo()
    missing = {row["iteration"] for row in rows(tmp_path / "run" / "metrics.jsonl")} - {*evaluations(tmp_path / "run")}
    assert missing == ({*range(3 - lag, 4)} if moment == "saved" else {*range(1, lag + 2)})
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", alone(lag))


def test_figures_that_came_after_the_checkpoint_are_not_worked_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Callable[[int], Path]
) -> None:
    run = run_of(tmp_path / "run", 1)
    done = hold_evaluation(monkeypatch, 0, threading.Event())
    resume(run, 2)
    assert {*done} == {3, 4}
    assert_same(run, alone(1))


def test_workers_play_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole play is begun and done by workers within the writing of one."""
    saving, finished, during = threading.Event(), threading.Event(), []
    plays, writes = RemoteWorker.play, trainer_module.write_checkpoint

    def play(self: RemoteWorker, assignment: Any, *rest: Any) -> Any:
        awaits = assignment.key.iteration == 3  # which version 2 plays, the one of the checkpoint
        if awaits:
            assert saving.wait(PATIENCE)
        played = plays(self, assignment, *rest)
        if awaits:
            finished.set()
        return played

    def write(folder: Path, teams: Any, learner: Any, position: Any, behind: Any) -> None:
        if position.iteration == 2:
            saving.set()
            during.append(finished.wait(PATIENCE))
        writes(folder, teams, learner, position, behind)

    monkeypatch.setattr(RemoteWorker, "play", play)
    monkeypatch.setattr(trainer_module, "write_checkpoint", write)
    run_of(tmp_path / "run", 1, 1, eval={"tasks": 0})
    assert during == [True]
