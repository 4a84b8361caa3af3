"""The command line of bubblewrap: everything is taken away, and the little that a program needs is given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

from marft.envs.sandbox.limits import Limits
from marft.envs.sandbox.machine import NOBODY, Machine

BOOTSTRAP = files("marft.envs.sandbox").joinpath("bootstrap.py").read_text(encoding="utf-8")
DEVICES = ("null", "urandom")  # not zero: a shared map of it is memory that the address space does not count
STREAMS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


def bwrap_command(
    machine: Machine,
    limits: Limits,
    *,
    files: Mapping[str, int],
    arguments: Sequence[str],
    report: int,
    gate: int,
    info: int,
    seccomp: int | None,
) -> list[str]:
    """`files` are read from their descriptors into /program, where `main.py` is what runs.

    The program is process 1 of its namespace, so that bubblewrap waits for it; otherwise a process of bubblewrap's own
    would be left over for the machine's first process to bury, which in a container may be a trainer that never does.
    It starts only when it is told so through `gate`.
    """
    line = [machine.bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    line += ["--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv"]
    line += ["--as-pid-1", "--info-fd", str(info)]
    line += ["--setenv", "MALLOC_ARENA_MAX", "1"]  # else each thread reserves 64 MiB of the address space for itself
    for path in (*machine.folders, *machine.loaders, machine.python):
        line += ["--ro-bind", path, path]
    for path, target in machine.links:
        line += ["--symlink", target, path]
    for path in machine.hidden:
        line += ["--tmpfs", path, "--remount-ro", path]
    line += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    for device in DEVICES:
        line += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    for name, target in STREAMS.items():
        line += ["--symlink", target, f"/dev/{name}"]
    line += ["--proc", "/proc", "--size", str(limits.tmpfs), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for name, descriptor in files.items():
        line += ["--ro-bind-data", str(descriptor), f"/program/{name}"]
    line += ["--remount-ro", "/"]
    if seccomp is not None:
        line += ["--seccomp", str(seccomp)]
    resources = [f"{name}={value}" for name, value in limits.resources().items()]
    python = [machine.python, "-I", "-S", "-B", "-X", "utf8", "-c", BOOTSTRAP]
    return [*line, "--", *python, str(report), str(gate), str(len(resources)), *resources, *arguments]
