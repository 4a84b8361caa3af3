"""Systems that are not Linux: what they lack is taken away, and everything that can work without it still does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from marft.envs.grading.symbolic import Client
from marft.envs.sandbox import require_sandbox
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
    if not found.name.startswith("marft.envs.code.") or found.name.endswith(("environment", "grading")):
        importlib.import_module(found.name)  # others of these are programs that run inside the sandbox
import marft.config, marft.runs.atomic, marft.runs.directory
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
    client = Client()
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
