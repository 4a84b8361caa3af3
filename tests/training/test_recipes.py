"""Every shipped recipe resolves to its end: data in its publisher's format, prompts of one episode, its benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from marft.cli import main
from marft.config import load_config, recipes

README = Path(__file__).parents[2] / "README.md"
ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "Two hens lay 3 eggs each. How many eggs?", "answer": "2 * 3 = <<2*3=6>>6\n#### 6"},
    "math": {"problem": "What is $1+1$?", "level": "Level 1", "type": "Algebra", "solution": "It is $\\boxed{2}$."},
    "deepscaler": {"problem": "What is $2^3$?", "answer": "8", "solution": "It is $\\boxed{8}$."},
    "deepcoder": {
        "problem": "Print the sum of two numbers.",
        "tests": json.dumps([{"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"}]),
    },
    "math-500": {"problem": "What is $5-2$?", "solution": "It is $\\boxed{3}$.", "answer": "3", "subject": "Algebra"},
    "aime-2024": {"problem": "Find $n$.", "answer": "204", "solution": "$\\boxed{204}$"},
    "amc": {"problem": "What is $9/3$?", "answer": 3.0, "url": ""},
    "minerva": {"problem": "What is $g$?", "solution": "It is $\\boxed{9.8}$.", "answer": "9.8"},
    "olympiadbench": {"question": "Find $x$.", "final_answer": ["7"], "solution": ["It is 7."]},
}


def written(folder: Path, name: str, split: str) -> Path:
    path = folder / f"{name}_{split}.json"
    path.write_text(json.dumps([ROWS[name]]))
    return path


@pytest.mark.parametrize("name", sorted(recipes()))
def test_it_resolves_to_its_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, empty = load_config(name), tmp_path / "empty"
    words = ["model=nano", "env.workers=1"]
    if (data := config.env.settings.get("data")) is not None:
        words += [f"env.{split}={written(tmp_path, data, split)}" for split in ("train", "test")]
    words += [f"eval.benchmarks.{each}.test={written(tmp_path, each, 'test')}" for each in config.eval.benchmarks]
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert main(["train", name, *words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("dry run: nothing was trained or written\n")
    assert list(empty.iterdir()) == []
    assert all(f": {agent} reads " in said for agent in config.team.agents)
    assert all(f"benchmark  {each}: 1 tasks" in said for each in config.eval.benchmarks)
    if not config.team.anonymous:
        assert all(agent.prompt in said for agent in config.team.agents.values())
    if data is not None:
        assert (ROWS[data].get("problem") or ROWS[data]["question"]) in said


def test_recipes_that_are_the_same_are_said_once() -> None:
    """A variant extends the recipe that it varies, and differs from it in what its name says."""
    for name in (name for name in recipes() if name.endswith("-anonymous")):
        own, other = load_config(name), load_config(name.removesuffix("-anonymous"))
        assert own.team.anonymous
        assert own.model_copy(update={"team": other.team}) == other
    for name in (name for name in recipes() if name.endswith("-action")):
        own, other = load_config(name), load_config(name.replace("-action", "-token"))
        assert own.algorithm.name == "marft-action"
        assert own.model_copy(update={"algorithm": other.algorithm}) == other


def test_every_recipe_has_a_line_in_the_readme() -> None:
    lines = re.findall(r"^\| `marft train(?: ([\w-]+))?` \|", README.read_text(), re.MULTILINE)
    assert sorted(name or "duo" for name in lines) == sorted(recipes())
