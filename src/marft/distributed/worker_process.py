"""Workers that are processes on this machine."""

from __future__ import annotations

from collections.abc import Callable

from marft.channels import Hear, PipeChannel
from marft.distributed.messages import Setup
from marft.distributed.remote_worker import RemoteWorker

WORKER = "marft.distributed.worker"


class ProcessLauncher:
    """Nothing has to be there for processes."""

    def __init__(self, patience: float) -> None:
        self.patience = patience

    def launch(self, number: int, setup: Setup, is_wanted: Callable[[], bool]) -> RemoteWorker:
        """A process of its own."""
        given = {"OMP_NUM_THREADS": setup.threads, "CUDA_VISIBLE_DEVICES": setup.gpu}
        variables = {name: str(value) for name, value in given.items() if value is not None}

        def connect(hear: Hear) -> PipeChannel:
            return PipeChannel(WORKER, hear, self.patience, variables=variables)

        return RemoteWorker(setup, self.patience, is_wanted, connect)
