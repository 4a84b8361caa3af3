"""Times of day: `8:34 pm`, `20:34`, `8:34 p.m.`, `9 a.m.`, `noon`."""

from __future__ import annotations

import re

CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
HOUR = re.compile(r"\d{1,2}")
NAMED = {"noon": 720, "midday": 720, "midnight": 0}


def minutes(text: str, unit: str) -> int | None:
    """Minutes since midnight; None for what is no time of day."""
    text = re.sub(r"[\s⟪⟫]", "", text)
    if text.casefold() in NAMED:
        return NAMED[text.casefold()]
    found = CLOCK.fullmatch(text)
    hour, minute = (int(found[1]), int(found[2])) if found else (int(text) if HOUR.fullmatch(text) else -1, 0)
    half = unit in ("am", "pm")
    if not (found or half) or not 0 <= hour < 24 or minute > 59 or (half and not 1 <= hour <= 12):
        return None
    return (hour % 12 + 12 * (unit == "pm") if half else hour) * 60 + minute
