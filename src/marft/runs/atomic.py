"""Files that are there whole or not at all, whenever the process is killed or the disk fills up."""

from __future__ import annotations

import os
from pathlib import Path


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
