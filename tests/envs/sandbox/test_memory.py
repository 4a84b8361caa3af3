"""What a program can make the machine lose: by no kind of allocation more than one and a half times its limit.

Each kind is tried as root and as an ordinary user, in a control group and without. A group around all of it counts what
is taken, kernel memory included; where none can be made, the machine's available memory is looked at.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from allocations import ALLOWED, KINDS, by_number

from marft.envs.sandbox import Limits, require_sandbox, run
from marft.envs.sandbox.cgroup import SETTING, parent_group
from marft.envs.sandbox.limits import MIB
from marft.types import MarftError

REPOSITORY = Path(__file__).parents[3]
ORDINARY: dict[str, Any] = {"user": 12345, "group": 12345, "extra_groups": []}
MODES = [(user, guard) for user in ("as we are", "as an ordinary user") for guard in ("watched", "in a cgroup")]
ATTEMPTS = 4  # where others take and free memory meanwhile
try:
    require_sandbox()
except MarftError as error:
    pytest.skip(str(error), allow_module_level=True)


class Meter:
    """A group whose children are a process that measures and the groups of its runs."""

    def __init__(self, path: Path) -> None:
        self.path, self.runner = path, path / "runner"
        path.mkdir()
        if (path / "cgroup.subtree_control").exists():
            (path / "cgroup.subtree_control").write_text("+memory")
        self.runner.mkdir()
        if os.geteuid() == 0:  # what delegation to a user means
            for each in (path, path / "cgroup.procs", self.runner, self.runner / "cgroup.procs"):
                os.chown(each, ORDINARY["user"], ORDINARY["group"])

    @property
    def usage(self) -> Path:
        new = self.path / "memory.current"
        return new if new.exists() else self.path / "memory.usage_in_bytes"

    def remove(self) -> None:
        for each in (self.runner, self.path):
            each.rmdir()


class Measuring:
    """The process that measures, as somebody and in some mode."""

    def __init__(self, user: str, guard: str, name: str) -> None:
        parent = parent_group()
        self.meter = None if parent is None else Meter(parent.path / name)
        if guard == "in a cgroup" and self.meter is None:
            pytest.skip("no control group can be made here")
        packages = [path for path in sys.path if path.endswith("site-packages")]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), *packages]),
            SETTING: str(self.meter.path) if guard == "in a cgroup" and self.meter else "off",
        }
        who = ORDINARY if user == "as an ordinary user" else {}
        script = [str(Path(__file__).parent / "measuring.py"), *([str(self.meter.usage)] if self.meter else [])]
        self.process = subprocess.Popen(
            [self.python(environment, who), *script],
            env=environment, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **who,
        )  # fmt: skip
        if self.meter is not None:
            (self.meter.runner / "cgroup.procs").write_text(str(self.process.pid))
        assert self.ask("start")["cgroup"] == (guard == "in a cgroup")

    @staticmethod
    def python(environment: dict[str, str], who: dict[str, Any]) -> str:
        for each in (sys.executable, shutil.which("python3", path="/usr/bin")):
            try:
                command = [str(each), "-c", "import marft.envs.sandbox"]
                if subprocess.run(command, env=environment, cwd="/", capture_output=True, **who).returncode == 0:
                    return str(each)
            except OSError:
                continue
        pytest.skip("no interpreter, or not this repository, can be read by an ordinary user")

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        self.process.communicate()
        if self.meter is not None:
            self.meter.remove()


@pytest.fixture(scope="module")
def measuring() -> Iterator[dict[tuple[str, str], Measuring]]:
    started: dict[tuple[str, str], Measuring] = {}
    yield started
    for each in started.values():
        each.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("user", "guard"), MODES)
def test_the_machine_loses_little(
    measuring: dict[tuple[str, str], Measuring], user: str, guard: str, kind: str
) -> None:
    if user == "as an ordinary user" and os.geteuid() != 0:
        pytest.skip("we already are an ordinary user")
    if by_number(kind) and platform.machine() != "x86_64":
        pytest.skip("names calls by their x86-64 numbers")
    if (user, guard) not in measuring:
        measuring[user, guard] = Measuring(user, guard, f"marft-test-{os.getpid()}-{len(measuring)}")
    process = measuring[user, guard]
    found = process.ask(kind)
    for _ in range(0 if process.meter else ATTEMPTS):
        if found["lost"] > 1.5 * found["memory"]:
            found = process.ask(kind)
    assert found["lost"] <= 1.5 * found["memory"], found
    assert found["ended"] == "memory" or found["said"].startswith("refused ") or kind in ALLOWED, found
    if found["ended"] == "memory" and found["said"] == "":
        assert found["exit_code"] is None  # our own word
    if process.meter:
        assert found["left"] < found["memory"] / 4, found  # of what is left, most are cached files


TOO_MUCH = {
    "shared maps": "import mmap\nkept = [mmap.mmap(-1, 32 << 20) for _ in range(64)]\nfor each in kept: each.write(b'x' * len(each))",
    "private maps": "kept = [b'x' * (1 << 20) for _ in range(2048)]",
    "page tables": """
