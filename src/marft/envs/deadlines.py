"""A deadline for the user's code in our own process, where nobody can be killed: it is interrupted as by Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from marft.watchdog import start_watchdog


class DeadlineExceeded(BaseException):
    """Raised in the middle of what took too long; no Exception, for the user's code may catch those."""


@contextmanager
def interrupt_after(seconds: float | None, line: str) -> Iterator[None]:
    """Raises DeadlineExceeded in the block once `seconds` have passed. A block that swallows it is ended with the process, and with
    `line`. Only the main thread can be interrupted: in any other, and without `seconds`, there is no deadline."""
    before: Any = signal.getsignal(signal.SIGINT)
    if seconds is None or threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    end, done = time.monotonic() + seconds, threading.Event()

    def interrupted(number: int, frame: FrameType | None) -> None:
        if done.is_set():
            return
        if time.monotonic() >= end:
            raise DeadlineExceeded
        if callable(before):  # somebody has pressed Ctrl-C
            before(number, frame)

    watchdog: threading.Thread | None = None
    try:
        signal.signal(signal.SIGINT, interrupted)
        watchdog = start_watchdog(done, after=seconds, line=line, code=2)
        yield
    finally:
        try:
            done.set()
        finally:  # also where the deadline passes just here
            done.set()
            if watchdog is not None:
                watchdog.join()  # it may be about to interrupt us once more
            signal.signal(signal.SIGINT, before)
