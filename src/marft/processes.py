"""Processes of our own on every platform: started apart from the terminal, spoken to through pipes, ended with all that they
started, and with us.

A process group ends at once, but whoever calls setsid has left it. On Linux such a one is found all the same, by its
ancestors: `adopt_orphans` keeps even those whose parent has ended below the process that called it.
"""

from __future__ import annotations

import atexit
import ctypes
import io
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TypeVar

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)
PARENT_CHECK_S = 0.2
SWEEPS, SWEEP_S = 100, 0.01  # after so many, whoever is left starts processes faster than they are ended
FRAME_HEADER = 8  # bytes that say how many follow

Message = TypeVar("Message")


# --- in the parent ---------------------------------------------------------------------------------------------------
class ChildProcess(subprocess.Popen[bytes]):
    """`python -m module`, apart from the terminal; it can import what this process can.

    Its input and output are unbuffered pipes of ours, or with `pipes=False` nothing and our standard error.
    """

    def __init__(
        self, module: str, *arguments: str, variables: Mapping[str, str] = MappingProxyType({}), pipes: bool = True,
        quiet: bool = False, pass_fds: Sequence[int] = (),
    ) -> None:  # fmt: skip
        path = [*filter(None, sys.path), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        super().__init__(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL, stdout=subprocess.PIPE if pipes else 2,
            stderr=subprocess.DEVNULL if quiet else None, bufsize=0, pass_fds=pass_fds,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), **variables}, **own_group(),
        )  # fmt: skip
        self._owner: int | None = os.getpid()

    def send(self, data: bytes) -> None:
        """Writes all of `data` to its input; OSError where it has ended."""
        assert self.stdin is not None
        rest = memoryview(data)
        while rest:
            rest = rest[self.stdin.write(rest) :]

    def lines(self) -> LineReader:
        """Its output from now on."""
        assert isinstance(self.stdout, io.FileIO)
        return LineReader(self.stdout)

    def end(self) -> None:
        """Kills it with all that it started; once more is no harm. Whoever reads its output closes that."""
        if self._owner != os.getpid():  # ended already, and its number may be another's by now; or a fork's copy of it
            return
        self._owner = None
        kill_tree(self.pid)
        self.wait()
        if self.stdin is not None:
            self.stdin.close()


class LineReader:
    """The lines of an unbuffered pipe, each waited for no longer than it may take; the pipe is closed at its end.

    A thread reads it: no other wait works on every platform.
    """

    def __init__(self, pipe: io.FileIO) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def next(self, seconds: float) -> bytes | None:
        """The next whole line, without its end; None when there are no more. TimeoutError: nothing came in time."""
        try:
            line = self._lines.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise TimeoutError from None
        if line is None:
            self._lines.put(None)  # for whoever asks again
        return line

    def _read(self, pipe: io.FileIO) -> None:
        rest = b""
        with pipe:
            while piece := pipe.read(1 << 16):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    self._lines.put(line)
        self._lines.put(None)


def forks_safely() -> bool:
    """Whether workers may be forked. macOS can fork, but its system libraries crash in a child that starts no new program."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds") and sys.platform != "darwin"


def own_group() -> dict[str, Any]:
    """Arguments of Popen for a group of its own: an interrupt at the terminal is for us, and `kill_tree` finds them all."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def kill_tree(pid: int) -> None:
    """A process that was started in its `own_group`, and all that it started."""
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False)
        return
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)  # so that it starts nothing more meanwhile
        kill_descendants(pid)
    for kill in (os.killpg, os.kill):  # the latter for one that had no time to make a group of its own
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def kill_descendants(pid: int) -> None:
    """Everybody below `pid`, whatever group and session they are in, and whoever they start meanwhile."""
    for _ in range(SWEEPS):
        if not (found := descendants(pid)):
            return
        for each in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        time.sleep(SWEEP_S)


def descendants(pid: int) -> list[int]:
    """Living processes below `pid`, by their process ids; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
        except (OSError, ValueError):  # it has just ended
            continue
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def at_exit_and_fork(*, stop: Callable[[], object], forget: Callable[[], object]) -> None:
    """For the owner of a process: it is stopped at our exit, and forgotten in a forked process, whose child it is not."""
    atexit.register(stop)
    if hasattr(os, "register_at_fork"):  # Windows does not fork
        os.register_at_fork(after_in_child=forget)


# --- in the child ----------------------------------------------------------------------------------------------------
def claim_stdout(*, prints_to: int | None = None) -> int:
    """A descriptor of standard output for our messages alone; what foreign code prints goes to `prints_to`, or nowhere."""
    ours = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY) if prints_to is None else prints_to, 1)
    return ours


class FrameWriter:
    """Writes whole messages into a pipe, from any thread; a parent that has gone reads nothing."""

    def __init__(self, descriptor: int) -> None:
        self._pipe, self._lock = os.fdopen(descriptor, "wb"), threading.Lock()

    def write(self, data: bytes) -> None:
        """One message."""
        with self._lock, suppress(OSError):
            self._pipe.write(to_frame(data))
            self._pipe.flush()


def receive_in_thread(messages: Iterable[Message], put: Callable[[Message], object]) -> None:
    """Hands over the parent's messages. Where they end the parent has gone, and this process ends whatever it is doing."""

    def receive() -> None:
        for message in messages:
            put(message)
        end_group()

    threading.Thread(target=receive, daemon=True).start()


def adopt_orphans() -> None:
    """From now on, what this process's descendants leave behind stays below it; where the system can do that."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """This process, the leader of its group, does not outlive `parent`: by the kernel's care, or else by a watching thread."""
    if not prctl(PR_SET_PDEATHSIG, signal.SIGKILL):
        threading.Thread(target=watch_parent, args=(parent, threading.Event()), daemon=True).start()
    if os.getppid() != parent:
        end_group()


@contextmanager
def parent_watched() -> Iterator[None]:
    """While the block runs, this process ends with its parent; no thread is left behind, so that it can fork safely."""
    done = threading.Event()
    watcher = threading.Thread(target=watch_parent, args=(os.getppid(), done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def watch_parent(parent: int, done: threading.Event) -> None:
    """Until `done`, looks whether we are an orphan, who has another parent."""
    while not done.wait(PARENT_CHECK_S):
        if os.getppid() != parent:
            end_group()


def prctl(option: int, value: int) -> bool:
    """Whether there is such a call: only Linux has it, and Windows no library of all symbols either."""
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (AttributeError, OSError, TypeError):
        return False
    return True


def end_group() -> None:
    """The end of this process at once, with all that it started where it leads a group."""
    kill_descendants(os.getpid())
    if sys.platform != "win32" and os.getpgid(0) == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


# --- on both sides ---------------------------------------------------------------------------------------------------
def to_frame(data: bytes) -> bytes:
    """A message for a pipe: its length, then `data`."""
    return len(data).to_bytes(FRAME_HEADER, "big") + data


def read_frames(pipe: IO[bytes]) -> Iterator[bytes]:
    """The messages of a buffered pipe, until it ends, in the middle of one or before."""
    while len(header := pipe.read(FRAME_HEADER)) == FRAME_HEADER:
        size = int.from_bytes(header, "big")
        if len(data := pipe.read(size)) < size:
            return
        yield data
