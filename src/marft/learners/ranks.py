"""Several processes that compute a minibatch together, on one machine or on many, over torch.distributed."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from marft.channels import LOOPBACK
from marft.learners.base import RankLost
from marft.models.sharding import shard_layers
from marft.models.team import TeamModel
from marft.types import MarftError

dist: Any = torch.distributed  # whose stubs know neither stores nor what a process group does
GLOO_HERE = "marft_gloo"  # a name under which torch makes groups that listen at the address of ours alone
LONGEST_WAIT = timedelta(minutes=30)  # of one rank for the others, which may have far more to compute
LONGEST_JOIN = timedelta(minutes=1)  # until all ranks, whose models are loaded, have found one another
LOOK = timedelta(seconds=1)  # between two looks whether one of them has gone
SIOCGIFADDR = 0x8915  # of Linux: the address of an interface
NCCL_VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # else a thread of torch's ends this process, before we can say why
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}


class Ranks:
    """Rank `rank` of `size`: sums go through gloo, those of CUDA tensors through NCCL, at this process's address `host` alone.

    Process groups of its own, not torch's default one: vLLM in the same process has that. The store is needed only here,
    where the ranks find one another.
    """

    def __init__(self, store: Any, rank: int, size: int, device: torch.device, host: str = LOOPBACK) -> None:
        self.rank, self.size = rank, size
        self.lost = threading.Event()  # set from another thread
        self.host = host
        self.gloo = connect_gloo(store, rank, size, host)
        self.nccl = self._connect_gpus(store, device)

    def _connect_gpus(self, store: Any, device: torch.device) -> Any:
        """NCCL, where the ranks have GPUs."""
        return connect_nccl(store, self.rank, self.size, device, self.host) if device.type == "cuda" else None

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
            self._wait_for(group.allreduce([flat]))
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

    def _wait_for(self, work: Any) -> None:
        """In short turns: gloo does not hear of a machine that has gone without a word."""
        while True:
            try:
                work.wait(LOOK)
            except RuntimeError:
                if work.is_completed():
                    raise
                if self.lost.is_set():  # and gloo's destructor would wait for the sum, also at the end of this process
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.gloo))
                self.check()
            else:
                return

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
        join_default_group(dist.PrefixStore("shards", store), self.rank, self.size, device, self.host)
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
        self._wait_for(self.gloo.allreduce([most], options))
        self.check()
        return [int(count) for count in most]

    def leave(self) -> None:
        """Give torch's default group back; the other ranks have ended, or end now."""
        if self.nccl is not None:
            self.nccl.abort()
        dist.destroy_process_group()


def is_loss_of_rank(error: BaseException) -> bool:
    """Whether an error says that another rank has gone: of NCCL it has a type, of gloo torch has none for it."""
    return isinstance(error, RankLost | dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def join_default_group(store: Any, rank: int, size: int, device: torch.device, host: str) -> None:
    """Torch's default process group: NCCL between GPUs, else gloo, at this process's address alone."""
    if dist.is_initialized():
        raise MarftError("learner.shard: this process is in a torch.distributed group already; start marft in its own")
    given = {"store": store, "rank": rank, "world_size": size, "timeout": LONGEST_WAIT}
    if device.type == "cuda":
        set_nccl_variables(host)
        torch.cuda.set_device(device)  # where FSDP brings its shards
        dist.init_process_group("nccl", device_id=device, **given)
        return
    dist.Backend.register_backend(
        GLOO_HERE, lambda store, rank, size, *_: connect_gloo(store, rank, size, host), devices=["cpu"]
    )
    dist.init_process_group(GLOO_HERE, **given)


def connect_gloo(store: Any, rank: int, size: int, host: str) -> Any:
    """Gloo at this process's address alone."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = LONGEST_JOIN
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    group = dist.ProcessGroupGloo(store, rank, size, options)
    group._set_default_timeout(LONGEST_WAIT)
    return group


def set_nccl_variables(host: str) -> None:
    """What the user has not set."""
    variables = NCCL_VARIABLES | ({"NCCL_SOCKET_IFNAME": own} if (own := interface_of(host)) else {})
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def host_store(host: str) -> tuple[Any, int]:
    """A store of this process and its port. Left to itself it would listen on all interfaces."""
    listener = socket.create_server((host, 0))
    port = int(listener.getsockname()[1])
    return dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=LONGEST_JOIN, master_listen_fd=listener.detach()
    ), port


def reach_store(host: str, port: int) -> Any:
    """That of rank 0."""
    return dist.TCPStore(host, port, is_master=False, timeout=LONGEST_JOIN)


def join_ranks(store: Any, rank: int, size: int, device: torch.device, host: str, *, shard: bool = False) -> Ranks:
    """The group of all ranks that know the store."""
    try:
        return (ShardedRanks if shard else Ranks)(store, rank, size, device, host)
    except RuntimeError as error:  # torch has no narrower one
        raise RankLost(f"rank {rank} has not found the others: {str(error).splitlines()[0]}") from error


def interface_of(host: str) -> str | None:
    """The network interface that has this address; None: none has, or it cannot be known."""
    import fcntl  # where there is NCCL, there is this

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                found = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == host:
                    return name
    return None


def connect_nccl(store: Any, rank: int, size: int, device: torch.device, host: str) -> Any:
    """NCCL between the ranks' GPUs, connected at once."""
    set_nccl_variables(host)
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
