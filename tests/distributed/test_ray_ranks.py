"""Ranks of the learner on Ray, with players beside them: two nodes, ranks and nodes that end, and the run is the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from quick import config_of, start, trainer_of
from ray_nodes import digest, end_node, is_loopback, listening, node_of
from toys import rows

from marft.commands.train import start_run
from marft.config import load_config
from marft.distributed import ray_cluster
from marft.distributed.fleet import open_players
from marft.distributed.ray_cluster import RayCluster
from marft.distributed.ray_connection import ClusterError
from marft.distributed.remote_worker import RemoteWorker
from marft.learners import peers as peers_module
from marft.learners.base import RankFailed
from marft.learners.peers import Peers
from marft.learners.replicated import ReplicatedLearner
from marft.processes import descendants

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; pip install 'marft[ray]'")

LEARNING: dict[str, Any] = {
    "algorithm": "marft-token",
    "train": {"iterations": 4, "tasks": 4, "lag": 1},
    "rollout": {"workers": 2, "shards": 2, "threads": 1},
    "learner": {"ranks": 2},
    "checkpoint": {"every": 1},
}
BAR = 0.90  # of the default team, without ranks and players as well


def learnt_by(path: Path, address: str | None) -> Path:
    return start(path, **LEARNING, cluster={"address": address})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with processes."""
    return learnt_by(tmp_path_factory.mktemp("plain") / "run", None)


def harm_rank(
    monkeypatch: pytest.MonkeyPatch, harms: Mapping[int, Callable[[Any], object]]
) -> Callable[[], list[float]]:
    """In these of its updates rank 0 harms the first other rank; how many seconds later it knew, each time."""
    harmed, noticed, updates = list[float](), list[float](), 0
    real, update, fails = ReplicatedLearner._clip, ReplicatedLearner.update, Peers._fail

    def count(learner: ReplicatedLearner, *given: Any) -> Any:
        nonlocal updates
        updates += 1
        return update(learner, *given)

    def clip(learner: ReplicatedLearner, names: Any) -> Any:
        assert learner.peers is not None
        if (harm := left.pop(updates, None)) is not None:
            harm(learner.peers._all[0].channel)
            harmed.append(time.monotonic())
        return real(learner, names)

    def fail(peers: Peers, reason: Any) -> None:
        if peers.lost is None and len(noticed) < len(harmed):
            noticed.append(time.monotonic())
        fails(peers, reason)

    left = dict(harms)
    monkeypatch.setattr(ReplicatedLearner, "update", count)
    monkeypatch.setattr(ReplicatedLearner, "_clip", clip)
    monkeypatch.setattr(Peers, "_fail", fail)
    return lambda: [known - done for done, known in zip(harmed, noticed, strict=True)]


def kill(channel: Any) -> None:
    os.kill(channel.pid, signal.SIGKILL)


def stop(channel: Any) -> None:
    os.kill(channel.pid, signal.SIGSTOP)


def restarts(run: Path) -> list[str]:
    return [event["reason"] for event in rows(run / "events.jsonl") if event["event"] == "restarted"]


