"""Workers on a Ray cluster, each in a place that is reserved there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from marft.config import Config
from marft.distributed.messages import Setup
from marft.distributed.ray_actor import PlayerActor
from marft.distributed.ray_connection import ClusterError, LocalRay, connect
from marft.distributed.remote_worker import LOOK_S, WorkerLost

if TYPE_CHECKING:  # it imports Ray
    from marft.distributed.ray_worker import RayWorker

PLACE_S = 45.0  # without a place for anybody, after which the run ends


class RayLauncher:
    """Workers are actors, each in its own bundle of one placement group.

    The group is spread over the nodes, so that the end of a node takes as few workers along as can be; what they say to
    the learner is small, and gains nothing from being near. Ray moves the bundles of a node that ends to other nodes.
    """

    def __init__(self, config: Config, device: str, threads: int | None) -> None:
        self.config, self.device = config, device
        self.threads = threads or torch.get_num_threads()
        self._connected = False
        self._local: LocalRay | None = None
        self._group: Any = None
        self._workers: dict[int, RayWorker] = {}  # the last of each number
        self._lived = time.monotonic()  # when any of them did, last

    @property
    def bundle(self) -> dict[str, float]:
        """What a worker needs."""
        return {"CPU": self.threads, **({"GPU": 1} if self.device.startswith("cuda") else {})}

    def open(self) -> None:
        """Connect, and reserve a place for every worker."""
        address = self.config.cluster.address
        assert address is not None
        try:
            if address == "local":
                self._local = LocalRay(self.config.workers * self.threads, self.device)
            else:
                connect(address)
            self._connected = True
            self._reserve()
        except BaseException:
            self.close()
            raise

    def launch(self, number: int, setup: Setup, is_wanted: Callable[[], bool]) -> RayWorker:
        """An actor in the bundle of that number, as soon as this is on a node."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from marft.distributed.ray_worker import RayWorker

        self._wait_for_place(number, is_wanted)
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number)
        kind = ray.remote(PlayerActor).options(
            num_cpus=self.bundle["CPU"], num_gpus=self.bundle.get("GPU", 0), max_restarts=0, max_concurrency=2,
            scheduling_strategy=place,
        )  # fmt: skip
        actor = kind.remote(os.getcwd(), [path for path in sys.path if path])
        setup = replace(setup, device=self.device.partition(":")[0], threads=self.threads)
        self._workers[number] = RayWorker(actor, setup, self.config.rollout.patience, is_wanted)
        return self._workers[number]

    def close(self) -> None:
        """What is reserved is free again; a local Ray ends."""
        with ExitStack() as stack:  # one that fails keeps none of the others
            if self._local is not None:
                stack.callback(self._local.close)
            if self._connected:
                import ray

                self._connected = False
                stack.callback(ray.shutdown)
                if self._group is not None:
                    group, self._group = self._group, None
                    ray.util.remove_placement_group(group)

    def _reserve(self) -> None:
        import ray

        self._group = ray.util.placement_group([self.bundle] * self.config.workers, strategy="SPREAD")
        if not self._group.wait(PLACE_S):
            raise ClusterError(self._describe_lack())

    def _wait_for_place(self, number: int, is_wanted: Callable[[], bool]) -> None:
        """A bundle whose node ended has none until there is room elsewhere, or the node comes back. As long as anybody
        lives, the others play."""
        import ray

        began = time.monotonic()
        while is_wanted():
            nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            if ray.util.placement_group_table(self._group)["bundles_to_node_id"].get(number) in nodes:
                return
            if any(not worker.closed for worker in list(self._workers.values())):
                self._lived = time.monotonic()
            if time.monotonic() - max(began, self._lived) > PLACE_S:
                raise ClusterError(self._describe_lack())
            time.sleep(LOOK_S)
        raise WorkerLost("is not wanted any more")

    def _describe_lack(self) -> str:
        import ray

        asked, whole, free = map(describe, (self.bundle, ray.cluster_resources(), ray.available_resources()))
        return (
            f"cluster.address: no place for the workers within {PLACE_S:g} s: {self.config.workers} × {asked} are asked for; "
            f"the cluster has {whole}, of which {free} are free; add nodes, or lower rollout.workers or rollout.threads"
        )


def describe(resources: Mapping[str, float]) -> str:
    """CPUs and GPUs."""
    found = [f"{resources.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU") if kind == "CPU" or kind in resources]
    return " and ".join(found)
