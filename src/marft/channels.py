"""Messages between this process and another of ours, wherever that runs; and how one knows that the other lives.

Whoever started a process has a `Channel` to it. In the process itself a function does the work: it is given what to say its
messages with, and the messages that come. It says once a second that it lives (`Heartbeat`), and is given up where it does not
(`Silence`).
"""

from __future__ import annotations

import io
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Protocol

from marft.openmp import limit_spinning
from marft.processes import (
    ChildProcess,
    FrameWriter,
    adopt_orphans,
    claim_stdout,
    read_frames,
    receive_in_thread,
    to_frame,
)

ALIVE = b"H"  # a sign of life; no other message is the same
BEAT_S = 1.0  # between two of them
LOOK_S = 0.2  # between two looks whether anybody still waits
LOOPBACK = "127.0.0.1"

Say = Callable[[bytes], object]
Hear = Callable[[bytes | None], object]  # None: it has ended
Work = Callable[[Say, "queue.SimpleQueue[bytes]"], None]  # what a process does


class Unreachable(Exception):
    """A process has ended, or takes no message."""


class Channel(Protocol):
    """To one other process of ours. A thread of the channel's hands over what it says, and None at its end."""

    @property
    def pid(self) -> int:
        """Its process id, on its machine."""

    @property
    def host(self) -> str:
        """The address at which others of ours find it."""

    def send(self, message: bytes) -> None:
        """Unreachable where it cannot be told."""

    def end(self) -> None:
        """It ends at once, with all that it started; once more is no harm."""

    def end_reason(self) -> str:
        """How one ended that says nothing any more; a MarftError where every other one would end so."""


class PipeChannel:
    """To a child process, `python -m module`, by its standard input and output."""

    host = LOOPBACK

    def __init__(
        self, module: str, hear: Hear, patience: float, *, variables: Mapping[str, str] = MappingProxyType({}),
        quiet: bool = False,
    ) -> None:  # fmt: skip
        self.patience, self._hear = patience, hear
        self.process = ChildProcess(module, variables=variables, quiet=quiet)
        threading.Thread(target=self._listen, name=f"marft-{self.pid}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def send(self, message: bytes) -> None:
        """A process that reads nothing would keep us for ever: then it is killed, and the pipe breaks."""
        killing = threading.Timer(self.patience, self.process.kill)
        killing.daemon = True
        killing.start()
        try:
            self.process.send(to_frame(message))
        except (OSError, ValueError) as error:  # the latter: it was ended meanwhile, and its pipe closed
            raise Unreachable("ended while it was spoken to") from error
        finally:
            killing.cancel()

    def end(self) -> None:
        """It ends at once, with all that it started; once more is no harm."""
        self.process.end()

    def end_reason(self) -> str:
        """Who is out of memory gets signal 9."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        code = self.process.returncode
        return (
            "closed its pipe"
            if code is None
            else f"ended by signal {-code}"
            if code < 0
            else f"ended with exit code {code}"
        )

    def _listen(self) -> None:
        assert isinstance(self.process.stdout, io.FileIO)
        try:
            with io.BufferedReader(self.process.stdout) as pipe, suppress(ValueError, OSError):
                for message in read_frames(pipe):
                    self._hear(message)
        finally:
            self._hear(None)


class Silence:
    """How long a process has said nothing."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self._suspected = False  # at the last look

    def end(self) -> None:
        """It has just been heard."""
        self.since, self._suspected = time.monotonic(), False

    def exceeds(self, seconds: float) -> bool:
        """Whether it was too long at two looks: after this process was stopped itself, what came meanwhile may not have been
        heard at the first."""
        suspected, self._suspected = self._suspected, time.monotonic() - self.since > seconds
        return suspected and self._suspected


# --- in the other process --------------------------------------------------------------------------------------------
class Heartbeat:
    """Says once a second that this process lives, as long as whatever it is busy with moves on."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.busy = False
        self.moved = True  # since the last beat
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_S):
            if self.moved or not self.busy:
                self.moved = False
                self.say(ALIVE)


def serve_parent(work: Work) -> None:
    """In a child process: does the work until it is ended, at the latest with its parent.

    A thread reads the messages; the main thread belongs to the work. What foreign code prints goes to standard error.
    """
    adopt_orphans()
    told = os.fdopen(os.dup(0), "rb")
    say = FrameWriter(claim_stdout(prints_to=2)).write
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    receive_in_thread(read_frames(told), inbox.put)
    limit_spinning()
    work(say, inbox)
    threading.Event().wait()  # it has said why it cannot go on, and whoever reads that ends it
