"""Ctrl-C, SIGTERM and SIGHUP: when a request to stop is heeded at once, and when it waits for the end of an iteration."""

from __future__ import annotations

import errno
import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

from marft.types import Stopped

WAITS = b"\nmarft: stopping at the end of this iteration; once more stops at once, and loses what came after the last checkpoint\n"


HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none


class Interruption:
    """A request to stop is a KeyboardInterrupt: at once, or, between `hold` and `release`, at the latter. A second one is
    never put off.

    Entered, it makes SIGTERM, which Slurm and Kubernetes send, and SIGHUP, which comes when a terminal is closed, another
    Ctrl-C. Of the latter all count as one: the kernel and the shell both send it, and nobody is there who asks twice.
    Only while a request is put off does it take Ctrl-C itself; else that is left to Python and asyncio, which cancels
    what it runs. Until it is entered, and in any thread but the main one, to which alone signals come, it listens to
    nothing and puts nothing off.
    """

    def __init__(self) -> None:
        self.put_off = False
        self.requests = 0  # that came to us
        self.hung_up = False
        self._entered = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        outer = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        if isinstance(outer, Interruption):
            outer.check()
        self._entered = True
        self._take(signal.SIGTERM, self._terminate)
        if HANGUP is not None:
            self._take(HANGUP, self._hang_up)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        for number in tuple(self._before):
            self._give_back(number)

    def hold(self) -> None:
        """From here on the first request waits."""
        self.check()
        self._take(signal.SIGINT, self._note)
        self.put_off = True

    def release(self) -> None:
        """Nothing is put off any more, and what was is heeded."""
        self.put_off = False
        self._give_back(signal.SIGINT)
        self.check()

    def check(self) -> None:
        """Heeds a request whose KeyboardInterrupt was lost: Python drops what is raised in the middle of a finalizer."""
        if self.requests and not self.put_off:
            raise Stopped

    def _take(self, number: signal.Signals, handler: Any) -> None:
        """Unless it is taken already, ignored, as in the background of a script, or somebody else's."""
        listens = self._entered and threading.current_thread() is threading.main_thread()
        if not listens or number in self._before:
            return
        before = signal.getsignal(number)
        ours = isinstance(getattr(before, "__self__", None), Interruption)
        if ours or before in (signal.SIG_DFL, signal.default_int_handler):
            self._before[number] = before
            signal.signal(number, handler)

    def _give_back(self, number: signal.Signals) -> None:
        if number in self._before:
            before = self._before.pop(number)
            outer = getattr(before, "__self__", None)
            if self.hung_up and isinstance(outer, Interruption):
                outer.hung_up = True
            signal.signal(number, before)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if self.put_off:
            self._note(number, frame)
            return
        self.requests += 1
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            raise Stopped
        else:
            signal.raise_signal(signal.SIGINT)

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        if self.hung_up:
            return
        self.hung_up = True
        silence_lost_terminal()
        self._terminate(number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requests += 1
        if self.requests > 1:
            raise Stopped
        with suppress(OSError):
            os.write(2, WAITS)  # print may be what was interrupted


def silence_lost_terminal() -> None:
    """What is printed to a terminal that is no more would fail, and with it what is still to be saved."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError as error:
            if error.errno == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
