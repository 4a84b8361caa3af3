"""Devices that are neither a CPU nor CUDA, such as Apple's GPU: no float64, and no tensor where it does not belong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pretend
import pytest
from toys import rows


def test_a_device_without_float64_trains_as_the_cpu_does(tmp_path: Path) -> None:
    for device in ("cpu", pretend.NAME):  # in processes of their own: a device is registered for good
        command = [sys.executable, pretend.__file__, device, str(tmp_path / device)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
    runs = [
        [turn for episode in rows(tmp_path / device / "episodes.jsonl") for turn in episode["turns"]]
        for device in ("cpu", pretend.NAME)
    ]
    assert len(runs[0]) == len(runs[1]) == 16
    for here, there in zip(*runs, strict=True):
        assert here["token_ids"] == there["token_ids"]
        assert there["logprobs"] == pytest.approx(here["logprobs"], abs=1e-3)
    ours, theirs = ({path.name for path in (tmp_path / device).rglob("*")} for device in ("cpu", pretend.NAME))
    assert {name for name in ours if not name.startswith("events.out")} == {
        name for name in theirs if not name.startswith("events.out")
    }
