"""Players and ranks of the learner on a Ray cluster, each in a place that is reserved there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from marft.channels import LOOK_S, Hear, Unreachable, Work
from marft.config import Config
from marft.distributed import player
from marft.distributed.messages import Setup
from marft.distributed.ray_actor import WorkActor
from marft.distributed.ray_connection import ClusterError, LocalRay, connect
from marft.distributed.remote_worker import RemoteWorker, WorkerLost
from marft.training import rank_process

if TYPE_CHECKING:  # it imports Ray
    from marft.distributed.ray_channel import RayChannel

PLACE_S = 45.0  # without a place for a rank, or for any player, after which the run ends
RANK_PATIENCE_S = 60.0  # for a rank to take a message; how long it may be silent is the learner's business


class RayCluster:
    """Ranks and players are actors, each in its own bundle of one placement group: first ranks 1, 2, …, then the players.

    The group is spread over the nodes, so that the end of a node takes as few along as can be. Ray moves the bundles of a
    node that ends to other nodes. A GPU that a rank holds is nobody else's.
    """

    def __init__(self, config: Config, device: str, threads: int | None, rank_threads: int = 1) -> None:
        """`device` is rank 0's, and `rank_threads` what it and the others compute with; each player has `threads`."""
        self.config, self.device = config, device
        self.threads, self.rank_threads = threads or torch.get_num_threads(), rank_threads
        self._connected = False
        self._local: LocalRay | None = None
        self._group: Any = None
        self._channels: dict[int, RayChannel] = {}  # the last of each bundle

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What each rank needs, and then each player."""
        gpu = {"GPU": 1.0} if self.device.startswith("cuda") else {}
        rank, player = {"CPU": float(self.rank_threads), **gpu}, {"CPU": float(self.threads), **gpu}
        return [rank] * self._other_ranks + [player] * self.config.workers

    @property
    def _other_ranks(self) -> int:
        return self.config.learner.ranks - 1

    @property
    def host(self) -> str:
        """The address that this machine has in the cluster."""
        import ray

        return self._address_of(ray.get_runtime_context().get_node_id())

    def open(self) -> None:
        """Connect, and reserve a place for everybody."""
        address = self.config.cluster.address
        assert address is not None
        try:
            if address == "local":
                self._local = LocalRay(int(sum(bundle["CPU"] for bundle in self.bundles)), self.device)
            else:
                connect(address)
            self._connected = True
            self._reserve()
        except BaseException:
            self.close()
            raise

    def launch(self, number: int, setup: Setup, is_wanted: Callable[[], bool]) -> RemoteWorker:
        """A player in its bundle, as soon as this is on a node."""
        setup = replace(setup, device=self.device.partition(":")[0], threads=self.threads)
        patience, place = self.config.rollout.patience, self._other_ranks + number
        start = partial(self._start, place, player.work, patience, is_wanted)
        try:
            return RemoteWorker(setup, patience, is_wanted, start)
        except Unreachable as error:
            raise WorkerLost(str(error)) from error

    def launch_rank(self, rank: int, hear: Hear) -> RayChannel:
        """A rank in its bundle. As long as nobody knows that a node has ended, it is sent there in vain."""
        began = time.monotonic()
        while True:
            try:
                return self._start(rank - 1, rank_process.work, RANK_PATIENCE_S, lambda: True, hear)
            except Unreachable:
                if time.monotonic() - began > PLACE_S:
                    raise ClusterError(self._describe_lack()) from None

    def close(self) -> None:
        """What is reserved is free again; a local Ray ends."""
        with ExitStack() as stack:  # one that fails keeps none of the others
            if self._local is not None:
                stack.callback(self._local.close)
            if self._connected:
                import ray

                self._connected = False
                stack.callback(ray.shutdown)
                for channel in self._channels.values():
                    stack.callback(channel.join)
                    stack.callback(channel.end)
                if self._group is not None:
                    group, self._group = self._group, None
                    ray.util.remove_placement_group(group)

    def _reserve(self) -> None:
        import ray

        self._group = ray.util.placement_group(self.bundles, strategy="SPREAD")
        if not self._group.wait(PLACE_S):
            raise ClusterError(self._describe_lack())

    def _start(self, number: int, work: Work, patience: float, is_wanted: Callable[[], bool], hear: Hear) -> RayChannel:
        """An actor in the bundle of that number that lives; Unreachable where it has ended again."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from marft.distributed.ray_channel import RayChannel, answer, end_actor

        self._wait_for_place(number, is_wanted)
        bundle, place = self.bundles[number], PlacementGroupSchedulingStrategy(self._group, number)
        kind = ray.remote(WorkActor).options(
            num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0), max_restarts=0, max_concurrency=2,
            scheduling_strategy=place,
        )  # fmt: skip
        actor = kind.remote(os.getcwd(), [path for path in sys.path if path], work)
        try:
            pid, host = answer(actor.pid.remote(), patience, is_wanted), self._address_of(self._node_of(number))
        except BaseException:
            end_actor(actor)
            raise
        if before := self._channels.pop(number, None):
            before.end()
            before.join()
        self._channels[number] = RayChannel(actor, pid, host, hear, patience, is_wanted)
        return self._channels[number]

    def _wait_for_place(self, number: int, is_wanted: Callable[[], bool]) -> None:
        """A bundle whose node ended has none until there is room elsewhere, or the node comes back. As long as any player
        lives, the others play; nobody learns without a rank."""
        import ray

        began = time.monotonic()
        while is_wanted():
            nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            if self._node_of(number) in nodes:
                return
            if number >= self._other_ranks and self._any_player():
                began = time.monotonic()
            if time.monotonic() - began > PLACE_S:
                raise ClusterError(self._describe_lack())
            time.sleep(LOOK_S)
        raise Unreachable("is not wanted any more")

    def _any_player(self) -> bool:
        return any(not each.closed for number, each in list(self._channels.items()) if number >= self._other_ranks)

    def _node_of(self, number: int) -> str | None:
        """Of a bundle, by its id; None: it has no place."""
        import ray

        found: str | None = ray.util.placement_group_table(self._group)["bundles_to_node_id"].get(number)
        return found

    def _address_of(self, node: str | None) -> str:
        import ray

        found = [each["NodeManagerAddress"] for each in ray.nodes() if each["NodeID"] == node]
        if not found:
            raise Unreachable("ended with its node")
        return str(found[0])

    def _describe_lack(self) -> str:
        import ray

        counted = {str(bundle): (bundle, self.bundles.count(bundle)) for bundle in self.bundles}
        asked = " and ".join(f"{count} × {describe(bundle)}" for bundle, count in counted.values())
        whole, free = map(describe, (ray.cluster_resources(), ray.available_resources()))
        ranks = ", learner.ranks" if self._other_ranks else ""
        return (
            f"cluster.address: no place for the workers within {PLACE_S:g} s: {asked} are asked for; "
            f"the cluster has {whole}, of which {free} are free; add nodes, or lower rollout.workers{ranks} or rollout.threads"
        )


def describe(resources: Mapping[str, float]) -> str:
    """CPUs and GPUs."""
    found = [f"{resources.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU") if kind == "CPU" or kind in resources]
    return " and ".join(found)
