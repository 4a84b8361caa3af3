"""Adapters out of a run: the checkpoint's PEFT folders, copied as they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from marft.runs.checkpoints import Checkpoints
from marft.runs.directory import RunDirectory
from marft.terminal import warn
from marft.types import MarftError


def checkpoint_folder(run: RunDirectory, at: int | None) -> Path:
    """The newest checkpoint of a run that is whole, or that of iteration `at`."""
    kept = Checkpoints(run.path / "checkpoints", run.config().checkpoint.keep)
    warnings: list[str] = []
    found = kept.newest_valid(warnings.append, at)
    if found is None:
        raise MarftError(f"{run.path} has no whole checkpoint yet{'; ' + warnings[0] if warnings else ''}")
    for line in warnings:  # an older one than the user expects
        warn(line)
    return kept.path(found)


def export_adapters(run: Path, folder: Path, at: int | None) -> Iterator[str]:
    """Copy agents/NAME of the checkpoint to folder/NAME; a line for each."""
    source = checkpoint_folder(RunDirectory.open(run), at)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise MarftError(f"{folder} exists and is not an empty folder; choose another")
    for adapter in sorted((source / "agents").iterdir()):
        try:
            shutil.copytree(adapter, folder / adapter.name)
        except OSError as error:
            raise MarftError(f"cannot write {folder / adapter.name}: {error.strerror or error}") from None
        yield f"{adapter.name}: {folder / adapter.name}"
