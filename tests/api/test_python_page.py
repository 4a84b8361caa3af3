"""docs/python.md as it is written: its Python is one program, and its commands work on what the program left."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_as_written(tmp_path: Path) -> None:
    program, commands = [], []
    for kind, text in FENCE.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "sh":
            commands += text.splitlines()
        elif named := re.match(r"# (\w+\.py)\n", text):
            (tmp_path / named[1]).write_text(text)
        else:
            program.append(text)
    (tmp_path / "program.py").write_text("\n".join(program))
    done = [run(tmp_path, "program.py"), *(run(tmp_path, "-m", "marft.cli", *shlex.split(c)[1:]) for c in commands)]
    assert len(done) == 3
    told = done[0].stdout
    assert "The task has" in told
    assert "the team is" in told or "no difference can be told" in told
    assert re.search(r"iteration +3/3 ", done[2].stdout)
    # and what the page says of moving things into a file
    (tmp_path / "mine.py").write_text(f"import marft\n\n{program[1].partition('TEAM = ')[0]}")
    [words] = re.findall(
        r"`marft (train --resume --run runs/sums [^`]+)`", " ".join(PAGE.read_text(encoding="utf-8").split())
    )
    run(tmp_path, "-m", "marft.cli", *shlex.split(words), "train.iterations=4")
    run(tmp_path, "-m", "marft.cli", "play", "runs/sums")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done
