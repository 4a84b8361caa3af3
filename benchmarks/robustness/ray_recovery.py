"""How soon are players of a Ray cluster there, and there again? Two nodes on this machine; prints JSON.

python benchmarks/robustness/ray_recovery.py [--trials 3]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from marft.config import Config, load_config
from marft.distributed.messages import Setup
from marft.distributed.ray_cluster import RayCluster
from marft.distributed.ray_connection import ALONE, HEALTH
from marft.distributed.remote_worker import RemoteWorker, WorkerLost
from marft.training.packages import package_versions

PATIENCE_S = 30.0


def config_at(address: str) -> Config:
    given = {"rollout": {"workers": 2, "threads": 1, "patience": PATIENCE_S}, "cluster": {"address": address}}
    return load_config("duo", [f"{key}.{name}={value}" for key, own in given.items() for name, value in own.items()])


def launch(launcher: RayCluster, number: int) -> RemoteWorker:
    """A player that is ready. As long as nobody knows that a node has ended, players are sent there in vain."""
    config = launcher.config
    adapters = dict.fromkeys(config.team.agents, (config.lora.rank, config.lora.alpha))
    whole = config.model_dump(mode="json")
    setup = Setup(config=whole, adapters=adapters, device="cpu", threads=1, versions=package_versions())
    while True:
        with ExitStack() as stack, suppress(WorkerLost):
            worker = launcher.launch(number, setup, lambda: True)
            stack.callback(worker.close)
            worker.wait_until_ready()
            stack.pop_all()
            return worker


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return round(time.monotonic() - began, 2)


def wait_for_loss(worker: RemoteWorker) -> None:
    while True:
        try:
            worker.check()
        except WorkerLost:
            worker.close()
            return
        time.sleep(0.05)


def replaced(launcher: RayCluster, harm: Callable[[Any], None]) -> dict[str, float]:
    """Seconds until the loss is noticed, and from there until another player is ready."""
    worker: Any = launch(launcher, 0)
    harm(worker.channel)
    noticed = seconds(lambda: wait_for_loss(worker))
    return {"noticed": noticed, "ready": player_start(launcher)}


def player_start(launcher: RayCluster) -> float:
    players: list[RemoteWorker] = []
    ready = seconds(lambda: players.append(launch(launcher, 0)))
    players[0].close()
    return ready


def measure(trials: int) -> dict[str, Any]:
    os.environ.update(ALONE, RAY_AUTH_TOKEN="0" * 64, RAY_USAGE_STATS_ENABLED="0", **HEALTH)
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=2)

    def send(number: signal.Signals) -> Callable[[Any], None]:
        return lambda channel: os.kill(channel.pid, number)

    def end_node(channel: Any) -> None:
        where = ray.get(channel.actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))
        [node] = [node for node in cluster.worker_nodes if node.node_id == where]
        cluster.add_node(num_cpus=2)
        cluster.remove_node(node, allow_graceful=False)
        os.kill(channel.pid, signal.SIGKILL)  # a machine that ends takes all its processes along

    launcher = RayCluster(config_at(cluster.address), "cpu", 1)
    launcher.open()
    try:
        found: dict[str, Any] = {"player": [player_start(launcher) for _ in range(trials)]}
        harms = {"killed": send(signal.SIGKILL), "node": end_node, "stopped": send(signal.SIGSTOP)}
        found |= {name: [replaced(launcher, harm) for _ in range(trials)] for name, harm in harms.items()}
    finally:
        launcher.close()
        cluster.shutdown()
    found["local"] = [local_start() for _ in range(trials)]
    return {"ray": ray.__version__, "cores": os.cpu_count(), "load": round(os.getloadavg()[1], 1), **found}


def local_start() -> float:
    launcher = RayCluster(config_at("local"), "cpu", 1)
    try:
        return seconds(launcher.open)
    finally:
        launcher.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.trials)))


if __name__ == "__main__":
    main()
