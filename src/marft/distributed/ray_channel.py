"""Messages to and from an actor of a Ray cluster, by calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from marft.channels import LOOK_S, Hear, Unreachable
from marft.types import MarftError

LISTEN_S = 1.0  # that a call waits at the other side for something to hear
NOT_IMPORTED = ("ModuleNotFoundError", "ImportError")
NOT_WANTED = "is not wanted any more"


class RayChannel:
    """Ray reports an actor that died, or whose node did. One that is stopped or hangs is only silent."""

    def __init__(
        self, actor: Any, pid: int, host: str, hear: Hear, patience: float, is_wanted: Callable[[], bool]
    ) -> None:
        self.actor, self.pid, self.host, self.patience = actor, pid, host, patience
        self.closed = False
        self._hear, self._is_wanted = hear, is_wanted
        self._end: RayError | OSError | None = None
        self._listener = threading.Thread(target=self._listen, name=f"marft-{host}-{pid}", daemon=True)
        self._listener.start()

    def send(self, message: bytes) -> None:
        """Waits until it has the message: two calls under way may overtake one another."""
        answer(self.actor.tell.remote(message), self.patience, lambda: self._is_wanted() and not self.closed)

    def end(self) -> None:
        """It ends at once, with all that it started; once more is no harm."""
        if not self.closed:
            self.closed = True
            end_actor(self.actor)

    def end_reason(self) -> str:
        """What Ray says."""
        return NOT_WANTED if self._end is None else describe_end(self._end)

    def join(self) -> None:
        """Once it has been ended: wait until nobody here asks Ray for it any more."""
        self._listener.join()

    def _listen(self) -> None:
        try:
            while not self.closed:
                calling = self.actor.listen.remote(LISTEN_S)
                while not ray.wait([calling], timeout=LOOK_S)[0]:
                    if self.closed:
                        return
                for message in ray.get(calling):
                    self._hear(message)
        except (RayError, OSError) as error:
            self._end = error
        finally:
            self._hear(None)


def answer(calling: Any, patience: float, is_wanted: Callable[[], bool]) -> Any:
    """What a call of an actor gives; Unreachable where nothing comes of it."""
    began = time.monotonic()
    while not ray.wait([calling], timeout=LOOK_S)[0]:
        if not is_wanted():
            raise Unreachable(NOT_WANTED)
        if time.monotonic() - began > patience:
            raise Unreachable(f"took no message for {patience:g} s")
    try:
        return ray.get(calling)
    except RayError as error:
        raise Unreachable(describe_end(error)) from error


def end_actor(actor: Any) -> None:
    """With all that it started."""
    with suppress(RayError):  # it has gone with its cluster
        ray.kill(actor)


def describe_end(error: RayError | OSError) -> str:
    """What Ray says, in one line; MarftError for a node without our code, where every actor would end so."""
    text = " ".join(str(error).split())
    if isinstance(error, RayActorError) and any(sign in text for sign in NOT_IMPORTED):
        raise MarftError(
            "a node of the cluster cannot import marft; install the same marft[ray] on every node", trace=str(error)
        )
    known = text.partition(" Some common causes include")[0]  # what follows is long, and about memory
    return f"ended by itself ({type(error).__name__}: {known[-200:]})"
