"""A folder of checkpoints that are there whole or not at all; what is in one is its writer's affair."""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from marft.files import (
    Damaged,
    Denied,
    OtherVersion,
    check_folder,
    is_folder,
    is_there,
    open_file,
    read_error,
    read_whole_json,
)
from marft.runs.disk import explain_write_errors, fsync_folder, write_atomically
from marft.runs.file_schemas import CheckpointManifest
from marft.types import MarftError

MANIFEST = "manifest.json"
NUMBER = re.compile(r"[0-9]{6,18}")
HIDDEN = re.compile(r"\.([0-9]{6,18})\.(new|old|gone)")


class CorruptCheckpoint(MarftError):
    """A checkpoint whose files are not those that were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestCheckpoint:
    """The newest checkpoint that is whole, and why those that are newer are not, by their iterations.

    Where it is a copy that a kill has left hidden beside a damaged one, its own iteration is among them.
    """

    iteration: int
    folder: Path
    damaged: dict[int, str]

    def passed_over(self) -> str:
        """What is wrong with those that are newer, in one line; nothing where there are none."""
        first, *others = self.damaged.values() or ("",)
        return f"{first} (and {len(others)} more)" if others else first

    def __str__(self) -> str:
        return str(self.folder) if self.iteration in self.damaged else f"the one of iteration {self.iteration}"


class Checkpoints:
    """`folder/NNNNNN/` for each iteration kept. Only the training process may save, recover or drop.

    Hidden siblings are states on the way: `.NNNNNN.new` is being written, `.NNNNNN.old` is being replaced,
    `.NNNNNN.gone` is being deleted. Whatever is not hidden was complete once. `NNNNNN.damaged` was put aside, and is left
    alone.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.folder = folder
        self.keep = keep

    def path(self, iteration: int) -> Path:
        """The folder of an iteration's checkpoint, whether it exists or not."""
        return self.folder / f"{iteration:06d}"

    def list(self) -> builtins.list[int]:
        """The iterations that have a checkpoint, oldest first."""
        return sorted(number for number, folder in self.present().items() if is_there(folder / MANIFEST))

    def present(self) -> dict[int, Path]:
        """Whatever stands in a checkpoint's place, whole or not; also one put aside for another that never came."""
        check_folder(self.folder)
        if not is_there(self.folder):
            return {}
        try:
            names = os.listdir(self.folder)
        except OSError as error:
            raise read_error(self.folder, error) from None
        found = {int(name): self.folder / name for name in names if NUMBER.fullmatch(name)}
        hidden = {int(name[1]): name[0] for name in map(HIDDEN.fullmatch, names) if name and name[2] == "old"}
        return {number: self.folder / name for number, name in hidden.items()} | found

    # --- writing -----------------------------------------------------------------------------------------------------
    def save(self, iteration: int, write: Callable[[Path], None]) -> None:
        """Keep what `write` puts into the folder it is given, then delete all but the newest."""
        new = self._hidden(iteration, "new")
        with explain_write_errors(self.folder.parent):
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
        if not is_folder(self.folder):
            return
        with explain_write_errors(self.folder.parent):
            for left in sorted(self.folder.iterdir()):
                if not (name := HIDDEN.fullmatch(left.name)):
                    continue
                if name[2] == "old" and not is_there(path := self.path(int(name[1]))):
                    left.rename(path)
                else:
                    remove_tree(left)

    def put_aside(self, iteration: int) -> str:
        """Keep a damaged checkpoint under another name, which is returned, where nobody deletes or overwrites it."""
        number, stem = 1, f"{self.path(iteration).name}.damaged"
        while is_there(aside := self.folder / (stem if number == 1 else f"{stem}-{number}")):
            number += 1
        with explain_write_errors(self.folder.parent):
            self.present()[iteration].rename(aside)
        return aside.name

    def put_in_place(self, found: NewestCheckpoint) -> None:
        """A whole checkpoint that a kill has left hidden gets its own name, once no damaged one has it."""
        if found.folder != (path := self.path(found.iteration)):
            with explain_write_errors(self.folder.parent):
                found.folder.rename(path)

    def drop_after(self, iteration: int) -> None:
        """Delete what is newer: a run that goes back must not find its other future again."""
        with explain_write_errors(self.folder.parent):
            self.recover()
            for newer in self.list():
                if newer > iteration:
                    self._delete(newer)

    def _publish(self, new: Path, iteration: int) -> None:
        path, old = self.path(iteration), self._hidden(iteration, "old")
        if is_there(path):
            path.rename(old)
        try:
            new.rename(path)
        except BaseException:
            if is_there(old):
                old.rename(path)
            raise
        fsync_folder(self.folder)
        if is_there(old):
            remove_tree(old)

    def _delete(self, iteration: int) -> None:
        # Hidden first, so that a kill in the middle leaves no checkpoint that looks complete and is not.
        gone = self._hidden(iteration, "gone")
        self.path(iteration).rename(gone)
        remove_tree(gone)

    def _hidden(self, iteration: int, state: str) -> Path:
        return self.folder / f".{self.path(iteration).name}.{state}"

    # --- reading -----------------------------------------------------------------------------------------------------
    def verify(self, iteration: int, folder: Path | None = None) -> None:
        """Raise unless the files, in `folder` or in the checkpoint's place, are exactly those of the manifest."""
        folder = folder or self.present().get(iteration, self.path(iteration))
        if not is_folder(folder):
            raise corruption_error(folder, "it is no folder")
        try:
            expected = read_manifest(folder, iteration)
            found = {name for name in list_files(folder) if name != MANIFEST}
            for name in sorted(expected.keys() | found):
                if name not in found:
                    raise corruption_error(folder, f"{name} is missing")
                if name not in expected:
                    raise corruption_error(folder, f"{name} is unexpected")
                if file_digest(folder / name) != expected[name]:
                    raise corruption_error(folder, f"{name} has another SHA-256 than when written")
        except (Denied, OtherVersion):  # nothing is known of what it holds: an older one is not what the user wants
            raise
        except Damaged as error:
            raise corruption_error(folder, f"{error.path.relative_to(folder)} {error.reason}") from None

    def newest_valid(self, at: int | None = None) -> NewestCheckpoint | None:
        """The newest checkpoint that verifies; None where there is none at all, an error where none of them does. With
        `at`, that one or an error."""
        present = self.present()
        others = ", ".join(str(other) for other in self.list() if other != at) or "none"
        if at is not None and at not in present:
            raise MarftError(f"{self.folder} has no checkpoint of iteration {at}; available: {others}")
        damaged: dict[int, str] = {}
        for iteration in sorted(present, reverse=True) if at is None else [at]:
            for folder in (present[iteration], *self._left_hidden(iteration, present[iteration])):
                try:
                    self.verify(iteration, folder)
                except CorruptCheckpoint as error:
                    damaged.setdefault(iteration, str(error))
                else:
                    return NewestCheckpoint(iteration=iteration, folder=folder, damaged=damaged)
        if at is not None:
            raise CorruptCheckpoint(f"{damaged[at]}; choose another, available: {others}")
        if damaged:
            whole = "no other is there" if len(damaged) == 1 else f"nor is any of the {len(damaged) - 1} others whole"
            raise CorruptCheckpoint(f"{damaged[max(damaged)]}, and {whole}; {self.remedy()}")
        return None

    def _left_hidden(self, iteration: int, present: Path) -> builtins.list[Path]:
        """What a kill in the middle of publishing has left beside the one that is `present`, which may be whole."""
        hidden = (self._hidden(iteration, state) for state in ("new", "old"))
        return [folder for folder in hidden if folder != present and is_there(folder)]

    def remedy(self) -> str:
        """What to do about a run that has lost its checkpoints."""
        config = shlex.quote(str(self.folder.parent / "config.yaml"))
        return f"nothing was changed; put one back from a copy, or start anew in another folder: marft train {config} --run DIR"


