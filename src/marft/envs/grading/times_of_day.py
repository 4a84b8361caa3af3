"""Times of day: `8:34 pm`, `20:34`, `8:34 p.m.`, `9 a.m.`, `9 in the morning`, `5 o'clock`, `noon`."""

from __future__ import annotations

import re

CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
HOUR = re.compile(r"\d{1,2}")
HALVES = r"[ap]\.?\s?m(?:\.|\b)|in the (?:morning|afternoon|evening)|at night"
SPOKEN = rf"\d{{1,2}}(?::\d{{2}})?\s*(?:o['’]?clock\s*)?(?:{HALVES})|\d{{1,2}} o['’]?clock"
IN_WORDS = re.compile(
    r"(?i)(?<![\d:.])(\d{1,2})(:\d{2})?\s*(o['’]?clock)?\s*(?:(?:in the (morning|afternoon|evening)|(at night))(?![A-Za-z]))?",
)
NAMED = {"noon": 720, "midday": 720, "midnight": 0}


def minutes_since_midnight(text: str, unit: str) -> int | None:
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


def times_in_digits(text: str) -> str:
    """Times in words as numbers: `8:34 in the evening` is `8:34 pm`, `5 o'clock` is `5:00`."""
    return IN_WORDS.sub(time_in_digits, text) if "clock" in text or " in the " in text or " at night" in text else text


def time_in_digits(found: re.Match[str]) -> str:
    """One such time; any other number as it is."""
    hour, minute, clock, part, night = found.groups()
    if not (clock or part or night):
        return found[0]
    time = hour + (minute or (":00" if clock else ""))
    if part or night:
        before_noon = part.lower() == "morning" if part else int(hour) < 6 or int(hour) == 12
        time += " am" if before_noon else " pm"
    return str(time)
