"""Several processes of one machine that compute a minibatch together, over torch.distributed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from marft.learners.base import RankLost
from marft.models.sharding import shard_layers
from marft.models.team import TeamModel
from marft.types import MarftError

dist: Any = torch.distributed  # whose stubs know neither stores nor what a process group does
LOOPBACK = "127.0.0.1"
GLOO_HERE = "marft_loopback"  # a name under which torch makes groups that listen nowhere else
LONGEST_WAIT = timedelta(minutes=30)  # of one rank for the others, which may have far more to compute
NCCL_VARIABLES = {
    "NCCL_SOCKET_IFNAME": "lo",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # else a thread of torch's ends this process, before we can say why
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}


class Ranks:
    """Rank `rank` of `size`: sums go through gloo on the loopback interface, those of CUDA tensors through NCCL.

    Process groups of its own, not torch's default one: vLLM in the same process has that. The store is needed only here,
    where the ranks find one another.
    """

    def __init__(self, store: Any, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size = rank, size
        self.lost = threading.Event()  # set from another thread
        self.gloo = connect_gloo(store, rank, size)
        self.nccl = self._connect_gpus(store, device)

    def _connect_gpus(self, store: Any, device: torch.device) -> Any:
        """NCCL, where the ranks have GPUs."""
        return connect_nccl(store, self.rank, self.size, device) if device.type == "cuda" else None

    def share(self, tasks: Sequence[int], sizes: Sequence[int]) -> Sequence[int]:
        """The samples of this rank's tasks: a task's are computed together, since they begin alike."""
        owner = deal_tasks(tasks, sizes, self.size)
        return [i for i, task in enumerate(tasks) if owner[task] == self.rank]

    def add(self, tensors: Sequence[Tensor]) -> None:
        """One sum over the ranks of all tensors end to end."""
        if not tensors:
            return
        self.check()
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        group = self.nccl if flat.is_cuda and self.nccl is not None else self.gloo
        try:
            group.allreduce([flat]).wait()
        except RuntimeError as error:  # torch has no narrower one
            raise RankLost(f"rank {self.rank} has lost another: {str(error).splitlines()[0]}") from error
        if flat.is_cuda:
            torch.cuda.synchronize(flat.device)
        self.check()  # an aborted sum of NCCL raises nothing
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def divide(self, teams: Iterable[TeamModel]) -> None:
        """The bases stay whole on every rank."""

    def passes(self, needed: Sequence[int]) -> Sequence[int]:
        """No more than needed: with a whole base each, ranks meet in sums alone."""
        return needed

    def check(self) -> None:
        """Raise RankLost where it is known that another rank has gone."""
        if self.lost.is_set():
            raise RankLost(f"rank {self.rank} has lost another")

    def abandon(self) -> None:
        """From another thread: nobody is waited for any longer. Gloo sees that a rank has ended, NCCL does not."""
        self.lost.set()
        if self.nccl is not None:
            self.nccl.abort()


class ShardedRanks(Ranks):
    """Ranks that hold a part of every layer each. A layer is gathered from all of them whenever one computes it, so all make
    the same passes.

    FSDP finds its groups through torch's default one, so that must be theirs. On GPUs its NCCL sums as well: of two, each
    could wait for what the other keeps busy.
    """

    def _connect_gpus(self, store: Any, device: torch.device) -> Any:
        join_default_group(dist.PrefixStore("shards", store), self.rank, self.size, device)
        self.mesh = init_device_mesh(device.type, (self.size,))
        return dist.group.WORLD._get_backend(device) if device.type == "cuda" else None

    def divide(self, teams: Iterable[TeamModel]) -> None:
        """Every rank keeps its part of each base's layers."""
        for team in teams:
            shard_layers(team, self.mesh)

    def passes(self, needed: Sequence[int]) -> Sequence[int]:
        """As many as whoever needs the most."""
        self.check()
        most = torch.tensor(needed, dtype=torch.int64)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        self.gloo.allreduce([most], options).wait()
        self.check()
        return [int(count) for count in most]

    def leave(self) -> None:
        """Give torch's default group back; the other ranks have ended, or end now."""
        if self.nccl is not None:
            self.nccl.abort()
        dist.destroy_process_group()


def join_ranks(path: Path, rank: int, size: int, device: torch.device, *, shard: bool = False) -> Ranks:
    """The group of all ranks that name the same file."""
    kind = ShardedRanks if shard else Ranks
    return kind(dist.FileStore(str(path), size), rank, size, device)


def is_loss_of_rank(error: BaseException) -> bool:
    """Whether an error says that another rank has gone: of NCCL it has a type, of gloo torch has none for it."""
    return isinstance(error, RankLost | dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def join_default_group(store: Any, rank: int, size: int, device: torch.device) -> None:
    """Torch's default process group: NCCL between GPUs, else gloo on the loopback interface."""
    if dist.is_initialized():
        raise MarftError("learner.shard: this process is in a torch.distributed group already; start marft in its own")
    given = {"store": store, "rank": rank, "world_size": size, "timeout": LONGEST_WAIT}
    if device.type == "cuda":
        set_nccl_variables()
        torch.cuda.set_device(device)  # where FSDP brings its shards
        dist.init_process_group("nccl", device_id=device, **given)
        return
    if not hasattr(dist.Backend, GLOO_HERE.upper()):
        dist.Backend.register_backend(GLOO_HERE, lambda *place: connect_gloo(*place[:3]), devices=["cpu"])
    dist.init_process_group(GLOO_HERE, **given)


def connect_gloo(store: Any, rank: int, size: int) -> Any:
    """Gloo on the loopback interface alone."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = LONGEST_WAIT
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    return dist.ProcessGroupGloo(store, rank, size, options)


def set_nccl_variables() -> None:
    """What the user has not set."""
    for name, value in NCCL_VARIABLES.items():
        os.environ.setdefault(name, value)


def connect_nccl(store: Any, rank: int, size: int, device: torch.device) -> Any:
    """NCCL between the ranks' GPUs, connected at once."""
    set_nccl_variables()
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = LONGEST_WAIT
    group = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)
    group.eager_connect_single_device(device)
    return group


def deal_tasks(tasks: Sequence[int], sizes: Sequence[int], ranks: int) -> dict[int, int]:
    """The rank of each task: the largest first, each to whoever has least so far."""
    total: dict[int, int] = {}
    for task, size in zip(tasks, sizes, strict=True):
        total[task] = total.get(task, 0) + size
    load, owner = [0] * ranks, dict[int, int]()
    for task in sorted(total, key=lambda task: (-total[task], task)):
        owner[task] = load.index(min(load))
        load[owner[task]] += total[task]
    return owner