def seal(folder: Path, iteration: int) -> None:
    """Bring every file to the disk, and then the manifest that vouches for them."""
    hashes = {name: file_digest(folder / name, sync=True) for name in list_files(folder)}
    if MANIFEST in hashes:
        raise ValueError(f"{MANIFEST} is the checkpoint's own; write under another name")
    for inner in sorted(path for path in folder.rglob("*") if path.is_dir()):
        fsync_folder(inner)
    manifest = {"iteration": iteration, "files": hashes}
    write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2).encode() + b"\n")


def read_manifest(folder: Path, iteration: int) -> dict[str, str]:
    """The SHA-256 of each file, by its path relative to the checkpoint."""
    sealed = read_whole_json(folder / MANIFEST, CheckpointManifest)
    if sealed.iteration != iteration:
        raise corruption_error(folder, f"{MANIFEST} is that of iteration {sealed.iteration}")
    return dict(sealed.files)


def corruption_error(folder: Path, reason: str) -> CorruptCheckpoint:
    """The error for a checkpoint that does not match its manifest."""
    return CorruptCheckpoint(f"checkpoint {folder} is corrupt: {reason}")


def list_files(folder: Path) -> list[str]:
    """Whatever is no folder, by its path there."""

    def stop(error: OSError) -> None:
        raise read_error(Path(error.filename), error)

    found = [Path(place, name) for place, _, names in os.walk(folder, onerror=stop) for name in names]
    return [path.relative_to(folder).as_posix() for path in sorted(found)]


def file_digest(path: Path, *, sync: bool = False) -> str:
    """A file's SHA-256 in hexadecimal; with `sync` its bytes are on the disk afterwards."""
    with open_file(path) as file:
        if sync:
            os.fsync(file.fileno())
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise read_error(path, error) from None


def remove_tree(path: Path) -> None:
    """A folder with all that is in it; of a link, the link."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)
