r"""Sets of real numbers in the many ways they are written, as intervals and unions of them.

`x < 1 or x > 3`, `\{x \mid x \ne 3\}`, `|x| \le 2`, `\mathbb{R} \setminus \{3\}`, `1 < x < 3` become `(-\infty,1) \cup
(3,\infty)` and so on, as text in the one notation that the structure is read from.
"""

from __future__ import annotations

import re
from itertools import pairwise

from marft.envs.grading.latex_normalization import SET_CLOSE, SET_OPEN, TEXT_CLOSE, TEXT_OPEN
from marft.envs.grading.rationals import rational_value

MAX_PARTS = 8
ALL = re.compile(
    rf"(?i)(?:[A-Za-z]\s*\\in\s*)?\\mathbb\{{R\}}|{TEXT_OPEN}?\s*(?:all|any|every)\s+reals?(?:\s+numbers?)?(?:\s+[a-z])?\s*{TEXT_CLOSE}?"
    rf"|{TEXT_OPEN}?\s*all real values(?: of [a-z])?\s*{TEXT_CLOSE}?",
)
BUILDER = re.compile(
    rf"{SET_OPEN}\s*([A-Za-z])\s*(?:\\in\s*\\mathbb\{{R\}}\s*)?(?:\||:|{TEXT_OPEN}\s*such that\s*{TEXT_CLOSE})\s*(.+){SET_CLOSE}"
)
MEMBER = re.compile(r"([A-Za-z])\s*\\in\s*\\mathbb\{R\}\s*,\s*(.+)")
WITHOUT = re.compile(
    rf"(?:[A-Za-z]\s*\\in\s*)?(?:\\mathbb\{{R\}}|\(\s*-\\infty\s*,\s*\\infty\s*\))\s*(?:\\setminus|-|/)\s*{SET_OPEN}(.+){SET_CLOSE}"
)
EXCEPT = re.compile(
    rf"(?i){TEXT_OPEN}?\s*all real(?:s| numbers)(?: [a-z])? (?:except|but|other than)(?: for)?\s*{TEXT_CLOSE}?\s*([^{TEXT_CLOSE}]+)"
    rf"{TEXT_CLOSE}?",
)
OUTSIDE = re.compile(r"(?:[A-Za-z]\s*\\in\s*)?\\mathbb\{R\}\s*(?:\\setminus|-)\s*([(\[])([^,]+),([^,]+)([)\]])")
EITHER = re.compile(r"(?<![A-Za-z\\])or(?![A-Za-z])|\\cup(?![A-Za-z])")
BOTH = re.compile(r"(?<![A-Za-z\\])and(?![A-Za-z])|\\cap(?![A-Za-z])|,")
LESS = re.compile(r"<=?|>=?")
NOT_EQUAL = re.compile(r"([A-Za-z])\s*\\ne\s*(.+)")
FUNCTION = re.compile(r"[A-Za-z]\([A-Za-z]\)|\\?[A-Za-z]+")
ABSOLUTE = re.compile(r"\|\s*([A-Za-z])\s*\|")
CONSTANT = re.compile(r"(?:[\d\s.+*/(){}^-]|\\(?:frac|sqrt|pi|infty|cdot)(?![A-Za-z])|(?<![A-Za-z])e(?![A-Za-z]))+")
Ends = tuple[str, str, str, str]  # bracket, from, to, bracket
BELOW, ABOVE = ("(", r"-\infty"), (r"\infty", ")")


def interval_notation(text: str) -> str | None:
    """The same set as intervals; None for what is no such set."""
    pieces = interval_pieces(text.strip())
    return r" \cup ".join(f"{left}{low}, {high}{right}" for left, low, high, right in pieces) if pieces else None


