"""Processes of our own on every platform: apart from the terminal, ended with all that they started, and with us.

A process group ends at once, but whoever calls setsid has left it. On Linux such a one is found all the same, by its
ancestors: `adopt_orphans` keeps even those whose parent has ended below the process that called it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)
PARENT_CHECK_S = 0.2
SWEEPS, SWEEP_S = 100, 0.01  # after so many, whoever is left starts processes faster than they are ended


def forks_safely() -> bool:
    """Whether workers may be forked. macOS can fork, but its system libraries crash in a child that starts no new program."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds") and sys.platform != "darwin"


def apart() -> dict[str, Any]:
    """Arguments of Popen for a group of its own: an interrupt at the terminal is for us, and `kill_tree` finds them all."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def kill_tree(pid: int) -> None:
    """A process that was started `apart`, and all that it started."""
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True, check=False)
        return
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGSTOP)  # so that it starts nothing more meanwhile
        kill_descendants(pid)
    for kill in (os.killpg, os.kill):  # the latter for one that had no time to make a group of its own
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def adopt_orphans() -> None:
    """From now on, what this process's descendants leave behind stays below it; where the system can do that."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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


def end_with_parent(parent: int) -> None:
    """This process, the leader of its group, does not outlive `parent`: by the kernel's care, or else by a watching thread."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError, TypeError):  # only Linux has it; Windows has no library of all symbols either
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        end_group()


def watch(parent: int) -> None:
    """Returns never: an orphan has another parent."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    end_group()


def end_group() -> None:
    """The end of this process at once, with all that it started where it leads a group."""
    kill_descendants(os.getpid())
    if sys.platform != "win32" and os.getpgid(0) == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)
