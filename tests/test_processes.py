"""Child processes of ours; and systems that are not Linux: what they lack is taken away, and what can work still does."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.envs.grading.algebra_client import AlgebraClient
from marft.envs.sandbox import require_sandbox
from marft.processes import ChildProcess, LineReader, read_frames, to_frame
from marft.types import MarftError

LIBRARIES = "import asyncio, multiprocessing.connection, random, sysconfig, tempfile; sysconfig.get_config_vars()"
WINDOWS = """
import os, select, signal, socket, subprocess, sys, threading
for name in ("fcntl", "resource", "pwd", "grp"):
    sys.modules[name] = None
for module, names in {
    os: ("fork", "register_at_fork", "killpg", "setsid", "geteuid", "memfd_create", "pidfd_open", "sysconf"),
    select: ("poll",), signal: ("SIGALRM", "SIGXCPU", "SIGKILL", "SIGCHLD", "setitimer"), socket: ("send_fds", "recv_fds"),
}.items():
    for name in names:
        delattr(module, name)
"""
MACOS = """
import builtins, fcntl, os, resource, sys, sysconfig
sysconfig.get_config_vars()  # of this machine, which has no such file of macOS
for name in ("F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_WRITE", "F_ADD_SEALS"):
    delattr(fcntl, name)
def setrlimit(which, limits, before=resource.setrlimit):
    if which == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    before(which, limits)
def opened(file, *rest, before=builtins.open, **more):
    if str(file).startswith("/proc"):
        raise FileNotFoundError(file)
    return before(file, *rest, **more)
resource.setrlimit, builtins.open, sys.platform = setrlimit, opened, "darwin"
"""
EVERY_MODULE = """
import importlib, pkgutil, marft.envs
for found in pkgutil.walk_packages(marft.envs.__path__, "marft.envs."):
    if found.name == "marft.envs.verifiers.harness":
        continue  # a part for verifiers, which it needs
    if not found.name.startswith("marft.envs.code.") or found.name.endswith(("environment", "grading")):
        importlib.import_module(found.name)  # others of these are programs that run inside the sandbox
import marft.config, marft.runs.disk, marft.runs.directory
"""


@pytest.mark.parametrize("lacking", [WINDOWS, MACOS], ids=["Windows", "macOS"])
def test_every_module_can_be_imported_without_what_only_linux_has(lacking: str) -> None:
    code = LIBRARIES + lacking + EVERY_MODULE
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("lacking", ["import os\ndel os.fork\n", MACOS], ids=["no fork", "macOS"])
def test_algebra_decides_without_linux(lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(lacking)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    client = AlgebraClient()
    try:
        assert client.equal(r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}")
        assert not client.equal(r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{3}}")
    finally:
        client.stop()


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_no_program_is_run_where_there_is_no_sandbox(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_sandbox.cache_clear()
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(MarftError, match=rf"needs Linux, and this is {platform}: use a Linux machine"):
        require_sandbox()


def test_a_child_is_ended_by_its_owner_alone_and_with_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text(
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], stdout=2).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    sys.path.append(str(tmp_path))  # a child imports what this process can
    try:
        child = ChildProcess("sleepy")
    finally:
        sys.path.remove(str(tmp_path))
    grandchild = int(child.lines().next(20) or b"")
    fork = os.fork()
    if fork == 0:
        child.end()
        os._exit(0)
    assert os.waitpid(fork, 0)[1] == 0
    assert child.poll() is None
    for _ in range(2):  # once more is no harm
        child.end()
    assert child.returncode == -signal.SIGKILL
    status = Path(f"/proc/{grandchild}/status")
    assert not status.exists() or "\nState:\tZ" in status.read_text()


def test_a_line_that_does_not_come_is_waited_for_no_longer_than_it_may_take() -> None:
    reading, writing = os.pipe()
    lines = LineReader(io.FileIO(reading))
    os.write(writing, b"one\ntwo\nth")
    assert [lines.next(20), lines.next(20)] == [b"one", b"two"]
    with pytest.raises(TimeoutError):
        lines.next(0.01)
    os.close(writing)
    assert [lines.next(20), lines.next(20)] == [None, None]


@given(messages=st.lists(st.binary(max_size=50)), cut=st.integers(0, 60))
def test_frames_come_back_as_they_were_and_half_a_frame_is_none(messages: list[bytes], cut: int) -> None:
    data = b"".join(map(to_frame, messages))
    assert list(read_frames(io.BytesIO(data))) == messages
    kept = list(read_frames(io.BytesIO(data[: max(0, len(data) - cut)])))
    assert kept == messages[: len(kept)]
    assert (len(kept) == len(messages)) == (cut == 0 or not messages)
