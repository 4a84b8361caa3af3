"""Which errors a full disk makes, whoever meets it."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from marft.runs.disk import is_disk_full


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A disk without room for anything."""
    mounted = ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=4", "tmpfs", str(tmp_path)]
    if os.name == "nt" or os.geteuid() or subprocess.run(mounted, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def raised_by_safetensors(folder: Path) -> Exception:
    with pytest.raises(Exception, match="No space left on device") as caught:
        save_file({"w": torch.zeros(1 << 14)}, folder / "w.safetensors")
    return caught.value


def test_a_disk_that_is_really_full(full: Path) -> None:
    assert is_disk_full(raised_by_safetensors(full))
    with pytest.raises(OSError, match="No space left") as caught:
        (full / "text").write_bytes(bytes(1 << 14))
    assert is_disk_full(caught.value)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_came_of_it_counts_and_nothing_else(number: int) -> None:
    later = RuntimeError("cannot compile")
    later.__cause__ = OSError(number, os.strerror(number))
    assert is_disk_full(later)
    assert not is_disk_full(OSError(errno.ENOENT, "no such file"))
    assert not is_disk_full(RuntimeError("os error 2"))
