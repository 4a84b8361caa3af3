"""A Ray cluster of several nodes on this machine, and how to harm it."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from marft.distributed.ray_connection import ALONE, HEALTH

if find_spec("ray") is not None:  # which reads its variables when it is imported
    os.environ.update(ALONE, RAY_AUTH_TOKEN="0" * 64, RAY_USAGE_STATS_ENABLED="0", **HEALTH)
    import ray
    from ray.cluster_utils import Cluster


@contextmanager
def two_nodes(cpus: int) -> Iterator[Any]:
    """A head without room, and two nodes with so many CPUs each; all on the loopback address."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        made.add_node(num_cpus=cpus)
    yield made
    made.shutdown()


def node_of(channel: Any) -> str:
    """The id of the node that an actor is on."""
    return str(ray.get(channel.actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id())))


def end_node(cluster: Any, channel: Any) -> None:
    """That of an actor."""
    [node] = [node for node in cluster.worker_nodes if node.node_id == node_of(channel)]
    cluster.remove_node(node, allow_graceful=False)
    os.kill(channel.pid, signal.SIGKILL)  # a machine that ends takes all its processes along


def listening(pids: list[int]) -> list[str]:
    """The addresses that these processes listen at."""
    said = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
    return [line.split()[3] for line in said.splitlines() if any(f"pid={pid}," in line for pid in pids)]


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it."""
    return address.startswith(("127.0.0.1:", "[::ffff:127.0.0.1]:", "[::1]:"))


def digest(run: Path, iteration: int = 4) -> str:
    """Of all weights, moments and earlier versions after an iteration."""
    files = sorted((run / "checkpoints" / f"{iteration:06d}").rglob("*.safetensors"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
