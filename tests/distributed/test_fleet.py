"""Workers: whoever plays, in how many processes, killed how often, the run is the same, byte for byte."""

from __future__ import annotations

import hashlib
import os
import platform
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

from marft.cli import main
from marft.config import parse, to_yaml
from marft.distributed import fleet, worker_process
from marft.distributed.fleet import WorkersFailed
from marft.distributed.messages import SETUPS, Setup, pack_setup
from marft.distributed.player import prepare
from marft.distributed.remote_worker import RemoteWorker
from marft.engines.kept_keys import KeptKeys
from marft.engines.local import LocalEngine
from marft.game.play import Game
from marft.models.team import TeamModel
from marft.processes import descendants
from marft.runs.directory import RunDirectory
from marft.training.packages import package_versions
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


def harm_workers(monkeypatch: pytest.MonkeyPatch, harm: Callable[[RemoteWorker], None], times: int) -> list[int]:
    """The workers that play in every other iteration, until `times` were harmed, are harmed while they do; their pids."""
    harmed: list[int] = []
    plays = RemoteWorker.play

    def play(self: RemoteWorker, assignment: Any, *rest: Any) -> Any:
        if assignment.key.iteration % 2 == 0 and len(harmed) < times:
            harmed.append(self.channel.pid)
            harm(self)
        return plays(self, assignment, *rest)

    monkeypatch.setattr(RemoteWorker, "play", play)
    return harmed


def kill_soon(worker: RemoteWorker) -> None:
    threading.Timer(0.02, os.kill, (worker.channel.pid, signal.SIGKILL)).start()


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


async def act_thrice(game: Game) -> None:
    for _ in range(3):
        await game.act(*game.team)


@pytest.mark.usefixtures("no_process_left")
def test_keys_that_are_kept_from_turn_to_turn_change_no_byte_whoever_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process has played one shard before it plays the other, and has kept what it could; a worker may not have."""
    found: list[bool] = []
    find = KeptKeys.find
    monkeypatch.setattr(KeptKeys, "find", lambda *given: found.append(bool(prefix := find(*given))) or prefix)

    def conversing(path: Path, workers: int, iterations: int = 4) -> Path:
        return start(
            path, train={**TRAIN, "iterations": iterations, "lag": 1}, rollout={"workers": workers, "shards": 2},
            optimizer=STEADY, engine={"keep": 5},
            team={"workflow": "test_fleet:act_thrice", "history": "conversation"},
        )  # fmt: skip

    alone, two = conversing(tmp_path / "alone", 0), conversing(tmp_path / "two", 2)
    resumed = conversing(tmp_path / "resumed", 1, iterations=2)
    resume(resumed, None, "train.iterations=4")
    assert played(two) == played(resumed) == played(alone)
    assert digest(two) == digest(resumed) == digest(alone)
    assert len(set(found)) == 2  # some is kept, and there is not room for all


def swapping(**rollout: Any) -> dict[str, Any]:
    """Long turns, so that versions can enter in the middle of them."""
    agents = {name: {"max_tokens": 96, "temperature": 3.0} for name in ("ann", "bob")}
    given = {"shards": 2, "swap": "token", **rollout}
    return {
        "train": {**TRAIN, "samples": 8, "lag": 2},
        "rollout": given,
        "optimizer": STEADY,
        "team": {"agents": agents},
    }


def logged(run: Path) -> dict[tuple[int, int], Any]:
    events = [event for event in rows(run / "events.jsonl") if event["event"] == "swaps"]
    return {(event["iteration"], event["shard"]): event["swaps"] for event in events}


@pytest.mark.usefixtures("no_process_left")
def test_versions_enter_where_a_log_says_whoever_plays_and_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = {(2, 0): [[3, 1]], (3, 0): [[1, 1], [5, 2]], (4, 1): [[2, 3]]}
    source = RunDirectory.create(tmp_path / "log", config_of(**swapping()), {})
    for (iteration, shard), swaps in log.items():
        source.append_event("swaps", iteration, play=0, shard=shard, swaps=swaps)
    given = {"replay": str(source.path)}
    one = start(tmp_path / "one", **swapping(workers=1, **given))
    harmed = harm_workers(monkeypatch, kill_soon, times=2)
    two = start(tmp_path / "two", **swapping(workers=2, **given))
    assert len(harmed) == 2
    assert digest(two) == digest(one)
    assert played(two) == played(one)
    everywhere = {(iteration, shard): [] for iteration in range(1, 5) for shard in (0, 1)}
    assert (
        logged(two) == logged(one) == everywhere | log
    )  # also where nothing entered: it may have when it was played before
    turns = {i: [turn for row in played(one) if row["iteration"] == i for turn in row["turns"]] for i in (1, 2, 3)}
    runs = {i: {tuple(v for v, _ in turn.get("versions", [[turn["version"]] * 2])) for turn in turns[i]} for i in turns}
    assert runs[1] == {(0,)}
    assert (0, 1) in runs[2]
    assert (1, 2) in runs[3]
    assert all(
        sum(count for _, count in turn["versions"]) == len(turn["token_ids"])
        for turn in turns[2] + turns[3]
        if "versions" in turn
    )


@pytest.mark.usefixtures("no_process_left")
def test_a_run_with_swaps_is_repeated_by_its_own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second iteration begins late, when a newer version is there."""
    plays = RemoteWorker.play

    def play(self: RemoteWorker, assignment: Any, adapters: Any, tasks: Any, newer: Any) -> Any:
        while assignment.key.iteration == 1 and not newer(assignment.version):
            time.sleep(0.01)
        return plays(self, assignment, adapters, tasks, newer)

    with monkeypatch.context() as patch:
        patch.setattr(RemoteWorker, "play", play)
        first = start(tmp_path / "first", **swapping(workers=1))
    log = logged(first)
    assert all(log[2, shard][0][1] == 1 for shard in (0, 1))
    staleness = [row["agents"]["ann"]["staleness"] for row in rows(first / "metrics.jsonl")]
    assert staleness[1] < 1  # what it is by turns
    again = start(tmp_path / "again", **swapping(workers=2, replay=str(first)))
    assert digest(again) == digest(first)
    assert played(again) == played(first)
    assert logged(again) == log