def test_ranks_and_players_on_two_nodes_learn_what_processes_would(
    cluster: Any, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody else can hear them."""
    nodes, heard = list[str](), list[str]()

    def look(channel: Any) -> None:
        assert channel.host == "127.0.0.1"
        nodes.append(node_of(channel))
        heard.extend(listening([os.getpid(), *descendants(os.getpid())]))
        assert len(listening([channel.pid])) >= 2  # Ray's and gloo's

    harm_rank(monkeypatch, {3: look})
    run = learnt_by(tmp_path / "run", cluster.address)
    assert restarts(run) == []
    assert nodes[0] in {node.node_id for node in cluster.worker_nodes}
    assert len(heard) >= 8
    assert all(map(is_loopback, heard)), heard
    assert digest(run) == digest(plain)
    assert rows(run / "episodes.jsonl") == rows(plain / "episodes.jsonl")


def test_ranks_that_are_lost_are_replaced(
    cluster: Any, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is killed in iteration 2; in 3 its successor is stopped, of which Ray never says a word."""
    monkeypatch.setattr(peers_module, "SILENCE_S", 5.0)
    noticed = harm_rank(monkeypatch, {2: kill, 4: stop})
    run = learnt_by(tmp_path / "run", cluster.address)
    print(f"a killed and a stopped rank were noticed after {noticed()} s")
    assert noticed()[0] < 15
    assert noticed()[1] < 60
    first, second = restarts(run)
    assert first.startswith("rank 1 of the learner has ended by itself (ActorDiedError")
    assert second == "rank 1 of the learner has given no sign of life for 5 s"
    assert digest(run) == digest(plain)


def test_a_rank_that_cannot_begin_says_why(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another version, or by a mistake of ours, whose trace is kept."""
    given = {**LEARNING, "rollout": {}, "train": {"tasks": 4}, "cluster": {"address": cluster.address}}
    trainer = trainer_of(tmp_path, **given)
    learner = trainer.learner
    assert isinstance(learner, ReplicatedLearner)
    told = dict(learner.plan.arguments)
    with open_players(trainer.config, trainer.parts):
        for wrong, line, trace in (
            ({"versions": {**told["versions"], "marft": "0.0.0"}}, r"the trainer has marft 0\.0\.0 and a rank of its learner on .*; install", ""),
            ({"adapters": {}}, "'ann'", "build_learner"),
        ):  # fmt: skip
            monkeypatch.setattr(learner, "plan", replace(learner.plan, arguments={**told, **wrong}))
            with pytest.raises(RankFailed, match=rf"^rank 1 of the learner has failed: {line}") as found:
                learner.start()
            assert trace in found.value.trace
            assert bool(trace) == bool(found.value.trace)


def test_a_rank_without_a_place_ends_the_run_whoever_plays(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "PLACE_S", 1.0)
    given = {"rollout": {"workers": 1}, "learner": {"ranks": 2}, "cluster": {"address": cluster.address}}
    places = RayCluster(config_of(**given), "cpu", 1)
    places.open()
    try:
        monkeypatch.setattr(places, "_node_of", lambda number: None)
        monkeypatch.setattr(places, "_any_player", lambda: True)
        with pytest.raises(ClusterError, match=r"no place .*2 × 1 CPU are asked for; .* lower .*learner\.ranks"):
            places.launch_rank(1, lambda message: None)
    finally:
        places.close()


def test_the_default_team_learns_while_players_ranks_and_nodes_end(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A player is killed in iteration 2, a rank in 3; in 4 the rank's node ends, and is there again when new ranks
    are started."""
    started: set[str] = set()
    back: list[Any] = []
    plays, starts, launches = RemoteWorker.play, RayCluster._start, RayCluster.launch_rank

    def play(self: RemoteWorker, assignment: Any, *rest: Any) -> Any:
        if assignment.key.iteration == 1 and not assignment.key.held_out and not killed:
            killed.append(self.channel.pid)
            kill(self.channel)
        return plays(self, assignment, *rest)

    def start_actor(self: RayCluster, number: int, *rest: Any) -> Any:
        channel = starts(self, number, *rest)
        started.add(node_of(channel))
        return channel

    def launch_rank(self: RayCluster, *given: Any) -> Any:
        """The only thread that may start a node is this one."""
        if len(cluster.worker_nodes) < 2:
            back.append(cluster.add_node(num_cpus=2))
        return launches(self, *given)

    killed: list[int] = []
    monkeypatch.setattr(RemoteWorker, "play", play)
    monkeypatch.setattr(RayCluster, "_start", start_actor)
    monkeypatch.setattr(RayCluster, "launch_rank", launch_rank)
    noticed = harm_rank(monkeypatch, {3: kill, 5: lambda channel: end_node(cluster, channel)})
    given = "rollout.workers=2 rollout.threads=1 learner.ranks=2 checkpoint.every=1 track.tensorboard=false"
    config = load_config("duo", [*given.split(), f"cluster.address={cluster.address}"])
    summary = start_run(config, tmp_path / "run")
    print(f"a killed rank and one whose node ended were noticed after {noticed()} s")
    before, after = summary["before"]["accuracy"], summary["after"]["accuracy"]
    print(f"held out {before:.3f} -> {after:.3f} in {summary['seconds']:.0f} s")
    assert before <= 0.5
    assert after >= BAR
    assert killed
    assert len(restarts(tmp_path / "run")) == 2
    assert max(noticed()) < 15
    assert back[0].node_id in started
