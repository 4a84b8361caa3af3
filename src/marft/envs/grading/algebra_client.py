"""The client of the algebra worker: one worker per process, started when first needed, replaced when it does not answer."""

from __future__ import annotations

import json
import threading
import time

from marft.envs.grading.algebra_worker import WALL_S
from marft.processes import ChildProcess, at_exit_and_fork
from marft.types import MarftError

START_S = 120.0  # to import sympy, on a machine that is busy
GRACE_S = 2.0  # the worker keeps the limit itself; past this it is replaced


class AlgebraWorker:
    """A running algebra worker and the pipes to it."""

    def __init__(self) -> None:
        self.process = ChildProcess("marft.envs.grading.algebra_worker", quiet=True)
        self.lines = self.process.lines()
        started = self.line(START_S)
        if started != "ready":
            self.process.end()
            raise MarftError(f"the algebra worker did not start: {started or 'no reply'}; pip install math-verify")

    def line(self, seconds: float) -> str:
        """One line of reply; empty when the worker is gone or late."""
        try:
            return (self.lines.next(seconds) or b"").decode().strip()
        except TimeoutError:
            return ""

    def ask(self, gold: str, answer: str) -> str:
        """The worker's verdict on a pair, empty when it is gone or late."""
        try:
            self.process.send(json.dumps({"gold": gold, "answer": answer}).encode() + b"\n")
        except OSError:
            return ""
        return self.line(WALL_S + GRACE_S)


class AlgebraClient:
    """The worker of this process. Calls from several threads wait for each other."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.worker: AlgebraWorker | None = None

    def equal(self, gold: str, answer: str) -> bool:
        """Whether algebra finds two answers equal; what it cannot decide within its limits is not equal."""
        with self.lock:
            for _ in range(2):  # a worker that was killed from outside is replaced once
                if self.worker is None:
                    self.worker = AlgebraWorker()
                started = time.monotonic()
                reply = self.worker.ask(gold, answer)
                if reply:
                    return reply == "1"
                self.stop()
                if time.monotonic() - started > WALL_S:
                    return False
            return False

    def stop(self) -> None:
        """Ends the worker, if one runs."""
        if self.worker is not None:
            self.worker.process.end()
            self.worker = None

    def after_fork(self) -> None:
        """A forked process has a worker of its own; the parent's lock may be held by a thread that is not here."""
        self.lock = threading.Lock()
        if self.worker is not None:
            for pipe in (self.worker.process.stdin, self.worker.process.stdout):
                assert pipe is not None
                pipe.close()  # our ends; the worker ends when nobody holds them
            self.worker.process.returncode = 0  # another process's child: nothing to wait for
            self.worker = None


CLIENT = AlgebraClient()
at_exit_and_fork(stop=CLIENT.stop, forget=CLIENT.after_fork)
