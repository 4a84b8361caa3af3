"""What a program may use, and how its run ended."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

MIB = 1024 * 1024
OPEN_FILES = 64
STACK = 64 * MIB  # deep recursion of an honest program ends in an exception, not in a crash

Ended = Literal["ok", "error", "timeout", "memory", "output", "killed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one run may take. It is one process, so these hold for all of it."""

    seconds: float = 10.0  # by the wall clock
    cpu_seconds: int = 5  # of computing, all threads together
    memory: int = 1024 * MIB  # address space
    processes: int = 16  # the program's process and its threads
    file_bytes: int = 16 * MIB  # of one file
    output_bytes: int = MIB  # of stdout, and again of stderr
    tmpfs_bytes: int = 64 * MIB  # of all files in /tmp, the only place that can be written

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
            "RLIMIT_NOFILE": OPEN_FILES,
            "RLIMIT_STACK": STACK,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
        }


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
