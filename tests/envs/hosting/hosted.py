"""Environments for worker processes: they do what their task or a message says, good or bad."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import marft
from marft.envs.base import Split

MARK = os.environ.get("LEFT_BEHIND", "left-behind")  # of processes, in their arguments


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
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)", MARK], check=False)


def secede() -> None:
    """Hangs together with a process that it started in a session of its own."""
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)", MARK], check=False, start_new_session=True)


def haunt() -> None:
    """Leaves a process behind that has another session, and no parent any more."""
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", MARK])
        os._exit(0)
    os.waitpid(child, 0)


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


MISCHIEF = {f.__name__: f for f in (sleep, spin, swallow, spawn, secede, haunt, fail, leave, vanish, crash)}


class SleepsInAPickle:
    def __setstate__(self, state: object) -> None:
        time.sleep(600)

    def __getstate__(self) -> object:
        return 1


class RaisesInAPickle(SleepsInAPickle):
    def __setstate__(self, state: object) -> None:
        sys.exit("not me")


class HangsInPickling:
    def __reduce__(self) -> Any:
        time.sleep(600)


class NotPickling:
    def __reduce__(self) -> Any:
        sys.exit("not me")


class Words(str):
    """A text that runs code wherever it is unpickled."""

    def __reduce__(self) -> Any:
        return os.getpid, ()


@dataclasses.dataclass(frozen=True)
class Place:
    row: str
    column: str


STATES = (SleepsInAPickle, RaisesInAPickle, HangsInPickling, NotPickling)


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
        for kind in STATES:
            if turn.text == kind.__name__:
                return kind()
        MISCHIEF.get(turn.text, lambda: None)()
        return (*state, turn.text)

    def observe(self, state: tuple[str, ...], agent: str) -> str:
        return Words(agent) if state == ("words",) else f"{agent} sees {len(state)}"

    def answer(self, text: str) -> Any:
        row, _, column = text.partition("/")
        return Place("".join(row), column) if column else text.strip() or None

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


class BuildsForEver(Obeys):
    """In any process but its parent."""

    def __init__(self, parent: int) -> None:
        super().__init__()
        if os.getpid() != parent:
            haunt()
            sleep()
