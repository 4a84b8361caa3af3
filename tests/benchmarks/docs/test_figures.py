"""Every figure in README, docs and recipes is the one of the results files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.docs import figures

ROOT = Path(__file__).parents[3]
DAG = "src/marft/recipes/dag.yaml"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A tree with all that figures stand in."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.png"))
    shutil.copytree(ROOT / "src/marft/recipes", tmp_path / "src/marft/recipes")
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def names(root: Path, changed: dict[Path, str]) -> set[str]:
    return {str(path.relative_to(root)) for path in changed}


def test_every_figure_is_that_of_the_results() -> None:
    assert names(ROOT, figures.changes(ROOT)) == set(), "run python benchmarks/docs/figures.py"


def test_a_new_result_reaches_every_place(copy: Path) -> None:
    path = copy / "docs/results/teams.json"
    runs = json.loads(path.read_text())
    path.write_text(json.dumps([{**run, "after": 0.5} if run["entry"] == "dag" else run for run in runs]))
    changed = figures.changes(copy)
    assert names(copy, changed) == {"README.md", "docs/results/teams.md", DAG}
    assert "| `marft train dag` | CPU | 0.572 → 0.500 |" in changed[copy / "README.md"]
    assert "| `dag` | 3 | 0.572 | **0.500** (0.500 – 0.500) |" in changed[copy / "README.md"]
    assert ": 0.572 → 0.500 held out in 5 min\n" in changed[copy / DAG]


@pytest.mark.parametrize(
    ("page", "right", "wrong"),
    [
        ("README.md", "| `dag` | 3 | 0.572 |", "| `dag` | 3 | 0.573 |"),
        ("README.md", "27.6 %", "27.7 %"),
        ("README.md", "175,000", "174,000"),
        (DAG, "0.975", "0.98"),
        ("docs/reasoning.md", "**0.365**", "**0.366**"),
        ("docs/comparing.md", "| team | 0.952", "| team | 0.953"),
        ("docs/grading.md", "12,480", "12,482"),
        ("docs/algorithms.md", "within 12 iterations", "within 13 iterations"),
        ("docs/results.md", "27.6 %", "27.7 %"),
        ("docs/performance.md", "**63,770**", "**63,771**"),
    ],
)
def test_a_figure_that_somebody_changed_is_found(copy: Path, page: str, right: str, wrong: str) -> None:
    path = copy / page
    before = path.read_text(encoding="utf-8")
    assert right in before
    path.write_text(before.replace(right, wrong, 1), encoding="utf-8")
    assert figures.changes(copy) == {path: before}


def test_line_breaks_do_not_hide_a_sentence(copy: Path) -> None:
    path = copy / "docs/algorithms.md"
    text = path.read_text(encoding="utf-8").replace("unlearnt everything within 12", "unlearnt\neverything\nwithin\n12")
    path.write_text(text, encoding="utf-8")
    assert figures.changes(copy) == {}


def test_a_sentence_that_is_gone_is_a_mistake(copy: Path) -> None:
    path = copy / "README.md"
    path.write_text(path.read_text(encoding="utf-8").replace("took a 1.5B duo", "took another duo"), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"README\.md has 0 times, not once: .minutes. minutes took a 1\.5B duo"):
        figures.changes(copy)
