"""What a program may use, and how its run ended."""

from __future__ import annotations

import functools
import mmap
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

MIB = 1024 * 1024
OPEN_FILES = (16, 64)
SIGNALS = 64  # that wait to be delivered, and timers
SHARE = 4  # /tmp, and again the buffers of sockets, are at most this part of the memory
STACK = 64 * MIB  # deep recursion of an honest program ends in an exception, not in a crash

Ended = Literal["ok", "error", "timeout", "memory", "output", "killed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one run may take. It is one process, so these hold for all of it."""

    seconds: float = 10.0  # by the wall clock
    cpu_seconds: int = 5  # of computing, all threads together
    memory: int = 1024 * MIB  # address space; and all that the run takes from the machine, files in /tmp included
    processes: int = 16  # the program's process and its threads
    file_bytes: int = 16 * MIB  # of one file
    output_bytes: int = MIB  # of stdout, and again of stderr
    tmpfs_bytes: int = 64 * MIB  # of all files in /tmp, the only place that can be written; at most memory / 4

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise ValueError(f"{each.name} must be more than 0, not {getattr(self, each.name)}")

    def resources(self) -> dict[str, int]:
        """The kernel's limits, by their names in the module `resource`."""
        return {
            "RLIMIT_AS": self.memory,
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_STACK": STACK,
            "RLIMIT_CORE": 1,  # at 0, a program of the machine's that collects core dumps would still get it
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_SIGPENDING": SIGNALS,
        }

    @property
    def tmpfs(self) -> int:
        """The size of /tmp, in whole pages."""
        page = mmap.PAGESIZE
        return max(page, min(self.tmpfs_bytes, self.memory // SHARE) // page * page)

    @property
    def open_files(self) -> int:
        """So many that the buffers of as many sockets stay a part of the memory."""
        least, most = OPEN_FILES
        return max(least, min(most, self.memory // SHARE // socket_buffer()))


@functools.lru_cache(maxsize=1)
def socket_buffer() -> int:
    """What the kernel lets wait in one socket, by this machine's settings."""
    try:
        return max(1, int(Path("/proc/sys/net/core/wmem_default").read_text()))
    except (OSError, ValueError):
        return 212992  # Linux's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended.

    Our own word are `seconds`, and that we killed it (`exit_code` is None). The rest the program can choose: what it
    prints, its exit code, and so `ended` too; `sys.exit(152)` looks like a timeout. Believe none of it as a verdict.
    """

    ended: Ended
    stdout: str
    stderr: str  # its tail
    exit_code: int | None  # None: we killed it
    seconds: float
