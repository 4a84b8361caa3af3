"""A player or a rank of the learner in the process of a Ray actor: messages come and go by calls."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from marft.channels import Work
from marft.openmp import limit_spinning
from marft.processes import adopt_orphans

SECRETS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class WorkActor:
    """A thread of its own does the work: whichever thread Ray calls us in answers at once.

    It works in the trainer's folder and imports what the trainer can, where this node has them.
    """

    def __init__(self, folder: str, paths: Sequence[str], work: Work) -> None:
        with suppress(OSError):
            os.chdir(folder)
        sys.path += [path for path in paths if path not in sys.path]
        for name in SECRETS:  # Ray has read them, and environments should not
            os.environ.pop(name, None)
        adopt_orphans()
        limit_spinning()
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=work, args=(self._outbox.put, self._inbox), daemon=True).start()

    def pid(self) -> int:
        """Its process id; who answers has a place and lives."""
        return os.getpid()

    def tell(self, message: bytes) -> None:
        """A message for who works here."""
        self._inbox.put(message)

    def listen(self, seconds: float) -> list[bytes]:
        """What was said since it was asked last; waits a while for the first message."""
        said: list[bytes] = []
        with suppress(queue.Empty):
            said.append(self._outbox.get(timeout=seconds))
            while True:
                said.append(self._outbox.get_nowait())
        return said
