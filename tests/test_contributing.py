"""The parts that CONTRIBUTING shows train a team as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from marft.cli import main

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
BLOCK = re.compile(r"^```python\n# mine\.py\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SMALL = ("train.iterations=1", "train.tasks=2", "eval.tasks=0", "track.tensorboard=false")


@pytest.mark.parametrize(
    ("thing", "settings"),
    [
        ("Centred", ["algorithm={name: NAME:Centred, scale: 2.0}"]),
        ("LastSpeaker", ["credit={name: NAME:LastSpeaker}", "algorithm=grpo"]),
        ("relay", ["team.workflow=NAME:relay", "team.options.laps=1", "algorithm=grpo"]),
    ],
)
def test_a_part_of_your_own_trains(
    thing: str, settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [code] = [block for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if thing in block]
    name = f"own_{thing.lower()}"  # a module each: one that was imported stays
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [setting.replace("NAME", name) for setting in settings]
    assert main(["train", "duo", *words, *SMALL, "--run", str(tmp_path / "run")]) == 0
