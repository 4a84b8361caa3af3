"""The pages hang together without mkdocs too: all of them are in the navigation, links lead somewhere, names exist."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import marft

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")
FILE = re.compile(r"`([\w.]+/[^`\s]*)`")
TOPS = ("src", "tests", "docs", "benchmarks", "examples", "recipes", ".ci")
ROOMS = {path.name for path in (ROOT / "src/marft").iterdir() if path.is_dir()} - {"runs"}  # where users' runs lie
PLACEHOLDER = re.compile(r"\b(?!README|CHANGELOG)[A-Z]{2,}\b")  # NAME, FOLDER: the reader's own
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def files(nav: Any) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case dict():
            for each in nav.values():
                yield from files(each)
        case list():
            for each in nav:
                yield from files(each)


def anchors(page: Path) -> set[str]:
    """As GitHub and mkdocs make them of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere, or out of docs/, where the site has nothing."""
    found = []
    for path, anchor in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / path).resolve() if path else page
        outside = page.is_relative_to(DOCS) and not target.is_relative_to(DOCS)
        if not target.is_file() or outside or (anchor and anchor not in anchors(target)):
            found.append(f"{path}#{anchor}" if anchor else path)
    return found


def test_the_navigation_has_every_page_once() -> None:
    listed = list(files(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_the_contents_lead_to_every_page() -> None:
    linked = {path for path, _ in LINK.findall((DOCS / "README.md").read_text(encoding="utf-8"))}
    assert {path.name for path in DOCS.glob("*.md")} - {"README.md"} <= linked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


@pytest.mark.parametrize("link", ["nowhere.md", "concepts.md#nothing-of-it", "results", "../README.md", "#nothing"])
def test_a_broken_link_is_found(link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: f"# Title\n\n[a link]({link})\n")
    assert broken(DOCS / "tools.md") == [link]


def missing(page: Path) -> list[str]:
    """Files and folders that a page names and that are not there; those of a room are written without src/marft."""
    found = []
    for name in sorted(set(FILE.findall(FENCED.sub("", page.read_text(encoding="utf-8"))))):
        top = name.partition("/")[0]
        base = ROOT if top in TOPS else ROOT / "src/marft"
        if top in (*TOPS, *ROOMS) and not PLACEHOLDER.search(name) and not list(base.glob(name)):
            found.append(name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_are_there(page: Path) -> None:
    assert missing(page) == []


@pytest.mark.parametrize("name", ["src/marft/nothing.py", "game/nothing.py", "tests/nothing/"])
def test_a_file_that_is_not_there_is_found(name: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"As `{name}`, `game/play.py` and `tests/` say; `runs/NAME`, `a/b`.\n", encoding="utf-8")
    assert missing(page) == [name]


def test_the_reference_names_what_there_is() -> None:
    names = re.findall(r"^::: (\S+)$", (DOCS / "reference.md").read_text(encoding="utf-8"), re.MULTILINE)
    for name in names:
        module, _, thing = name.rpartition(".")
        assert hasattr(importlib.import_module(module), thing), name
    assert {f"marft.{name}" for name in marft.__all__} - {"marft.__version__"} <= set(names)
