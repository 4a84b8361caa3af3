"""What a prompt wants its answer counted in: hours or minutes, per cent, dozens, base 6."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from marft.envs.grading.number_words import BASES, SCALE
from marft.envs.grading.units import NAMES, dimension, unit_name

UNIT = (
    "|".join(sorted((re.escape(name) for name in NAMES if len(name) > 2), key=len, reverse=True)) + "|cm|km|mm|ft|kg|lb"
)
WORDED = rf"(?:(?:square|cubic|sq\.?)\s+)?(?:{UNIT})(?:\s+per\s+\w+)?"
ASKED = re.compile(
    rf"(?i)\bhow many (?:\w+ ){{0,2}}?({WORDED})\b|\b(?:in|to|into|nearest) (?:terms of )?(?:(?:whole|total) )?({WORDED})\b"
    rf"|\bnumber of (?:\w+ )?({WORDED})\b",
)
MENTIONED = re.compile(rf"(?<![A-Za-z])({UNIT})(?![A-Za-z])", re.I)
PERCENT = re.compile(r"\bper ?cent(?:age|ages)?\b|\bpercentile\b", re.I)
SCALED = re.compile(rf"\bhow many (?:\w+ )?({SCALE})s?\b|\bin ({SCALE})s\b|\b(?:nearest|number of) ({SCALE})s?\b", re.I)
BASE = re.compile(
    r"(?i)\b(?:in|to|into) base[- ]\$?\s*(\d+|\w+)|\bbase[- ]\$?\s*(\d+|\w+)\$? (?:number|integer|representation|numeral|form)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedUnit:
    """`percent` is None where nothing is known, as without a prompt."""

    unit: str = ""
    asked: frozenset[str] = frozenset()
    mentioned: frozenset[str] = frozenset()
    percent: bool | None = None
    scale: str = ""
    bases: frozenset[str] = frozenset()

    def allows(self, unit: str) -> bool:
        """Whether an answer may be in this unit where the gold names none."""
        if not unit or unit == "percent":
            return True
        if self.unit:
            return unit in self.asked or dimension(unit) != dimension(self.unit)
        rivals = {other for other in self.mentioned if dimension(other) == dimension(unit).rstrip("23")}
        return not rivals or unit.partition("^")[0] in rivals


UNKNOWN = RequestedUnit()


@lru_cache(maxsize=512)
def requested_unit(prompt: str) -> RequestedUnit:
    """What a prompt wants its answer counted in."""
    if not prompt.strip():
        return UNKNOWN
    asked = [next(filter(None, found.groups())) for found in ASKED.finditer(prompt)]
    mentioned = {NAMES[found[1].lower()] for found in MENTIONED.finditer(prompt) if found[1].lower() in NAMES}
    if re.search(r"\$\s?\d|\\\$", prompt):
        mentioned.add("dollar")
    scales = [next(filter(None, found.groups())).lower() for found in SCALED.finditer(prompt)]
    bases = {(found[1] or found[2]).lower() for found in BASE.finditer(prompt)}
    units = [unit_name(words, None) for words in asked]
    return RequestedUnit(
        unit=units[-1] if units else "",
        asked=frozenset(units),
        mentioned=frozenset(mentioned),
        percent=PERCENT.search(prompt) is not None,
        scale=scales[-1] if scales else "",
        bases=frozenset(str(BASES.get(base, base)) for base in bases),
    )
