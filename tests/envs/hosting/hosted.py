"""Environments for worker processes: they do what their task or a message says, good or bad."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import marft
from marft.envs.base import Split


def sleep() -> None:
    time.sleep(600)


def spin() -> None:
    while True:
        pass


def swallow() -> None:
    """Holds on to its life: catches what can be caught, ignores what can be ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(600)


def spawn() -> None:
    """Hangs together with a process that it started."""
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)", "left-behind"], check=False)


def fail() -> None:
    raise RuntimeError("out of paper")


def leave() -> None:
    sys.exit(3)


def vanish() -> None:
    os._exit(4)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


class Unpicklable:
    def __init__(self) -> None:
        self.held: Callable[[], None] = lambda: None


MISCHIEF = {f.__name__: f for f in (sleep, spin, swallow, spawn, fail, leave, vanish, crash)}


class Obeys(marft.Environment[tuple[str, ...]]):
    """Its state is what was heard; a message that names a mischief does it."""

    def __init__(self, size: int = 4) -> None:
        self.size = size

    def tasks(self, split: Split) -> Sequence[marft.Task]:
        return [marft.Task(id=f"{split}/{i}", prompt=f"Add {i} and 2.") for i in range(self.size)]

    def reset(self, task: marft.Task) -> tuple[str, ...]:
        return ()

    def transition(self, state: tuple[str, ...], turn: marft.Turn) -> Any:
        print("an environment may print what it likes")
        if turn.text == "unpicklable":
            return Unpicklable()
        MISCHIEF.get(turn.text, lambda: None)()
        return (*state, turn.text)

    def observe(self, state: tuple[str, ...], agent: str) -> str:
        return f"{agent} sees {len(state)}"

    def reward(self, state: tuple[str, ...]) -> marft.Reward:
        return marft.Reward(team=float(len(state)), correct=True)


class SlowToBuild(Obeys):
    """Can be built once, and not again in another process."""

    def __init__(self, parent: int) -> None:
        super().__init__()
        if os.getpid() != parent:
            raise ValueError("no licence for a second one")


class Twice(Exception):
    """Pickles, and cannot be unpickled: it forgets its second argument."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
