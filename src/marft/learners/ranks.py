"""Several processes of one machine that compute a minibatch together, over torch.distributed."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from marft.learners.base import RankLost

dist: Any = torch.distributed  # whose stubs know neither stores nor what a process group does
LOOPBACK = "127.0.0.1"
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
        options = dist.ProcessGroupGloo._Options()
        options._timeout = LONGEST_WAIT
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
        self.gloo = dist.ProcessGroupGloo(store, rank, size, options)
        self.nccl = connect_nccl(store, rank, size, device) if device.type == "cuda" else None

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

    def check(self) -> None:
        """Raise RankLost where it is known that another rank has gone."""
        if self.lost.is_set():
            raise RankLost(f"rank {self.rank} has lost another")

    def abandon(self) -> None:
        """From another thread: nobody is waited for any longer. Gloo sees that a rank has ended, NCCL does not."""
        self.lost.set()
        if self.nccl is not None:
            self.nccl.abort()


def join_ranks(path: Path, rank: int, size: int, device: torch.device) -> Ranks:
    """The group of all ranks that name the same file."""
    return Ranks(dist.FileStore(str(path), size), rank, size, device)


def connect_nccl(store: Any, rank: int, size: int, device: torch.device) -> Any:
    """NCCL between the ranks' GPUs, connected at once."""
    for name, value in NCCL_VARIABLES.items():
        os.environ.setdefault(name, value)
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
