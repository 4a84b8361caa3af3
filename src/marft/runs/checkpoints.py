"""A folder of checkpoints that are there whole or not at all; what is in one is its writer's affair."""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from marft.runs.atomic import fsync_folder, write_atomically
from marft.runs.disk import writing
from marft.types import MarftError

MANIFEST = "manifest.json"


class CorruptCheckpoint(MarftError):
    """A checkpoint whose files are not those that were written."""


class Checkpoints:
    """`folder/NNNNNN/` for each iteration kept. Only the training process may save, recover or drop.

    Hidden siblings are states on the way: `.NNNNNN.new` is being written, `.NNNNNN.old` is being replaced,
    `.NNNNNN.gone` is being deleted. Whatever is not hidden is complete.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.folder = folder
        self.keep = keep

    def path(self, iteration: int) -> Path:
        return self.folder / f"{iteration:06d}"

    def list(self) -> builtins.list[int]:
        """The iterations that have a checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        complete = (entry.name for entry in self.folder.iterdir() if (entry / MANIFEST).is_file())
        return sorted(int(name) for name in complete if re.fullmatch(r"\d{6,}", name))

    # --- writing -----------------------------------------------------------------------------------------------------
    def save(self, iteration: int, write: Callable[[Path], None]) -> None:
        """Keep what `write` puts into the folder it is given, then delete all but the newest."""
        new = self._hidden(iteration, "new")
        with writing(self.folder.parent):
            self.folder.mkdir(parents=True, exist_ok=True)
            self.recover()
            try:
                new.mkdir()
                write(new)
                seal(new, iteration)
                self._publish(new, iteration)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
            others = [other for other in self.list() if other != iteration]
            for old in others[: max(0, len(others) - self.keep + 1)]:
                self._delete(old)

    def recover(self) -> None:
        """Clear away what a kill left half done; a checkpoint put aside for one that never came is put back."""
        if not self.folder.is_dir():
            return
        with writing(self.folder.parent):
            for left in sorted(self.folder.iterdir()):
                if not (name := re.fullmatch(r"\.(\d{6,})\.(new|old|gone)", left.name)):
                    continue
                if name[2] == "old" and not (path := self.path(int(name[1]))).exists():
                    left.rename(path)
                else:
                    shutil.rmtree(left)

    def drop_after(self, iteration: int) -> None:
        """Delete what is newer: a run that goes back must not find its other future again."""
        with writing(self.folder.parent):
            self.recover()
            for newer in self.list():
                if newer > iteration:
                    self._delete(newer)

    def _publish(self, new: Path, iteration: int) -> None:
        path, old = self.path(iteration), self._hidden(iteration, "old")
        if path.exists():
            path.rename(old)
        try:
            new.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
        fsync_folder(self.folder)
        if old.exists():
            shutil.rmtree(old)

    def _delete(self, iteration: int) -> None:
        # Hidden first, so that a kill in the middle leaves no checkpoint that looks complete and is not.
        gone = self._hidden(iteration, "gone")
        self.path(iteration).rename(gone)
        shutil.rmtree(gone)

    def _hidden(self, iteration: int, state: str) -> Path:
        return self.folder / f".{self.path(iteration).name}.{state}"

    # --- reading -----------------------------------------------------------------------------------------------------
    def verify(self, iteration: int) -> None:
        """Raise unless the files are exactly those of the manifest."""
        folder = self.path(iteration)
        expected = read_manifest(folder)
        found = {name for name in files(folder) if name != MANIFEST}
        for name in sorted(expected.keys() | found):
            if name not in found:
                raise CorruptCheckpoint(f"checkpoint {folder} is corrupt: {name} is missing")
            if name not in expected:
                raise CorruptCheckpoint(f"checkpoint {folder} is corrupt: {name} is unexpected")
            try:
                actual = digest(folder / name)
            except OSError as error:
                raise CorruptCheckpoint(f"checkpoint {folder} is corrupt: {name}: {error.strerror}") from error
            if actual != expected[name]:
                raise CorruptCheckpoint(f"checkpoint {folder} is corrupt: {name} has another SHA-256 than when written")

    def newest_valid(self, warn: Callable[[str], None], at: int | None = None) -> int | None:
        """The newest checkpoint that verifies, warning of those that do not; with `at`, that one or an error."""
        if at is not None:
            return self._exactly(at)
        for iteration in reversed(self.list()):
            try:
                self.verify(iteration)
            except CorruptCheckpoint as error:
                warn(f"{error}; trying the one before")
            else:
                return iteration
        return None

    def _exactly(self, iteration: int) -> int:
        available = self.list()
        others = ", ".join(str(other) for other in available if other != iteration) or "none"
        if iteration not in available:
            raise MarftError(f"{self.folder} has no checkpoint of iteration {iteration}; available: {others}")
        try:
            self.verify(iteration)
        except CorruptCheckpoint as error:
            raise CorruptCheckpoint(f"{error}; choose another, available: {others}") from error
        return iteration


def seal(folder: Path, iteration: int) -> None:
    """Bring every file to the disk, and then the manifest that vouches for them."""
    hashes = {name: digest(folder / name, sync=True) for name in files(folder)}
    if MANIFEST in hashes:
        raise ValueError(f"{MANIFEST} is the checkpoint's own; write under another name")
    for inner in sorted(path for path in folder.rglob("*") if path.is_dir()):
        fsync_folder(inner)
    manifest = {"iteration": iteration, "files": hashes}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2).encode() + b"\n")


def read_manifest(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file, by its path relative to the checkpoint."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        iteration, hashes = int(manifest["iteration"]), dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise CorruptCheckpoint(f"checkpoint {folder} is corrupt: {MANIFEST} cannot be read") from None
    if iteration != int(folder.name):
        raise CorruptCheckpoint(f"checkpoint {folder} is corrupt: {MANIFEST} is that of iteration {iteration}")
    return hashes


def files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if not path.is_dir():
            yield path.relative_to(folder).as_posix()


def digest(path: Path, *, sync: bool = False) -> str:
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
