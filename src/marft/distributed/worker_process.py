"""Workers that are processes on this machine, spoken to over pipes."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from contextlib import suppress

from marft.distributed.messages import Setup
from marft.distributed.remote_worker import RemoteWorker, WorkerLost
from marft.envs.processes import ChildProcess, read_frames, to_frame


class WorkerProcess(RemoteWorker):
    """`python -m marft.distributed.worker`."""

    def __init__(self, setup: Setup, patience: float, is_wanted: Callable[[], bool]) -> None:
        super().__init__(setup, patience, is_wanted)
        given = {"OMP_NUM_THREADS": setup.threads, "CUDA_VISIBLE_DEVICES": setup.gpu}
        variables = {name: str(value) for name, value in given.items() if value is not None}
        self.process = ChildProcess("marft.distributed.worker", variables=variables)
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """It ends at once, with all that it started."""
        self.process.end()

    def _listen(self) -> None:
        assert isinstance(self.process.stdout, io.FileIO)
        with io.BufferedReader(self.process.stdout) as pipe, suppress(ValueError, OSError):
            for message in read_frames(pipe):
                self._said.put(message)
        self._said.put(None)

    def _tell(self, message: bytes) -> None:
        """A process that reads nothing would keep us for ever: then it is killed, and the pipe breaks."""
        killing = threading.Timer(self.patience, self.process.kill)
        killing.start()
        try:
            self.process.send(to_frame(message))
        except OSError as error:
            raise WorkerLost("ended while it was spoken to") from error
        finally:
            killing.cancel()

    def _end_reason(self) -> str:
        return f"ended by itself (exit code {self.process.wait()})"


class ProcessLauncher:
    """Nothing has to be there for processes."""

    def __init__(self, patience: float) -> None:
        self.patience = patience

    def open(self) -> None:
        """Nothing to do."""

    def launch(self, number: int, setup: Setup, is_wanted: Callable[[], bool]) -> WorkerProcess:
        """A process of its own."""
        return WorkerProcess(setup, self.patience, is_wanted)

    def close(self) -> None:
        """Whoever launched a worker has closed it."""
