"""A benchmark runs by its path, wherever the command is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    "name",
    [
        "docs/figures.py",
        "grading/accuracy.py",
        "learning/coordination.py",
        "robustness/rates.py",
        "speed/iteration.py",
        "memory/what_fits.py",
    ],
)
def test_a_program_of_each_folder_runs_by_its_path(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / name), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"python benchmarks/{name}" in done.stdout


def test_every_folder_says_what_it_is_about() -> None:
    folders = {path.parent for path in BENCHMARKS.rglob("*.py")}
    assert len(folders) > 1
    for folder in folders:
        assert (folder / "__init__.py").read_text(encoding="utf-8").startswith('"""'), folder
