"""What a disk can refuse, said in one line."""

from __future__ import annotations

import errno
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marft.types import MarftError

FULL = {errno.ENOSPC, errno.EDQUOT}
REFUSED = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE,
    errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENXIO,  # something else stands where it is to be
}  # fmt: skip


@contextmanager
def explain_write_errors(run: Path) -> Iterator[None]:
    """Around every write into a run: the disk's refusals become one line, our own bugs stay what they are."""
    again = f"then `marft train --resume --run {shlex.quote(str(run))}`"
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise MarftError(full_disk_message(run, again)) from error
        if error.errno in REFUSED:
            place = error.filename or run
            raise MarftError(
                f"cannot write {place}: {error.strerror}; nothing already written is lost: make it writable, {again}"
            ) from error
        raise
    except Exception as error:
        # safetensors is written in Rust and reports a full disk as an error of its own, with the number in its text.
        if any(f"os error {number}" in str(error) for number in FULL):
            raise MarftError(full_disk_message(run, again)) from error
        raise


def full_disk_message(run: Path, again: str) -> str:
    """The error message for a full disk."""
    return f"the disk of {run} is full; nothing already written is lost: free space, {again}"


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
            f"{path}: the run needs {format_bytes(needed)} of disk and {format_bytes(free)} are free; "
            "free space or choose another --run"
        )


def format_bytes(size: int) -> str:
    """17000000 → '17.0 MB'."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"
