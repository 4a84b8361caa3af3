"""Players on Ray: two nodes, players and nodes that end, and the run is the same, byte for byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from quick import config_of, settings_of, start
from ray_nodes import digest, end_node, is_loopback, listening, node_of
from toys import rows

from marft.config import parse, to_yaml
from marft.distributed import ray_cluster, ray_connection
from marft.distributed.ray_cluster import RayCluster
from marft.distributed.ray_connection import ClusterError
from marft.distributed.remote_worker import RemoteWorker
from marft.processes import descendants
from marft.types import MarftError

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'marft[ray]'")

if find_spec("ray") is not None:
    import ray

STEADY = {"decay": "constant"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with processes."""
    return played_by(tmp_path_factory.mktemp("plain") / "run", None)


def played_by(path: Path, address: str | None, iterations: int = 4, **rollout: Any) -> Path:
    train = {"iterations": iterations, "tasks": 4, "lag": 1}
    who = {"workers": 2, "shards": 2, "threads": 1, **rollout}
    return start(path, train=train, rollout=who, optimizer=STEADY, cluster={"address": address})


def incidents(run: Path) -> list[str]:
    return [event["line"] for event in rows(run / "events.jsonl") if event["event"] == "player"]


def harm_player(monkeypatch: pytest.MonkeyPatch, harm: Callable[[Any], object]) -> list[float]:
    """The first player that plays in the second iteration is harmed while it does; when that was."""
    harmed: list[float] = []
    plays = RemoteWorker.play

    def play(self: RemoteWorker, assignment: Any, *rest: Any) -> Any:
        if assignment.key.iteration == 1 and not harmed:
            harmed.append(time.monotonic())
            harm(self.channel)
        return plays(self, assignment, *rest)

    monkeypatch.setattr(RemoteWorker, "play", play)
    return harmed


def test_players_on_two_nodes_play_what_processes_would(
    cluster: Any, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: set[str] = set()
    plays = RemoteWorker.play

    def play(self: RemoteWorker, *rest: Any) -> Any:
        """The first player waits for the second: a quick one would play all there is."""
        nodes.add(node_of(self.channel))
        until = time.monotonic() + 60
        while len(nodes) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        return plays(self, *rest)

    monkeypatch.setattr(RemoteWorker, "play", play)
    before = signal.getsignal(signal.SIGTERM)
    run = played_by(tmp_path / "run", cluster.address)
    assert digest(run) == digest(plain)
    assert rows(run / "episodes.jsonl") == rows(plain / "episodes.jsonl")
    assert len(nodes) == 2
    assert incidents(run) == []
    assert signal.getsignal(signal.SIGTERM) is before
    assert not ray.is_initialized()


def test_a_player_that_is_killed_is_replaced(
    cluster: Any, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmed = harm_player(monkeypatch, lambda channel: os.kill(channel.pid, signal.SIGKILL))
    run = played_by(tmp_path / "run", cluster.address)
    assert harmed
    assert digest(run) == digest(plain)
    [line] = incidents(run)
    assert "ended by itself" in line


def test_a_player_that_is_stopped_is_replaced(
    cluster: Any, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which Ray never says a word."""
    stopped: list[int] = []

    def stop(channel: Any) -> None:
        stopped.append(channel.pid)
        os.kill(stopped[0], signal.SIGSTOP)

    harm_player(monkeypatch, stop)
    run = played_by(tmp_path / "run", cluster.address, patience=15)
    assert digest(run) == digest(plain)
    [line] = incidents(run)
    assert "for 15 s" in line
    ended = time.monotonic()
    while Path(f"/proc/{stopped[0]}").exists():  # Ray asks it to end, and kills it five seconds later
        assert time.monotonic() - ended < 20
        time.sleep(0.1)


def test_the_players_of_a_node_that_ends_are_replaced_elsewhere(
    cluster: Any, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmed = harm_player(monkeypatch, lambda channel: end_node(cluster, channel))
    run = played_by(tmp_path / "run", cluster.address)
    assert digest(run) == digest(plain)
    cluster.add_node(num_cpus=2)
    lines = incidents(run)  # until the node is known to be gone, another player may be sent there in vain
    assert 1 <= len(lines) <= 2
    assert all("ended by itself" in line for line in lines)
    assert time.monotonic() - harmed[0] < 60


def test_a_player_waits_for_room_and_takes_a_node_that_comes_back(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two players that need a whole node each."""
    launcher = RayCluster(config_of(rollout={"workers": 2}, cluster={"address": cluster.address}), "cpu", 2)
    launcher.open()
    try:
        table = ray.util.placement_group_table(launcher._group)
        [node] = [node for node in cluster.worker_nodes if node.node_id == table["bundles_to_node_id"][1]]
        cluster.remove_node(node, allow_graceful=False)
        while any(each["NodeID"] == node.node_id and each["Alive"] for each in ray.nodes()):
            time.sleep(0.2)
        placed = threading.Event()

        def wait() -> None:
            launcher._wait_for_place(1, lambda: True)
            placed.set()

        threading.Thread(target=wait, daemon=True).start()
        assert not placed.wait(3)
        cluster.add_node(num_cpus=2)
        assert placed.wait(30)
    finally:
        launcher.close()


def test_a_cluster_without_room_is_one_line(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "PLACE_S", 2.0)
    launcher = RayCluster(config_of(rollout={"workers": 3}, cluster={"address": cluster.address}), "cuda:0", 2)
    with pytest.raises(
        ClusterError,
        match=r"^cluster\.address: no place for the workers within 2 s: 3 × 2 CPU and 1 GPU are asked for; "
        r"the cluster has 4 CPU, of which 4 CPU are free; add nodes",
    ):
        launcher.open()
    assert not ray.is_initialized()


def test_a_wrong_token_is_refused_in_one_line(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "1" * 64)
    with pytest.raises(
        ClusterError, match=r"^cluster\.address: the cluster at .* refuses our token; set RAY_AUTH_MODE"
    ):
        ray_connection.connect(cluster.address)


def test_a_node_without_our_code_is_one_line(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = "def __init__(self, *rest): ...", "def tell(self, said): ...", "def pid(self): ...", "listen = tell"
    source = "class WorkActor:\n" + "".join(f"    {method}\n" for method in methods)
    (tmp_path / "only_here.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    monkeypatch.setattr(ray_cluster, "WorkActor", only_here.WorkActor)
    with pytest.raises(MarftError, match=r"^a node of the cluster cannot import marft; install the same marft\[ray\]"):
        played_by(tmp_path / "run", cluster.address, iterations=1)


def test_a_local_ray_is_heard_by_nobody_else_and_ends_with_its_trainer(tmp_path: Path) -> None:
    """kill -9: nobody tells it."""
    config = parse(settings_of(train={"iterations": 1000, "lag": 1}, cluster={"address": "local"}))
    (tmp_path / "team.yaml").write_text(to_yaml(config))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    trainer = subprocess.Popen(
        [sys.executable, "-m", "marft.cli", "train", "team.yaml", "--run", "run"], cwd=tmp_path,
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            assert trainer.poll() is None
            time.sleep(0.1)
        started = descendants(trainer.pid)
        heard = listening([trainer.pid, *started])
        assert len(heard) >= 4  # the trainer's own, the store's, the node's, the player's
        assert all(map(is_loopback, heard)), heard
        assert b"RAY_AUTH_TOKEN" not in Path(f"/proc/{trainer.pid}/environ").read_bytes()
    finally:
        trainer.kill()
        trainer.wait()
    ended = time.monotonic()
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() - ended < 15
        time.sleep(0.1)
