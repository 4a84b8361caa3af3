"""Adapters out of a run: the checkpoint's PEFT folders, copied as they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from marft.files import Damaged, is_folder, is_there
from marft.runs.checkpoints import Checkpoints
from marft.runs.directory import RunDirectory
from marft.terminal import warn
from marft.types import MarftError


def checkpoint_folder(run: RunDirectory, at: int | None) -> Path:
    """The newest checkpoint of a run that is whole, or that of iteration `at`."""
    kept = Checkpoints(run.path / "checkpoints", run.config().checkpoint.keep)
    found = kept.newest_valid(at)
    if found is None:
        if run.last_iteration():
            raise MarftError(f"{run.path} has lost its checkpoints; {kept.remedy()}")
        raise MarftError(f"{run.path} has no checkpoint yet; let it train until its first")
    if found.damaged:  # an older one than the user expects
        warn(f"{found.passed_over()}; {found} is taken instead")
    return found.folder


def export_adapters(run: Path, folder: Path, at: int | None) -> Iterator[str]:
    """Copy agents/NAME of the checkpoint to folder/NAME; a line for each."""
    source = checkpoint_folder(RunDirectory.open(run), at)
    if is_there(folder) and (not is_folder(folder) or any(folder.iterdir())):
        raise MarftError(f"{folder} exists and is not an empty folder; choose another")
    agents = source / "agents"
    if not is_folder(agents):
        raise Damaged(agents, "is missing")
    for adapter in sorted(agents.iterdir()):
        try:
            shutil.copytree(adapter, folder / adapter.name)
        except OSError as error:
            raise MarftError(f"cannot write {folder / adapter.name}: {error.strerror or error}") from None
        yield f"{adapter.name}: {folder / adapter.name}"
