"""How code that does not end is made to: it is interrupted again and again, and at last the process is ended."""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress

PRESS_S = 1.0  # between two interrupts
PRESSES = 10  # that code may swallow


def start_watchdog(done: threading.Event, *, after: float, line: str, code: int) -> threading.Thread:
    """In `after` seconds, unless `done`, interrupts the main thread as Ctrl-C does; the handler of SIGINT raises what it will.

    Code that swallows that too is ended with the process, and `line` says so; in an interactive session, which holds more
    than our work, it is only interrupted further.
    """
    thread = threading.Thread(
        target=keep_interrupting, args=(done, after, line, code), name="marft-watchdog", daemon=True
    )
    thread.start()
    return thread


def keep_interrupting(done: threading.Event, after: float, line: str, code: int) -> None:
    """Interrupt the main thread every second until `done`; after the last time end the process with `code`."""
    presses = 0
    while not done.wait(PRESS_S if presses else after):
        if presses == PRESSES and not is_interactive():
            with suppress(OSError):
                os.write(2, f"\nmarft: {line}\n".encode(errors="backslashreplace"))
            os._exit(code)
        presses = min(presses + 1, PRESSES)
        interrupt_main()


def interrupt_main() -> None:
    """Also in the middle of a wait, where the system can do that."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


def leave_behind(running: object) -> None:
    """A coroutine or a task that does not end, never to be collected: Python would close it, and it might run for ever then,
    at the latest when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(running))


def is_interactive() -> bool:
    """Whether this is a Python prompt or a notebook."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules
