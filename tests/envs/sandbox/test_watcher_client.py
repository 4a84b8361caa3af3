"""The process that watches runs where no control group does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from marft.envs.sandbox import Limits, launch, require_sandbox
from marft.envs.sandbox.limits import MIB
from marft.envs.sandbox.machine import Machine
from marft.envs.sandbox.program import Running
from marft.envs.sandbox.watcher_client import PROCESS_WATCHER as WATCHER
from marft.types import MarftError

try:
    require_sandbox()
except MarftError as error:
    pytest.skip(str(error), allow_module_level=True)
MANY_FILES = "for i in range(10**6): open(f'/tmp/{i}', 'w').close()"
SMALL = Limits(memory=64 * MIB)


@pytest.fixture
def machine() -> Iterator[Machine]:
    yield replace(require_sandbox(), cgroup=None)
    WATCHER.stop()


def started(machine: Machine, program: str, limits: Limits = SMALL) -> Running:
    return launch(program, limits=limits, machine=machine)


def test_one_process_watches_all(machine: Machine) -> None:
    with started(machine, "print(1)") as one, started(machine, "print(2)") as other:
        watching = WATCHER.process
        assert (one.finish().stdout, other.finish().stdout) == ("1\n", "2\n")
    assert watching is not None
    assert WATCHER.process is watching
    assert watching.poll() is None


def test_the_one_that_takes_too_much_is_killed_and_no_other(machine: Machine) -> None:
    with (
        started(machine, "import time; time.sleep(2); print('well')") as good,
        started(machine, MANY_FILES) as bad,
        started(machine, MANY_FILES, Limits(memory=1024 * MIB, seconds=1.5)) as larger,
    ):
        ends = [each.finish().ended for each in (bad, larger, good)]
    assert ends == ["memory", "timeout", "ok"]


def test_it_is_killed_while_nobody_waits_for_it(machine: Machine) -> None:
    with started(machine, MANY_FILES) as running:
        until = time.monotonic() + 8
        while running.process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        assert running.process.poll() is not None


def test_a_watcher_that_was_killed_is_started_anew(machine: Machine) -> None:
    with started(machine, "print(1)") as running:
        running.finish()
    assert WATCHER.process is not None
    WATCHER.process.send_signal(signal.SIGKILL)
    WATCHER.process.wait()
    with started(machine, MANY_FILES) as running:
        assert running.finish().ended == "memory"


def test_runs_that_are_over_are_forgotten(machine: Machine) -> None:
    for _ in range(20):
        with started(machine, "pass") as running:
            running.finish()
    assert WATCHER.process is not None
    time.sleep(0.2)
    if os.geteuid() != 0:
        pytest.skip("only root may look at the descriptors of nobody's process")
    assert len(os.listdir(f"/proc/{WATCHER.process.pid}/fd")) < 8


def test_after_a_fork_there_is_another(machine: Machine) -> None:
    with started(machine, "print(1)") as running:
        running.finish()
    ours = WATCHER.process
    assert ours is not None
    child = os.fork()
    if child == 0:
        try:
            with started(machine, "print(1)") as running:
                good = running.finish().stdout == "1\n" and WATCHER.process is not ours
            WATCHER.stop()
            os._exit(0 if good else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ours.poll() is None


def test_it_ends_with_those_it_watches_for() -> None:
    code = (
        "from marft.envs.sandbox import run; from marft.envs.sandbox.watcher_client import PROCESS_WATCHER as w\n"
        "run('pass'); print(w.process.pid, flush=True); input()"
    )
    environment = os.environ | {"MARFT_SANDBOX_CGROUP": "off"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert os.path.exists(f"/proc/{pid}")
    process.kill()
    process.communicate()
    until = time.monotonic() + 5
    while running(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not running(pid)


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
