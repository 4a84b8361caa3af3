"""The escape suite once more, as a user without any rights, when the tests themselves run as root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
ORDINARY: dict[str, Any] = {"user": 12345, "group": 12345, "extra_groups": []}


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of the ordinary user's; those of pytest are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, ORDINARY["user"], ORDINARY["group"])
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite already runs as an ordinary user")
def test_the_suite_holds_for_an_ordinary_user(home: Path) -> None:
    packages = [path for path in sys.path if path.endswith("site-packages")]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), *packages]),
    }
    python = next((each for each in (sys.executable, shutil.which("python3", path="/usr/bin")) if usable(each, environment)), None)  # fmt: skip
    if python is None:
        pytest.skip("no interpreter, or not this repository, can be read by an ordinary user")
    suite = [
        str(Path(__file__).parent / "test_escapes.py"),
        "-v",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(home / "t"),
    ]
    done = subprocess.run(
        [python, "-m", "pytest", *suite], env=environment, cwd=REPOSITORY, capture_output=True, text=True, **ORDINARY
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 100


def usable(python: str | None, environment: dict[str, str]) -> bool:
    if python is None:
        return False
    try:
        command = [python, "-c", "import pytest, marft.envs.sandbox"]
        return subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, **ORDINARY).returncode == 0
    except OSError:
        return False