def test_a_worker_that_is_stopped_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(worker: RemoteWorker) -> None:
        os.kill(worker.channel.pid, signal.SIGSTOP)

    harmed = harm_workers(monkeypatch, stop, times=1)
    run = with_workers(tmp_path / "run", 1, 1, train={"iterations": 1}, patience=4.0)
    [event] = [event for event in rows(run / "events.jsonl") if event["event"] == "player"]
    assert "gave no sign of life for 4 s (rollout.patience)" in event["line"]
    assert not Path(f"/proc/{harmed[0]}").exists()


@pytest.mark.usefixtures("no_process_left")
def test_workers_that_never_start_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "WORKER", "marft.no_such_module")
    began = time.monotonic()
    with pytest.raises(WorkersFailed, match=r"^3 workers were lost and nothing was played: the last ended"):
        with_workers(tmp_path / "run", 1, 1)
    assert time.monotonic() - began < 60


@pytest.mark.usefixtures("no_process_left")
def test_workers_that_all_die_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "DEATHS", 2)
    harm_workers(monkeypatch, lambda worker: os.kill(worker.channel.pid, signal.SIGKILL), times=100)
    with pytest.raises(WorkersFailed, match="2 workers were lost and nothing was played"):
        with_workers(tmp_path / "run", 1, 1)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_worker_of_another_version_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "package_versions", lambda: {**package_versions(), "torch": "0.0.0"})
    with pytest.raises(
        MarftError, match=r"^worker 0 says: the trainer has torch 0\.0\.0 and a worker on .*; install the same"
    ):
        with_workers(tmp_path / "run", 1, 1)


