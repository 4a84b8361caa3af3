"""The table of known sets: sound in itself, and the same as in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from marft.envs.data import KNOWN, KnownSet
from marft.envs.data.source import HUB_NAME, SPLIT_NAME

DOCS = Path(__file__).parents[3] / "docs" / "data.md"


@pytest.mark.parametrize("known", KNOWN.values(), ids=lambda known: known.name)
def test_every_set_is_sound(known: KnownSet) -> None:
    assert known.test or known.train
    assert HUB_NAME.fullmatch(known.hub)
    assert (known.answer is None) == (known.kind == "code")
    assert all(SPLIT_NAME.fullmatch(part.split) for part in known.train + known.test)
    assert not set(known.train) & set(known.test)


def parts(known: KnownSet, split: str) -> str:
    named = [f"`{part.config}:{part.split}`" if part.config else f"`{part.split}`" for part in getattr(known, split)]
    return ", ".join(named) or "–"


def test_the_docs_have_the_same_table() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("\n## Known sets\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section, flags=re.M)
    documented = {name: [cell.strip() for cell in cells.split(" | ")][:6] for name, cells in rows}
    assert documented == {
        known.name: [
            known.kind,
            f"`{known.hub}`",
            parts(known, "train"),
            parts(known, "test"),
            f"`{known.prompt}`",
            f"`{known.answer}`, {known.gold}" if known.answer else "–",
        ]
        for known in KNOWN.values()
    }
    assert [name for name, _ in rows] == list(KNOWN)
