"""Checkpoints: whole or not at all, verified before use, never lost to a kill or a full disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marft.runs.checkpoints import Checkpoints, CorruptCheckpoint
from marft.types import MarftError


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "run" / "checkpoints", keep=3)


def content(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "agents" / "solver").mkdir(parents=True)
        (folder / "agents" / "solver" / "adapter.bin").write_text(text)
        (folder / "state.json").write_text("{}")

    return write


def entries(checkpoints: Checkpoints) -> list[str]:
    return sorted(os.listdir(checkpoints.folder))


def read(checkpoints: Checkpoints, iteration: int) -> str:
    return (checkpoints.path(iteration) / "agents" / "solver" / "adapter.bin").read_text()


def newest(checkpoints: Checkpoints, at: int | None = None) -> int:
    """Of which nothing is damaged."""
    found = checkpoints.newest_valid(at)
    assert found is not None
    assert (found.damaged, found.passed_over()) == ({}, "")
    return found.iteration


# --- saving ----------------------------------------------------------------------------------------------------------
def test_save_seals_with_hashes(checkpoints: Checkpoints) -> None:
    assert checkpoints.list() == []
    assert checkpoints.newest_valid() is None
    checkpoints.save(5, content("five"))
    assert entries(checkpoints) == ["000005"]
    assert json.loads((checkpoints.path(5) / "manifest.json").read_text()) == {
        "iteration": 5,
        "files": {
            "agents/solver/adapter.bin": hashlib.sha256(b"five").hexdigest(),
            "state.json": hashlib.sha256(b"{}").hexdigest(),
        },
    }
    checkpoints.verify(5)


def test_everything_is_on_the_disk_before_the_rename(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), checkpoints.folder))
        real_fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        synced.append(f"{path.name} → {target.name}")
        return real_rename(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    checkpoints.save(5, content("five"))
    new = ".000005.new"
    files = [f"{new}/agents/solver/adapter.bin", f"{new}/state.json"]
    folders = [f"{new}/agents", f"{new}/agents/solver"]
    assert synced == [*files, *folders, f"{new}/.manifest.json.tmp", new, f"{new} → 000005", "."]


def test_only_the_newest_are_kept(checkpoints: Checkpoints) -> None:
    for iteration in range(1, 6):
        checkpoints.save(iteration, content(str(iteration)))
    assert entries(checkpoints) == ["000003", "000004", "000005"]
    assert checkpoints.list() == [3, 4, 5]


def test_what_was_just_saved_is_never_pruned(checkpoints: Checkpoints) -> None:
    for iteration in (10, 20, 30, 5):
        checkpoints.save(iteration, content(str(iteration)))
    assert checkpoints.list() == [5, 20, 30]


def test_long_runs_sort_by_number(checkpoints: Checkpoints) -> None:
    for iteration in (999_999, 1_000_000):
        checkpoints.save(iteration, content("x"))
    assert checkpoints.list() == [999_999, 1_000_000]
    assert newest(checkpoints) == 1_000_000


def test_own_manifest_is_refused(checkpoints: Checkpoints) -> None:
    def write(folder: Path) -> None:
        (folder / "manifest.json").write_text("{}")

    with pytest.raises(ValueError, match=r"manifest\.json"):
        checkpoints.save(1, write)
    assert entries(checkpoints) == []


# --- kills and full disks --------------------------------------------------------------------------------------------
def test_failed_write_leaves_the_old_ones(checkpoints: Checkpoints) -> None:
    checkpoints.save(5, content("five"))

    def interrupted(folder: Path) -> None:
        content("ten")(folder)
        raise KeyboardInterrupt

    for iteration in (5, 10):
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(iteration, interrupted)
    assert entries(checkpoints) == ["000005"]
    assert read(checkpoints, 5) == "five"


def test_left_overs_of_a_kill_are_invisible_and_cleared(checkpoints: Checkpoints) -> None:
    checkpoints.save(5, content("five"))
    for name in (".000010.new", ".000003.gone", ".000005.old"):
        shutil.copytree(checkpoints.path(5), checkpoints.folder / name)
    (checkpoints.folder / ".mine").mkdir()
    (checkpoints.folder / "000007").mkdir()  # without a manifest: not one of ours
    assert checkpoints.list() == [5]
    checkpoints.save(10, content("ten"))
    assert entries(checkpoints) == [".mine", "000005", "000007", "000010"]
    assert (read(checkpoints, 5), read(checkpoints, 10)) == ("five", "ten")


def test_replacing_an_iteration(checkpoints: Checkpoints) -> None:
    checkpoints.save(5, content("first"))
    checkpoints.save(5, content("second"))
    assert entries(checkpoints) == ["000005"]
    assert read(checkpoints, 5) == "second"
    checkpoints.verify(5)


def test_replacing_that_fails_at_the_rename_puts_the_old_back(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(5, content("first"))
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path.name.endswith(".new"):
            raise KeyboardInterrupt
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(5, content("second"))
    assert entries(checkpoints) == ["000005"]
    assert read(checkpoints, 5) == "first"


def test_kill_between_the_two_renames_is_recovered(checkpoints: Checkpoints) -> None:
    checkpoints.save(5, content("first"))
    checkpoints.path(5).rename(checkpoints.folder / ".000005.old")
    (checkpoints.folder / ".000005.new").mkdir()
    checkpoints.recover()
    assert entries(checkpoints) == ["000005"]
    assert read(checkpoints, 5) == "first"


def full_os(_: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_rust(_: Path) -> None:
    raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("full", [full_os, full_rust])
def test_full_disk(checkpoints: Checkpoints, full: Callable[[Path], None]) -> None:
    for iteration in (5, 10, 15):
        checkpoints.save(iteration, content(str(iteration)))

    def write(folder: Path) -> None:
        content("twenty")(folder)
        full(folder)

    with pytest.raises(MarftError) as error:
        checkpoints.save(20, write)
    run = checkpoints.folder.parent
    assert str(error.value) == (
        f"the disk of {run} is full; nothing already written is lost: "
        f"free space, then `marft train --resume --run {run}`"
    )
    assert entries(checkpoints) == ["000005", "000010", "000015"]
    for iteration in (5, 10, 15):
        checkpoints.verify(iteration)


def test_bug_in_the_writer_stays_a_bug(checkpoints: Checkpoints) -> None:
    def write(folder: Path) -> None:
        (folder / "absent").read_text()

    with pytest.raises(FileNotFoundError):
        checkpoints.save(5, write)
    assert entries(checkpoints) == []


# --- verifying -------------------------------------------------------------------------------------------------------
def flip(folder: Path) -> None:
    path = folder / "agents" / "solver" / "adapter.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def remove(folder: Path) -> None:
    (folder / "state.json").unlink()


def add(folder: Path) -> None:
    (folder / "agents" / "extra.bin").write_text("")


def damage_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"iteration"')


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def manifest_of_garbage(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"iteration": 10, "files": ["state.json"]}')


def fifo(folder: Path) -> None:
    (folder / "state.json").unlink()
    os.mkfifo(folder / "state.json")


def dangling(folder: Path) -> None:
    (folder / "state.json").unlink()
    (folder / "state.json").symlink_to("nowhere")


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


def foreign_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"iteration": 4, "files": {}}')


DAMAGE = [
    (flip, "agents/solver/adapter.bin has another SHA-256 than when written"),
    (remove, "state.json is missing"),
    (add, "agents/extra.bin is unexpected"),
    (damage_manifest, "manifest.json is damaged: it is not JSON (Expecting ':' delimiter)"),
    (no_manifest, "manifest.json is missing"),
    (manifest_of_garbage, "manifest.json is damaged: 'files': input should be a valid dictionary"),
    (fifo, "state.json is a FIFO and should be a file"),
    (dangling, "state.json is a link that leads nowhere"),
    (a_file, "it is no folder"),
    (foreign_manifest, "manifest.json is that of iteration 4"),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGE)
def test_corrupt_newest_falls_back_with_a_warning(
    checkpoints: Checkpoints, damage: Callable[[Path], None], said: str
) -> None:
    for iteration in (5, 10):
        checkpoints.save(iteration, content(str(iteration)))
    damage(checkpoints.path(10))
    complaint = f"checkpoint {checkpoints.path(10)} is corrupt: {said}"
    with pytest.raises(CorruptCheckpoint) as error:
        checkpoints.verify(10)
    assert str(error.value) == complaint
    found = checkpoints.newest_valid()
    assert found is not None
    assert (found.iteration, found.folder, found.passed_over()) == (5, checkpoints.path(5), complaint)
    assert checkpoints.put_aside(10) == "000010.damaged"
    checkpoints.drop_after(5)
    assert entries(checkpoints) == ["000005", "000010.damaged"]
    checkpoints.save(10, content("again"))
    flip(checkpoints.path(10))
    assert checkpoints.put_aside(10) == "000010.damaged-2"


@pytest.mark.parametrize("state", ["new", "old"])
@pytest.mark.parametrize("at", [None, 10])
def test_a_whole_one_that_a_kill_left_hidden_beside_a_damaged_one_is_found(
    checkpoints: Checkpoints, state: str, at: int | None
) -> None:
    for iteration in (5, 10):
        checkpoints.save(iteration, content(str(iteration)))
    hidden = checkpoints.folder / f".000010.{state}"
    shutil.copytree(checkpoints.path(10), hidden)
    flip(checkpoints.path(10))
    found = checkpoints.newest_valid(at)
    assert found is not None
    assert (found.iteration, found.folder, str(found)) == (10, hidden, str(hidden))
    assert found.passed_over().startswith(f"checkpoint {checkpoints.path(10)} is corrupt: ")
    assert [checkpoints.put_aside(iteration) for iteration in found.damaged] == ["000010.damaged"]
    checkpoints.put_in_place(found)
    checkpoints.recover()
    assert entries(checkpoints) == ["000005", "000010", "000010.damaged"]
    assert read(checkpoints, 10) == "10"
    assert newest(checkpoints) == 10


def test_a_hidden_one_that_is_damaged_too_is_passed_over(checkpoints: Checkpoints) -> None:
    for iteration in (5, 10):
        checkpoints.save(iteration, content(str(iteration)))
    flip(checkpoints.path(10))
    shutil.copytree(checkpoints.path(10), checkpoints.folder / ".000010.old")
    found = checkpoints.newest_valid()
    assert found is not None
    assert (found.iteration, str(found), list(found.damaged)) == (5, "the one of iteration 5", [10])


def test_all_corrupt_is_an_error_that_says_how_to_start_anew(checkpoints: Checkpoints) -> None:
    for iteration in (5, 10):
        checkpoints.save(iteration, content(str(iteration)))
        flip(checkpoints.path(iteration))
    with pytest.raises(CorruptCheckpoint) as error:
        checkpoints.newest_valid()
    assert "000010 is corrupt: agents/solver/adapter.bin has" in str(error.value)
    assert str(error.value).endswith(
        "nor is any of the 1 others whole; nothing was changed; put one back from a copy, or start anew in another "
        f"folder: marft train {checkpoints.folder.parent / 'config.yaml'} --run DIR"
    )
    assert entries(checkpoints) == ["000005", "000010"]


def test_a_newer_format_is_not_passed_over(checkpoints: Checkpoints) -> None:
    for iteration in (5, 10):
        checkpoints.save(iteration, content(str(iteration)))
    path = checkpoints.path(10) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(
        MarftError, match=r"has 'format', which this version of marft does not know; .* use the version"
    ):
        checkpoints.newest_valid()


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else can take away a right of the tests' user and get it back")
@pytest.mark.parametrize("closed", ["", "000010", "000010/state.json", "000010/agents"])
def test_what_may_not_be_read_is_not_passed_over(closed: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # those of pytest are closed to others
        os.chmod(folder, 0o755)
        checkpoints = Checkpoints(Path(folder) / "checkpoints", keep=3)
        for iteration in (5, 10):
            checkpoints.save(iteration, content(str(iteration)))
        os.chmod(checkpoints.folder / closed, 0)
        os.seteuid(65534)
        try:
            with pytest.raises(MarftError, match=r"cannot be read \(Permission denied\); make it readable") as error:
                checkpoints.newest_valid()
        finally:
            os.seteuid(0)
        assert not isinstance(error.value, CorruptCheckpoint)


# --- going back ------------------------------------------------------------------------------------------------------
def test_at_takes_exactly_that_one(checkpoints: Checkpoints) -> None:
    for iteration in (5, 10, 15):
        checkpoints.save(iteration, content(str(iteration)))
    assert newest(checkpoints, at=10) == 10
    with pytest.raises(MarftError) as error:
        checkpoints.newest_valid(at=7)
    assert str(error.value) == f"{checkpoints.folder} has no checkpoint of iteration 7; available: 5, 10, 15"
    flip(checkpoints.path(10))
    with pytest.raises(CorruptCheckpoint, match=r"adapter\.bin has .*; choose another, available: 5, 15$"):
        checkpoints.newest_valid(at=10)


def test_drop_after(checkpoints: Checkpoints) -> None:
    for iteration in (5, 10, 15):
        checkpoints.save(iteration, content(str(iteration)))
    checkpoints.path(15).rename(checkpoints.folder / ".000015.old")  # put aside by a kill: a future as well
    checkpoints.drop_after(5)
    assert entries(checkpoints) == ["000005"]
    checkpoints.verify(5)


def test_kill_while_deleting_leaves_nothing_that_looks_complete(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    for iteration in (5, 10):
        checkpoints.save(iteration, content(str(iteration)))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.drop_after(5)
    assert checkpoints.list() == [5]
    assert newest(checkpoints) == 5
