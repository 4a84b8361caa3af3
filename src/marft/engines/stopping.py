"""Where a reply ends because of what it says: at the first of its stop strings."""

from __future__ import annotations

from collections.abc import Sequence


def before(text: str, stop: Sequence[str]) -> str | None:
    """The text in front of the earliest stop string; None where it holds none."""
    starts = [start for each in stop if (start := text.find(each)) >= 0]
    return text[: min(starts)] if starts else None
