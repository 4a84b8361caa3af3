"""Workers: whoever plays, in how many processes, killed how often, the run is the same, byte for byte."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quick import config_of, resume, settings_of, start
from toys import rows

from marft.config import parse, to_yaml
from marft.distributed import fleet, worker_process
from marft.distributed.fleet import WorkersFailed
from marft.distributed.messages import SETUPS, Setup, pack_setup
from marft.distributed.player import package_versions, prepare
from marft.distributed.worker_process import WorkerProcess
from marft.envs.processes import descendants
from marft.types import MarftError

TRAIN = {"iterations": 4, "tasks": 4}
STEADY = {"decay": "constant"}  # so that a run's length changes nothing before its end


def digest(run: Path) -> str:
    """Of all weights, moments and earlier versions at the end of a run."""
    files = sorted((run / "checkpoints" / "000004").rglob("*.safetensors"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def played(run: Path) -> list[dict[str, Any]]:
    return rows(run / "episodes.jsonl")


def with_workers(path: Path, lag: int, workers: int, train: dict[str, Any] | None = None, **rollout: Any) -> Path:
    given = {"workers": workers, "shards": 2, **rollout}
    return start(path, train={**TRAIN, **(train or {}), "lag": lag}, rollout=given, optimizer=STEADY)


@pytest.fixture
def no_process_left() -> Any:
    yield
    assert [pid for pid in descendants(os.getpid()) if b"distributed.worker" in command_line(pid)] == []


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def harm_workers(monkeypatch: pytest.MonkeyPatch, harm: Callable[[WorkerProcess], None], times: int) -> list[int]:
    """The workers that play in every other iteration, until `times` were harmed, are harmed while they do; their pids."""
    harmed: list[int] = []
    plays = WorkerProcess.play

    def play(self: WorkerProcess, assignment: Any, *rest: Any) -> Any:
        if assignment.key.iteration % 2 == 0 and len(harmed) < times:
            harmed.append(self.process.pid)
            harm(self)
        return plays(self, assignment, *rest)

    monkeypatch.setattr(WorkerProcess, "play", play)
    return harmed


def kill_soon(worker: WorkerProcess) -> None:
    threading.Timer(0.02, worker.process.kill).start()


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("lag", [1, 2])
def test_neither_the_number_of_workers_nor_their_deaths_change_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: int
) -> None:
    alone = with_workers(tmp_path / "alone", lag, 0)
    two = with_workers(tmp_path / "two", lag, 2)
    resumed = with_workers(tmp_path / "resumed", lag, 1, train={"iterations": 2})
    resume(resumed, None, "train.iterations=4")
    harmed = harm_workers(monkeypatch, kill_soon, times=2)
    killed = with_workers(tmp_path / "killed", lag, 2)
    assert len(harmed) == 2
    assert {digest(run) for run in (alone, two, resumed, killed)} == {digest(alone)}
    assert played(two) == played(resumed) == played(killed) == played(alone)
    behind = [max(0, iteration - 1 - lag) for iteration in range(1, 5)]
    versions = [
        {turn["version"] for row in played(two) if row["iteration"] == i + 1 for turn in row["turns"]} for i in range(4)
    ]
    assert versions == [{version} for version in behind]
    lines = [event["line"] for event in rows(killed / "events.jsonl") if event["event"] == "player"]
    assert lines
    assert all("ended" in line and "another one takes its place" in line for line in lines)


def test_at_lag_0_workers_play_what_this_process_would(tmp_path: Path) -> None:
    alone, two = with_workers(tmp_path / "alone", 0, 0), with_workers(tmp_path / "two", 0, 2)
    assert digest(two) == digest(alone)
    assert [row["agents"]["ann"]["staleness"] for row in rows(two / "metrics.jsonl")] == [0.0] * 4


def test_a_worker_that_is_stopped_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(worker: WorkerProcess) -> None:
        os.kill(worker.process.pid, signal.SIGSTOP)

    harmed = harm_workers(monkeypatch, stop, times=1)
    run = with_workers(tmp_path / "run", 1, 1, train={"iterations": 1}, patience=4.0)
    [event] = [event for event in rows(run / "events.jsonl") if event["event"] == "player"]
    assert "gave no sign of life for 4 s (rollout.patience)" in event["line"]
    assert not Path(f"/proc/{harmed[0]}").exists()


@pytest.mark.usefixtures("no_process_left")
def test_workers_that_never_start_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = worker_process.ChildProcess
    monkeypatch.setattr(worker_process, "ChildProcess", lambda module, **more: child("marft.no_such_module", **more))
    began = time.monotonic()
    with pytest.raises(WorkersFailed, match=r"^3 workers were lost and nothing was played: the last ended"):
        with_workers(tmp_path / "run", 1, 1)
    assert time.monotonic() - began < 60


@pytest.mark.usefixtures("no_process_left")
def test_workers_that_all_die_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "DEATHS", 2)
    harm_workers(monkeypatch, lambda worker: worker.process.kill(), times=100)
    with pytest.raises(WorkersFailed, match="2 workers were lost and nothing was played"):
        with_workers(tmp_path / "run", 1, 1)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_worker_of_another_version_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "package_versions", lambda: {**package_versions(), "torch": "0.0.0"})
    with pytest.raises(
        MarftError, match=r"^a worker says: the trainer has torch 0\.0\.0 and a worker on .*; install the same"
    ):
        with_workers(tmp_path / "run", 1, 1)


def test_workers_end_with_a_trainer_that_is_killed(tmp_path: Path) -> None:
    """kill -9: nobody tells them."""
    config = parse(settings_of(train={"iterations": 1000, "lag": 1}))
    (tmp_path / "team.yaml").write_text(to_yaml(config))
    trainer = subprocess.Popen(
        [sys.executable, "-m", "marft.cli", "train", "team.yaml", "--run", "run"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            assert trainer.poll() is None
            time.sleep(0.1)
        workers = [pid for pid in descendants(trainer.pid) if b"distributed.worker" in command_line(pid)]
        assert len(workers) == 1
    finally:
        trainer.kill()
        trainer.wait()
    ended = time.monotonic()
    while any(b"distributed.worker" in command_line(pid) for pid in workers):
        assert time.monotonic() - ended < 5
        time.sleep(0.02)


# --- vLLM in every worker ---------------------------------------------------------------------------------------------
def setups(rollout: dict[str, Any], **engine: Any) -> list[Setup]:
    """What workers are made from, as they read it."""
    config = config_of(engine={"name": "vllm", **engine}, rollout=rollout)
    made = fleet.WorkerFleet(config, {"ann": (8, 16.0)}, fleet.ProcessLauncher(1.0))
    return [SETUPS.validate_json(pack_setup(each)[1:]) for each in made._setups]


def test_engines_on_one_device_share_its_memory() -> None:
    [one, two] = setups({"workers": 2}, memory=0.6)
    for setup in (one, two):
        config = prepare(setup, package_versions())
        assert config.engine.share / config.engines_beside() == pytest.approx(0.2)  # the learner's engine is the third
    [local] = setups({"workers": 1}, name="local", memory=0.6)
    assert prepare(local, package_versions()).engine.memory == 0.6


@pytest.mark.parametrize(
    ("device", "gpus", "beside", "alone"),
    [
        ("cuda", [1, 2], [2, 1, 2], 1),
        ("auto", [0, 1], [3, 1, 3], 3),
        ("cpu", [0], [2, 2], 1),
        ("cuda:0", [], [3, 3], 3),
    ],
)
def test_engines_are_counted_gpu_by_gpu(device: str, gpus: list[int], beside: list[int], alone: int) -> None:
    config = config_of(device=device, rollout={"workers": len(beside), "gpus": gpus})
    assert [config.engines_beside(number) for number in range(config.workers)] == beside
    assert config.engines_beside() == alone


def test_a_worker_with_vllm_sees_its_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = setups({"workers": 3, "gpus": [1, 2]})
    assert [(setup.device, setup.gpu) for setup in found] == [("cuda", "1"), ("cuda", "2"), ("cuda", "1")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7")
    [setup] = setups({"workers": 1, "gpus": [1]})
    assert setup.gpu == "7"
    with pytest.raises(MarftError, match=r"rollout.gpus: CUDA_VISIBLE_DEVICES=4, 7 has no GPU 2"):
        setups({"workers": 1, "gpus": [2]})
    [setup] = setups({"workers": 1, "gpus": [1]}, name="local")
    assert (setup.device, setup.gpu) == ("cuda:1", None)
