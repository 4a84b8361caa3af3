"""Workers that are actors of a Ray cluster, spoken to by calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from marft.distributed.messages import Setup
from marft.distributed.remote_worker import LOOK_S, RemoteWorker, WorkerLost
from marft.types import MarftError

LISTEN_S = 1.0  # that a call waits at the other side for something to hear
NOT_IMPORTED = ("ModuleNotFoundError", "ImportError")


class RayWorker(RemoteWorker):
    """Ray reports an actor that died, or whose node did. One that is stopped or hangs is only silent."""

    def __init__(self, actor: Any, setup: Setup, patience: float, is_wanted: Callable[[], bool]) -> None:
        super().__init__(setup, patience, is_wanted)
        self.actor = actor
        self.closed = False
        self._end: RayError | OSError | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def close(self) -> None:
        """It ends at once, with all that it started."""
        self.closed = True
        with suppress(RayError):  # it has gone with its cluster
            ray.kill(self.actor)
        self._listener.join()

    def _listen(self) -> None:
        try:
            while not self.closed:
                calling = self.actor.listen.remote(LISTEN_S)
                while not ray.wait([calling], timeout=LOOK_S)[0]:
                    if self.closed:
                        return
                for message in ray.get(calling):
                    self._said.put(message)
        except (RayError, OSError) as error:
            self._end = error
        finally:
            self._said.put(None)

    def _tell(self, message: bytes) -> None:
        """Waits until it has the message: two calls under way may overtake one another."""
        began, calling = time.monotonic(), self.actor.tell.remote(message)
        while not ray.wait([calling], timeout=LOOK_S)[0]:
            if not self.is_wanted():
                raise WorkerLost("is not wanted any more")
            if time.monotonic() - began > self.patience:
                raise WorkerLost(f"took no message for {self.patience:g} s (rollout.patience)")
        try:
            ray.get(calling)
        except RayError as error:
            raise WorkerLost(describe_end(error)) from error

    def _end_reason(self) -> str:
        return "ended by itself" if self._end is None else describe_end(self._end)


def describe_end(error: RayError | OSError) -> str:
    """What Ray says, in one line; MarftError for a node without our code, where every worker would end so."""
    text = " ".join(str(error).split())
    if isinstance(error, RayActorError) and any(sign in text for sign in NOT_IMPORTED):
        raise MarftError(
            "a node of the cluster cannot import marft; install the same marft[ray] on every node", trace=str(error)
        )
    return f"ended by itself ({type(error).__name__}: {text[-200:]})"
