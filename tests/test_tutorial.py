"""The tutorial as it is written: every file in it is made, every command is given, and what it shows is what comes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MEASURED = re.compile(r"iteration|before training|after training|held-out accuracy|ok    speed|ok    saved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A file to write, or commands to give and the output that the tutorial shows for them."""

    file: str | None = None
    text: str = ""
    shown: str | None = None


def steps() -> list[Step]:
    found: list[Step] = []
    for kind, text in FENCE.findall(TUTORIAL.read_text(encoding="utf-8")):
        match kind:
            case "sh":
                found.append(Step(text=text))
            case "text":
                found[-1] = Step(text=found[-1].text, shown=text)
            case "python" | "yaml":
                head, _, rest = text.partition("\n")
                found.append(Step(file=head.removeprefix("# "), text=rest))
            case _:
                raise AssertionError(f"the tutorial has a block of the unknown kind {kind!r}")
    return found


WAITING = re.compile(r"^[a-z].*, \d+ s$")  # on a busy machine


def blurred(line: str) -> str:
    """Figures that differ between machines stand for any."""
    return re.sub(r"\d[\d.,:]*", "#", line) if MEASURED.match(line) else line


def matches(shown: str, printed: str) -> bool:
    """Line by line; `…` alone on a line stands for any lines. What says how long something takes already is left out."""
    lines = [blurred(line) for line in shown.splitlines()]
    said = [line for line in printed.splitlines() if not WAITING.search(line)]
    pattern = "".join(r"(?:.*\n)*" if line == "…" else re.escape(line) + r"\n" for line in lines)
    return re.fullmatch(pattern, "".join(f"{blurred(line)}\n" for line in said)) is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tutorial")


def give(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(command)
    assert program == "marft"
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": ""}  # the figures are a CPU's
    return subprocess.run(
        [sys.executable, "-m", "marft.cli", *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip


def test_as_written(folder: Path) -> None:
    for step in steps():
        if step.file is not None:
            path = folder / step.file
            assert not path.exists() or path.read_text(encoding="utf-8") == step.text, f"{step.file} is not as shown"
            path.write_text(step.text, encoding="utf-8")
            continue
        printed = ""
        for command in step.text.splitlines():
            done = give(command, folder)
            assert done.returncode == (2 if step.shown and "FAILS" in step.shown else 0), f"{command}: {done.stderr}"
            printed += done.stdout
        assert step.shown is None or matches(step.shown, printed), f"{step.text} printed:\n{printed}"
        if "--run runs/climb" in step.text:
            before, after = map(float, re.findall(r"held-out accuracy ([\d.]+) → ([\d.]+) in", printed)[0])
            assert before <= 0.5, printed
            assert after >= 0.9, printed
            assert float(re.findall(r"iteration +10/10  reward ([\d.]+)", printed)[0]) >= 0.85, printed


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\n", "b\na\n", False),
        ("a\n", "a\nb\n", False),
        ("ok    speed: 0.1 ms", "ok    speed: 12 ms", True),
        ("ok    tasks: 36", "ok    tasks: 37", False),
        ("iteration 1/10  reward 0.305", "iteration 1/10  reward 0.311", True),
        ("iteration 1/10  reward 0.305", "iteration 1/10  price 0.311", False),
    ],
)
def test_what_counts_as_shown(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same
