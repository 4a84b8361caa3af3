"""One writer a folder: who is refused, what is left behind, and that nothing dead holds a lock."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from marft.runs import lock
from marft.runs.lock import Lock
from marft.types import MarftError

Hold = Callable[[Path, str], subprocess.Popen[str]]
HOLDING = """
import os, subprocess, sys, time
from pathlib import Path
from marft.runs.lock import Lock
with Lock(Path(sys.argv[1])):
    {then}
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def hold() -> Iterator[Hold]:
    """A process that holds a folder's lock, and has done something else meanwhile."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, then: str = "pass") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDING.format(then=then), str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def free(folder: Path) -> bool:
    try:
        with Lock(folder):
            return True
    except MarftError:
        return False


def test_the_second_is_refused_in_one_line_that_names_the_first(tmp_path: Path, hold: Hold) -> None:
    folder = tmp_path / "run"
    holder = hold(folder, "pass")
    before = (folder / "lock").read_bytes()
    with pytest.raises(MarftError) as error, Lock(folder):
        pass
    line = str(error.value)
    assert line.startswith(f"{folder} is being written by process {holder.pid} on {socket.gethostname()} since 2")
    assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line)
    assert line.endswith("wait for it, stop it, or choose another --run")
    assert "\n" not in line
    assert (folder / "lock").read_bytes() == before
    assert json.loads(before).keys() == {"pid", "host", "command", "started"}


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with Lock(tmp_path / "run"):
        assert not free(tmp_path / "run")
        assert free(tmp_path / "other")
    assert free(tmp_path / "run")


def test_a_killed_process_holds_nothing(tmp_path: Path, hold: Hold) -> None:
    holder = hold(tmp_path, "pass")
    assert not free(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "lock").exists()
    assert free(tmp_path)
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize(
    "child",
    [
        "os.fork() or time.sleep(600)",
        'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]], close_fds=False)',
    ],
    ids=["forked", "started"],
)
def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(tmp_path: Path, hold: Hold, child: str) -> None:
    holder = hold(tmp_path, f'{child}; open(sys.argv[1] + "/children", "w").close()')
    assert not free(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    try:
        assert free(tmp_path)
    finally:
        left = [p for p in Path("/proc").glob("[0-9]*") if str(tmp_path).encode() in cmdline(p)]
        for process in left:
            os.kill(int(process.name), signal.SIGKILL)


def cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_child_that_leaves_the_block_leaves_the_parents_lock(tmp_path: Path) -> None:
    with Lock(tmp_path):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert not free(tmp_path)
            assert (tmp_path / "lock").exists()
    if not child:
        os._exit(0)
    assert not (tmp_path / "lock").exists()


def test_folders_that_nothing_came_into_go_again(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    with Lock(folder):
        assert [p.name for p in folder.iterdir()] == ["lock"]
    assert list(tmp_path.iterdir()) == []
    with Lock(folder):
        (folder / "config.yaml").write_text("")
    assert [p.name for p in folder.iterdir()] == ["config.yaml"]
    (tmp_path / "empty").mkdir()
    with Lock(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty").is_dir()


def test_a_lock_on_a_file_that_has_gone_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last holder deletes it between our opening and our locking."""
    real, opened = lock.lock_file, []

    def late(descriptor: int) -> None:
        real(descriptor)
        opened.append(descriptor)
        if len(opened) == 1:
            (tmp_path / "lock").unlink()

    monkeypatch.setattr(lock, "lock_file", late)
    with Lock(tmp_path):
        assert len(opened) == 2
        assert not free(tmp_path)


def test_of_many_at_once_one_holds_it(tmp_path: Path) -> None:
    """Files come and go with the holders; nobody may end up with the lock on a file that has gone."""
    code = """
import sys, time
from pathlib import Path
from marft.runs.lock import Lock
from marft.types import MarftError
folder, alone, got = Path(sys.argv[1]) / "run", Path(sys.argv[1]) / "alone", 0
while got < 40:
    try:
        with Lock(folder):
            alone.mkdir()
            alone.rmdir()
            got += 1
    except MarftError:
        pass
"""
    lazily = "import marft.runs.lock as l\nl.read_holder = lambda path: None\n"
    command = [sys.executable, "-c", lazily + code, str(tmp_path)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in running] == [("", 0)] * 4


def test_a_lock_that_does_not_say_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: None)
    for text in ("", "{", "[]"):
        with Lock(tmp_path):
            (tmp_path / "lock").write_text(text)
            with pytest.raises(MarftError, match="is being written by another process; wait"), Lock(tmp_path):
                pass


def test_a_folder_that_cannot_be_made_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MarftError, match=r"cannot make the run .*/file/run: Not a directory; choose another --run"):
        Lock(tmp_path / "file" / "run").__enter__()

    def read_only(path: Path, *_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(MarftError, match=r"cannot write .*lock: Read-only file system; make it writable or choose"):
        Lock(tmp_path / "run").__enter__()
    assert not (tmp_path / "run").exists()


def test_a_file_system_without_locks_is_said_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unsupported(descriptor: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock, "lock_file", unsupported)
    with Lock(tmp_path):
        assert not (tmp_path / "lock").exists()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"marft: warning: the file system of {tmp_path} has no locks")
