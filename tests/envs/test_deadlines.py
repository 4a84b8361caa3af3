"""Code in our own process that takes too long: it is interrupted, Ctrl-C stays what it is, and nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest

from marft.envs.deadlines import DeadlineExceeded, interrupt_after

STUBBORN = """
import time
import marft.watchdog
from marft.envs.deadlines import interrupt_after
marft.watchdog.PRESS_S, marft.watchdog.PRESSES = 0.05, 4
with interrupt_after(0.2, "it took too long"):
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass
"""


def test_what_is_in_time_is_not_interrupted() -> None:
    before = signal.getsignal(signal.SIGINT)
    for _ in range(50):
        with interrupt_after(30.0, "late"):
            pass
    assert signal.getsignal(signal.SIGINT) is before
    assert "marft-watchdog" not in [thread.name for thread in threading.enumerate()]


def test_what_is_late_is_interrupted_in_its_sleep() -> None:
    started, before = time.monotonic(), signal.getsignal(signal.SIGINT)
    with pytest.raises(DeadlineExceeded), interrupt_after(0.1, "late"):
        time.sleep(600)
    assert time.monotonic() - started < 10
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_before_it_is_an_interrupt() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interrupt_after(30.0, "late"):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_has_no_deadline() -> None:
    found: list[str] = []

    def body() -> None:
        with interrupt_after(0.05, "late"):
            time.sleep(0.3)
            found.append("done")

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert found == ["done"]


def test_what_swallows_it_is_ended_with_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", STUBBORN], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "\nmarft: it took too long\n")
