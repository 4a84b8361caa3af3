"""One writer a folder: an OS lock on its `lock` file, which ends with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import stat
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from marft.files import Damaged, file_kind
from marft.terminal import warn
from marft.types import MarftError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NAME = "lock"
# no link is followed: what it leads to would be overwritten; and nothing is waited for
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
HELD = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}
UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # some network file systems
FAR = 1 << 30  # Windows locks bytes for readers too: one far behind the text
LONGEST = 200  # characters of a command that are told


class Lock:
    """Held from entering to leaving; entering raises a MarftError that names the holder where somebody else has it.

    The folder is made if it is not there; where nothing else has come into it by the end, it goes again. The file is
    there while the folder is written, and after a kill, when it means nothing: what counts is the lock on it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self._descriptor: int | None = None
        self._made: list[Path] = []
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        self._made = make_folders(self.folder)
        try:
            with suppress_unsupported(self.folder):
                self._acquire()
        except BaseException:
            self._clear_away()
            raise
        if hasattr(os, "register_at_fork"):  # a forked child shares the lock and would keep it when we are killed
            os.register_at_fork(after_in_child=partial(close_inherited, weakref.ref(self)))
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is None or os.getpid() != self._owner:
            return
        if sys.platform == "win32":  # an open file cannot be deleted there
            self._close()
        with suppress(OSError):
            self.path.unlink()  # before the lock ends: whoever gets it after us sees that the file has gone
        self._close()
        self._clear_away()

    def _acquire(self) -> None:
        while self._descriptor is None:
            try:
                descriptor = os.open(self.path, FLAGS, 0o644)  # not inherited by programs we start
            except FileNotFoundError:  # whoever else had made the folder has just cleared it away
                self._made = make_folders(self.folder) or self._made
                continue
            except OSError as error:
                raise MarftError(
                    f"cannot write {self.path}: {error.strerror}; make it writable or choose another --run"
                ) from error
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # whatever it is, it is not ours to delete
                    raise Damaged(self.path, f"is {file_kind(self.path)} and should be a file", "choose another --run")
                lock_file(descriptor)
                if not is_same_file(descriptor, self.path):  # its last holder has deleted it meanwhile
                    os.close(descriptor)
                    continue
            except BaseException as error:
                os.close(descriptor)
                if isinstance(error, OSError) and error.errno in HELD:
                    raise MarftError(held_message(self.folder, read_holder(self.path))) from None
                raise
            self._descriptor = descriptor
            with suppress(OSError):  # who we are is only told to others; a full disk shows itself later
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps(describe_process()).encode() + b"\n")

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _clear_away(self) -> None:
        """The folders that we made, if nothing else is in them."""
        with suppress(OSError):
            for folder in reversed(self._made):
                folder.rmdir()
        self._made = []


def make_folders(folder: Path) -> list[Path]:
    """Those that were missing, outermost first."""
    try:
        missing = [each for each in (folder, *folder.parents) if not each.exists()][::-1]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MarftError(f"cannot make the run {folder}: {error.strerror}; choose another --run") from error
    return missing


@contextmanager
def suppress_unsupported(folder: Path) -> Iterator[None]:
    """A file system without locks: one line says that nobody watches, and the work goes on."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        (folder / NAME).unlink(missing_ok=True)
        warn(
            f"the file system of {folder} has no locks ({error.strerror}): see to it yourself that only one process "
            "writes there"
        )


def lock_file(descriptor: int) -> None:
    """At once, or an OSError whose number is in HELD."""
    if sys.platform == "win32":
        os.lseek(descriptor, FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def close_inherited(lock: weakref.ref[Lock]) -> None:
    """In a forked child: its copy of the descriptor is closed, which leaves the parent's lock as it is."""
    if (inherited := lock()) is not None:
        inherited._close()


def describe_process() -> dict[str, Any]:
    """This process, for others to read."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join([program, *sys.argv[1:]])[:LONGEST],
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def read_holder(path: Path) -> dict[str, Any] | None:
    """Who has the lock; None if it does not say, as for a moment after it was taken."""
    for _ in range(20):
        with suppress(OSError, ValueError):
            found = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return found
        time.sleep(0.05)
    return None


def held_message(folder: Path, found: dict[str, Any] | None) -> str:
    """The error message that names who holds the lock."""
    who = "another process"
    if found is not None:
        since = str(found.get("started", "an unknown time")).replace("T", " ")
        who = f"process {found.get('pid')} on {found.get('host')} since {since} ({found.get('command')})"
    return f"{folder} is being written by {who}; wait for it, stop it, or choose another --run"
