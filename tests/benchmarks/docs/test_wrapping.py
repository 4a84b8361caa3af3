"""Prose is wrapped, and only prose."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.docs import wrapping

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_of_prose_is_too_long(page: Path) -> None:
    assert wrapping.long_lines(page.read_text(encoding="utf-8")) == [], "run python benchmarks/docs/wrapping.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_only_line_breaks_change(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    flat = re.sub(r"(?<=\S)\n(?=\S)", " ", text)  # every paragraph, table and block on one line
    for before in (text, flat):
        after = wrapping.wrapped(before)
        assert after.split() == before.split()
        assert wrapping.wrapped(after) == after


WORDS = " ".join(["word"] * 40)


def test_what_is_wrapped() -> None:
    lines = wrapping.wrapped(f"{WORDS}\n\n- {WORDS}\n  more\n12. {WORDS}\n").split("\n")
    assert all(len(line) <= 120 for line in lines)
    assert lines[0] == " ".join(["word"] * 24)
    assert [line[:5] for line in lines if line] == ["word ", "word ", "- wor", "  wor", "12. w", "    w"]


@pytest.mark.parametrize(
    "line", [f"| {WORDS} |", f"# {WORDS}", f"<!-- {WORDS} -->", f"```\n{WORDS}\n```", f"![{WORDS}](x)"]
)
def test_what_is_left_alone(line: str) -> None:
    assert wrapping.wrapped(line) == line
    assert wrapping.long_lines(line) == []


def test_code_stays_on_one_line_and_nothing_becomes_a_list() -> None:
    before = "x" * 110 + " `marft train duo` and " + "y" * 95 + " 3. 4 - 5"
    after = wrapping.wrapped(before).split("\n")
    assert after[1].startswith("`marft train duo` and")
    assert not any(re.match(r"[-+*#>|]|\d+\.", line) for line in after)
    assert " ".join(after) == before


def test_a_percent_sign_stays_with_its_number() -> None:
    assert wrapping.wrapped("x" * 115 + " 27.6 % of it").split("\n")[1] == "27.6 % of it"