class Diskless(LocalEngine):
    """Writes its adapters to a disk that is full, from version `after` on; in workers alone."""

    def __init__(self, team: TeamModel, after: int) -> None:
        super().__init__(team, 16)
        self.after = after

    def publish(self, version: int, adapters: Any = None) -> None:
        super().publish(version, adapters)
        if version >= self.after and b"distributed.worker" in command_line(os.getpid()):
            with open("/dev/full", "wb") as file:
                file.write(b"adapter")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.usefixtures("no_process_left")
def test_a_worker_whose_disk_is_full_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched = []
    launch = worker_process.ProcessLauncher.launch
    monkeypatch.setattr(
        worker_process.ProcessLauncher, "launch", lambda self, *given: launched.append(given) or launch(self, *given)
    )
    changes: dict[str, Any] = {
        "engine": {"name": "test_fleet:Diskless", "options": {"after": 2}}, "train": {**TRAIN, "lag": 1},
        "rollout": {"workers": 1}, "checkpoint": {"every": 1},
    }  # fmt: skip
    (tmp_path / "team.yaml").write_text(to_yaml(config_of(**changes)))
    run, began = tmp_path / "run", time.monotonic()
    assert main(["train", str(tmp_path / "team.yaml"), "--run", str(run)]) == 2
    assert time.monotonic() - began < 60
    [line] = capsys.readouterr().err.splitlines()
    assert line == (
        f"marft: worker 0 says: a disk of {platform.node()} is full: [Errno 28] No space left on device; free space there. "
        f"What was written is kept: mend it, then marft train --resume --run {run}"
    )
    assert len(launched) == 1  # another would find the same disk
    kept = [row["iteration"] for row in rows(run / "metrics.jsonl")]
    assert kept[0] == 1
    assert sorted(path.name for path in (run / "checkpoints").iterdir())[-1] == f"{kept[-1]:06d}"
    assert main(["train", "--resume", "--run", str(run), "rollout.workers=0"]) == 0
    assert [row["iteration"] for row in rows(run / "metrics.jsonl")] == [1, 2, 3, 4]


@pytest.mark.usefixtures("no_process_left")
def test_a_worker_that_dies_again_and_again_is_replaced_no_more_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "OWN_DEATHS", 2)
    launches: list[int] = []

    class Dying(worker_process.ProcessLauncher):
        def launch(self, number: int, setup: Setup, is_wanted: Callable[[], bool]) -> RemoteWorker:
            launches.append(number)
            worker = super().launch(number, setup, is_wanted)
            if number == 1:
                os.kill(worker.channel.pid, signal.SIGKILL)
            return worker

    monkeypatch.setattr(fleet, "ProcessLauncher", Dying)
    monkeypatch.setattr(fleet, "DEATHS", 100)
    run = with_workers(tmp_path / "run", 1, 2)
    assert launches.count(0) == 1
    assert launches.count(1) == 2
    lines = [event["line"] for event in rows(run / "events.jsonl") if event["event"] == "player"]
    assert "; another one takes its place" in lines[0]
    assert "; it is replaced no more, as 2 of them have played nothing" in lines[1]
    assert len(rows(run / "metrics.jsonl")) == 4


def test_workers_that_are_all_replaced_no_more_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "OWN_DEATHS", 2)
    harm_workers(monkeypatch, lambda worker: os.kill(worker.channel.pid, signal.SIGKILL), times=100)
    with pytest.raises(WorkersFailed, match="2 workers were lost and nothing was played"):
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
    config = prepare(local, package_versions())
    assert config.engine.share / config.engines_beside() == pytest.approx(0.3)


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


def test_a_learner_in_shards_has_no_engine_beside_its_workers() -> None:
    config = config_of(device="cuda", rollout={"workers": 2}, learner={"ranks": 2, "shard": True})
    assert [config.engines_beside(number) for number in range(2)] == [2, 2]


def test_on_ray_every_engine_has_a_gpu_of_its_own() -> None:
    config = config_of(device="cuda", rollout={"workers": 3}, cluster={"address": "auto"})
    assert [config.engines_beside(number) for number in (None, 0, 2)] == [1, 1, 1]


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