def interval_pieces(text: str) -> list[Ends] | None:
    """The intervals of a set; None for what is no such set."""
    if ALL.fullmatch(text):
        return [(*BELOW, *ABOVE)]
    if found := BUILDER.fullmatch(text) or MEMBER.fullmatch(text):
        text = found[2].strip()
    if found := WITHOUT.fullmatch(text) or EXCEPT.fullmatch(text):
        return punctured_line([part.strip() for part in BOTH.split(found[1])])
    if found := OUTSIDE.fullmatch(text):
        end, start = (")" if found[1] == "[" else "]"), ("(" if found[4] == "]" else "[")
        return [(*BELOW, found[2], end), (start, found[3], *ABOVE)]
    if not (LESS.search(text) or r"\ne" in text or "|" in text):
        return None
    parts = EITHER.split(text)
    if len(parts) > MAX_PARTS:
        return None
    alternatives = [conjunction_pieces(part.strip()) for part in parts]
    return None if None in alternatives else [piece for pieces in alternatives for piece in pieces or ()]


def conjunction_pieces(text: str) -> list[Ends] | None:
    """`x > 1 and x < 3`: the two ends of one interval; `x \\ne 1, x \\ne 3`: the line without points."""
    parts = [part.strip() for part in BOTH.split(text) if part.strip()]
    if not parts or len(parts) > MAX_PARTS:
        return None
    if NOT_EQUAL.fullmatch(parts[0]):
        points = [(NOT_EQUAL.fullmatch(part), part) for part in parts]
        return punctured_line([found[2] if found else part for found, part in points])
    pieces = [inequality_pieces(part) for part in parts]
    if len(pieces) == 1:
        return pieces[0]
    if len(pieces) != 2 or any(piece is None or len(piece) != 1 for piece in pieces):
        return None
    (one,), (other,) = pieces  # type: ignore[misc]
    if one[1] == BELOW[1] and other[2] == ABOVE[0]:
        one, other = other, one
    if one[2] != ABOVE[0] or other[1] != BELOW[1]:
        return None
    low, high = rational_value(one[1]), rational_value(other[2])
    if "," in text and low is not None and high is not None and low >= high:  # a comma says or where nothing is both
        return [other, one]
    return [(one[0], one[1], other[2], other[3])]


def punctured_line(points: list[str]) -> list[Ends] | None:
    """The real line without some points."""
    if len(points) > 1:
        values = {point: rational_value(point) for point in points}
        if None in values.values():
            return None
        points = sorted(points, key=lambda point: values[point] or 0)
    elif not CONSTANT.fullmatch(points[0]):
        return None
    ends = [r"-\infty", *points, r"\infty"]
    return [("(", low, high, ")") for low, high in pairwise(ends)]


def inequality_pieces(text: str) -> list[Ends] | None:
    """`1 < x <= 2` is (1,2]; `x > 3` is (3,∞); `|x| > 3` is two."""
    sides, signs = [side.strip() for side in LESS.split(text)], LESS.findall(text)
    if not 1 <= len(signs) <= 2 or not all(sides) or len({sign[0] for sign in signs}) > 1:
        return None
    if signs[0][0] == ">":
        sides, signs = sides[::-1], signs[::-1]
    left, right = ("[" if "=" in signs[0] else "("), ("]" if "=" in signs[-1] else ")")
    if len(signs) == 2:
        return [(left, sides[0], sides[2], right)] if FUNCTION.fullmatch(sides[1]) else None
    low, high = sides
    if ABSOLUTE.fullmatch(low) and rational_value(high) is not None:
        return [(left, f"-{high}", high, right)]
    if ABSOLUTE.fullmatch(high) and rational_value(low) is not None:
        return [(*BELOW, f"-{low}", right), (left, low, *ABOVE)]
    if FUNCTION.fullmatch(low) and CONSTANT.fullmatch(high):
        return [(*BELOW, high, right)]
    if FUNCTION.fullmatch(high) and CONSTANT.fullmatch(low):
        return [(left, low, *ABOVE)]
    return None