import ctypes
mmap = ctypes.CDLL(None).mmap
mmap.restype = ctypes.c_void_p
for i in range(60000):
    try:
        at = mmap(ctypes.c_void_p(0x100000000000 + (i << 30)), 4096, 3, 0x32, -1, 0)
        ctypes.c_char.from_address(at).value = b"x"
    except BaseException:
        pass
""",
    "files": "for i in range(10**6): open(f'/tmp/{i}', 'w').close()",
}  # fmt: skip


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_a_program_that_takes_too_much_has_failed_by_memory(kind: str) -> None:
    outcome = run(TOO_MUCH[kind], limits=Limits(memory=64 * MIB))
    assert outcome.ended == "memory", outcome


def test_what_is_allowed_is_there() -> None:
    outcome = run("kept = [b'x' * (1 << 20) for _ in range(40)]\nprint(len(kept))", limits=Limits(memory=64 * MIB))
    assert (outcome.ended, outcome.stdout) == ("ok", "40\n")


def test_there_are_no_huge_pages() -> None:
    outcome = run("print([line for line in open('/proc/self/status') if 'THP_enabled' in line and '1' in line])")
    assert outcome.stdout == "[]\n"


HONEST = {
    "asyncio": "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    print('done')\nasyncio.run(main())",
    "threads": "from concurrent.futures import ThreadPoolExecutor as T\nwith T(8) as t: list(t.map(str, range(99)))\nprint('done')",
    "files": "import shutil, tempfile\nf = tempfile.NamedTemporaryFile('w'); f.write('x'); f.flush()\nshutil.copy2(f.name, '/tmp/b')\nprint('done' if open('/tmp/b').read() == 'x' else '')",
    "a map of a file": "import mmap\nf = open('/tmp/a', 'w+b'); f.write(b'x' * 4096); f.flush()\nm = mmap.mmap(f.fileno(), 0); m[0] = 100; m.flush()\nprint('done')",
    "a private map": "import mmap\nm = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE); m[0] = 1\nprint('done')",
    "a database in memory": "import sqlite3\nc = sqlite3.connect(':memory:'); c.execute('create table a (b)'); c.commit()\nprint('done')",
    "an alarm": "import signal, time\nsignal.signal(signal.SIGALRM, lambda *_: print('done'))\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(0.1)",
    "a lock on a file": "import fcntl\nf = open('/tmp/a', 'w'); fcntl.flock(f, fcntl.LOCK_EX)\nprint('done')",
    "much recursion": "import sys\nsys.setrecursionlimit(20000)\nf = lambda n: n and f(n - 1)\nf(15000)\nprint('done')",
    "a pair of sockets": "import socket\na, b = socket.socketpair(); a.sendall(b'done'); print(b.recv(9).decode())",
}  # fmt: skip


@pytest.mark.parametrize("kind", HONEST)
def test_honest_programs_do_not_notice(kind: str) -> None:
    outcome = run(HONEST[kind])
    assert (outcome.ended, outcome.stdout) == ("ok", "done\n"), outcome
