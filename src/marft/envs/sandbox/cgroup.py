"""Control groups: where we may make one, the kernel itself counts and limits all memory of a run.

`MARFT_SANDBOX_CGROUP` says which group the runs' own groups are made in, or `off`; otherwise it is the group that this
process is in, if its children can have limits.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from marft.envs.sandbox.limits import MIB, Limits
from marft.types import MarftError

SETTING = "MARFT_SANDBOX_CGROUP"
PREFIX = "marft-sandbox-"
REMOVAL_S = 2.0  # seconds that the last process of a group may take to be gone
COUNTER = itertools.count()


def write_control_file(path: Path, value: object) -> None:
    """Write to a file of a control group; where there is none, none is made."""
    with open(os.open(path, os.O_WRONLY), "w") as file:
        file.write(str(value))


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The control group of one run: its processes are added, and it is removed when they are gone."""

    path: Path

    @property
    def events(self) -> Path:
        """The file in which the kernel counts what it killed."""
        name = "memory.events" if (self.path / "memory.max").exists() else "memory.oom_control"
        return self.path / name

    def limit(self, limits: Limits) -> None:
        """Version 2, or version 1. What a kernel may lack is tried only: swap, and the number of processes."""
        if (self.path / "memory.max").exists():
            write_control_file(self.path / "memory.max", limits.memory)
            tried = {"memory.swap.max": 0, "pids.max": limits.processes}
        else:
            write_control_file(self.path / "memory.limit_in_bytes", limits.memory)
            tried = {"memory.memsw.limit_in_bytes": limits.memory}
        for name, value in tried.items():
            with suppress(OSError):
                write_control_file(self.path / name, value)

    def add(self, pid: int) -> None:
        """Puts a process into the group; one that has ended is left out."""
        with suppress(ProcessLookupError):
            write_control_file(self.path / "cgroup.procs", pid)

    def exceeded_memory(self) -> bool:
        """Whether the kernel killed a process of it because it took too much."""
        words = self.events.read_text().split()
        return "oom_kill" in words and words[words.index("oom_kill") + 1] != "0"

    def close(self) -> None:
        """Removes the group as soon as its last process is gone."""
        until = time.monotonic() + REMOVAL_S
        while self.path.exists():
            try:
                self.path.rmdir()
            except OSError:
                if time.monotonic() > until:
                    return  # the next process of ours tries again
                time.sleep(0.001)


@dataclass(frozen=True, slots=True)
class ParentGroup:
    """The group in which each run gets its own."""

    path: Path

    def child(self, limits: Limits) -> RunGroup:
        """A new group with these limits; OSError where this user may not make one."""
        group = RunGroup(self.path / f"{PREFIX}{os.getpid()}-{next(COUNTER)}")
        group.path.mkdir()
        try:
            group.limit(limits)
        except OSError:
            group.close()
            raise
        return group

    def works(self) -> bool:
        """Whether a process of ours can be put into a group with a limit; a process of this kind shows it."""
        try:
            group = self.child(Limits(memory=64 * MIB))
        except OSError:
            return False
        try:
            with subprocess.Popen(
                ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={}, cwd="/"
            ) as process:
                try:
                    group.add(process.pid)
                    return str(process.pid) in (group.path / "cgroup.procs").read_text().split()
                finally:
                    process.kill()
        except OSError:
            return False
        finally:
            group.close()

    def remove_orphans(self) -> None:
        """Remove the groups of processes that were killed before they could."""
        for left in self.path.glob(f"{PREFIX}*-*"):
            owner = left.name.removeprefix(PREFIX).partition("-")[0]
            if owner.isdigit() and not Path(f"/proc/{owner}").exists():
                with suppress(OSError):
                    left.rmdir()


def read_or_empty(path: str) -> str:
    """The text of a file, empty where it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def parent_group() -> ParentGroup | None:
    """Where runs get their groups; None where they get none."""
    setting = os.environ.get(SETTING, "")
    if setting == "off":
        return None
    for path in (
        [Path(setting)] if setting else own_groups(*map(read_or_empty, ("/proc/self/cgroup", "/proc/self/mountinfo")))
    ):
        parent = ParentGroup(path)
        if parent.works():
            parent.remove_orphans()
            return parent
    if setting:
        raise MarftError(
            f"{SETTING}={setting} is no control group in which this user may limit memory: name a folder below "
            "/sys/fs/cgroup that is yours, holds this process, and has memory in cgroup.subtree_control; or off"
        )
    return None


def own_groups(memberships: str, mounts: str) -> Iterator[Path]:
    """The groups that a process is in and that can limit memory, version 2 first, by its two files in /proc."""
    for controllers, path in sorted(
        (line.split(":", 2)[1:] for line in memberships.splitlines()), key=lambda row: row[0]
    ):
        if controllers and "memory" not in controllers.split(","):
            continue
        for mount in map(str.split, mounts.splitlines()):
            root, place, (kind, _, options) = mount[3], mount[4], mount[mount.index("-") + 1 :][:3]
            if kind == "cgroup2" if not controllers else kind == "cgroup" and "memory" in options.split(","):
                below = path.removeprefix(root).strip("/")  # a container sees a part of the tree only
                if ".." not in below.split("/"):
                    yield Path(place) / below
