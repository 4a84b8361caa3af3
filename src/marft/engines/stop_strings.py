"""Where a reply ends because of what it says: at the first of its stop strings."""

from __future__ import annotations

from collections.abc import Sequence


def cut_at_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """The text in front of the earliest stop string, and which one that is; all of it and None, where it holds none."""
    found = min(((start, each) for each in stop if (start := text.find(each)) >= 0), default=None)
    return (text, None) if found is None else (text[: found[0]], found[1])
