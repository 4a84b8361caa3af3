"""Files that are there whole or not at all, whenever the process is killed, and one line for what a disk refuses."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marft.terminal import format_bytes
from marft.types import MarftError

FULL = {errno.ENOSPC, errno.EDQUOT}
REFUSED = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE,
    errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENXIO,  # something else stands where it is to be
}  # fmt: skip


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`: a reader sees the old bytes or the new ones, never a mixture."""
    temporary = path.with_name(f".{path.name}.tmp")  # one name, so that what a kill leaves is overwritten
    temporary.unlink(missing_ok=True)  # it may be anything, also what opening would wait for
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def append_whole(path: Path, data: bytes) -> None:
    """Append `data`, or take back what was written of it when the disk refuses the rest."""
    before = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab") as file:
            file.write(data)
    except OSError:
        if path.exists():
            os.truncate(path, before)
        raise


def fsync_folder(folder: Path) -> None:
    """A rename survives a power cut only once its folder is on the disk too. Windows opens no folder, and sees to it itself."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- what a disk refuses ----------------------------------------------------------------------------------------------
@contextmanager
def explain_write_errors(run: Path) -> Iterator[None]:
    """Around every write into a run: the disk's refusals become one line, our own bugs stay what they are."""
    again = f"then `marft train --resume --run {shlex.quote(str(run))}`"
    try:
        yield
    except Exception as error:
        if is_disk_full(error):
            raise MarftError(full_disk_message(run, again)) from error
        if isinstance(error, OSError) and error.errno in REFUSED:
            place = error.filename or run
            raise MarftError(
                f"cannot write {place}: {error.strerror}; nothing already written is lost: make it writable, {again}"
            ) from error
        raise


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, or one that it came from, is a full disk's refusal."""
    found: BaseException | None = error
    while found is not None:
        # safetensors is written in Rust and reports a full disk as an error of its own, with the number in its text.
        told = any(f"os error {number}" in str(found) for number in FULL)
        if told or (isinstance(found, OSError) and found.errno in FULL):
            return True
        found = found.__cause__ or found.__context__
    return False


def full_disk_message(run: Path, again: str) -> str:
    """The error message for a full disk."""
    return f"the disk of {run} is full; nothing already written is lost: free space, {again}"


@contextmanager
def explain_file_error(path: Path) -> Iterator[None]:
    """Around a write into a folder that the same command goes on with: an evaluation's or a comparison's."""
    try:
        yield
    except OSError as error:
        raise MarftError(
            f"cannot write {path}: {error.strerror}; nothing already written is lost: mend it, then give the same command "
            f"with --run {shlex.quote(str(path.parent))}"
        ) from error


def make_folder(path: Path) -> None:
    """With those above it; a MarftError where the disk refuses."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MarftError(f"cannot make {path}: {error.strerror}; choose another --run") from error


def require_space(path: Path, needed: int) -> None:
    """Refuse to start what cannot end: `path`, which need not exist yet, must have `needed` bytes free."""
    place = path.absolute()
    try:
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise MarftError(f"cannot use {path}: {error.strerror}; choose another --run") from error
    if free < needed:
        raise MarftError(
            f"{path}: the run needs {format_bytes(needed, 1)} of disk and {format_bytes(free, 1)} are free; "
            "free space or choose another --run"
        )
