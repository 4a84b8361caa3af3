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
VARIABLE = re.compile(r"[A-Za-z]|\\(?:theta|alpha|lambda)")
FUNCTION = re.compile(r"[A-Za-z]\([A-Za-z]\)|\\?[A-Za-z]+")
ABSOLUTE = re.compile(r"\|\s*([A-Za-z])\s*\|")
CONSTANT = re.compile(r"(?:[\d\s.+*/(){}^-]|\\(?:frac|sqrt|pi|infty|cdot)(?![A-Za-z])|(?<![A-Za-z])e(?![A-Za-z]))+")
Ends = tuple[str, str, str, str]  # bracket, from, to, bracket
BELOW, ABOVE = ("(", r"-\infty"), (r"\infty", ")")


def interval_notation(text: str) -> str | None:
    """The same set as intervals; None for what is no such set."""
    text = text.strip()
    if ALL.fullmatch(text):
        return union_text([(*BELOW, *ABOVE)])
    if found := BUILDER.fullmatch(text) or MEMBER.fullmatch(text):
        text = found[2].strip()
    if found := WITHOUT.fullmatch(text) or EXCEPT.fullmatch(text):
        return union_text(punctured_line([part.strip() for part in BOTH.split(found[1])]))
    if found := OUTSIDE.fullmatch(text):
        end, start = (")" if found[1] == "[" else "]"), ("(" if found[4] == "]" else "[")
        return union_text([(*BELOW, found[2], end), (start, found[3], *ABOVE)])
    if not (LESS.search(text) or r"\ne" in text or "|" in text):
        return None
    pieces: list[Ends] = []
    parts = EITHER.split(text)
    for part in parts[: MAX_PARTS + 1]:
        found_here = conjunction_pieces(part.strip())
        if found_here is None:
            return None
        pieces += found_here
    return union_text(pieces) if len(parts) <= MAX_PARTS else None


def union_text(pieces: list[Ends] | None) -> str | None:
    if not pieces:
        return None
    return r" \cup ".join(f"{left}{low}, {high}{right}" for left, low, high, right in pieces)


def conjunction_pieces(text: str) -> list[Ends] | None:
    """`x > 1 and x < 3`: the two ends of one interval; `x \\ne 1, x \\ne 3`: the line without points."""
    parts = [part.strip() for part in BOTH.split(text) if part.strip()]
    if not parts or len(parts) > MAX_PARTS:
        return None
    if first := NOT_EQUAL.fullmatch(parts[0]):
        points = [first[2]]
        for part in parts[1:]:
            again = NOT_EQUAL.fullmatch(part)
            points.append(again[2] if again else part)
        return punctured_line(points)
    read = [inequality_pieces(part) for part in parts]
    if len(read) == 1:
        return read[0]
    if len(read) != 2 or any(piece is None or len(piece) != 1 for piece in read):
        return None
    (one,), (other,) = read  # type: ignore[misc]
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
    values = [rational_value(point) for point in points]
    if len(points) > 1 and any(value is None for value in values):
        return None
    if len(points) == 1 and not CONSTANT.fullmatch(points[0]):
        return None
    if len(points) > 1:
        points = [point for _, point in sorted(zip(values, points, strict=True), key=lambda pair: pair[0] or 0)]
    ends = [r"-\infty", *points, r"\infty"]
    return [("(", low, high, ")") for low, high in pairwise(ends)]


def inequality_pieces(text: str) -> list[Ends] | None:
    """`1 < x <= 2` is (1,2]; `x > 3` is (3,∞); `|x| > 3` is two."""
    sides, signs = [side.strip() for side in LESS.split(text)], LESS.findall(text)
    if not 1 <= len(signs) <= 2 or not all(sides) or len({sign[0] for sign in signs}) > 1:
        return None
    if signs[0][0] == ">":
        sides, signs = sides[::-1], signs[::-1]
    closed = ["=" in sign for sign in signs]
    if len(signs) == 2:
        if not FUNCTION.fullmatch(sides[1]):
            return None
        return [("[" if closed[0] else "(", sides[0], sides[2], "]" if closed[1] else ")")]
    if ABSOLUTE.fullmatch(sides[0]) and rational_value(sides[1]) is not None:
        return [("[" if closed[0] else "(", f"-{sides[1]}", sides[1], "]" if closed[0] else ")")]
    if ABSOLUTE.fullmatch(sides[1]) and rational_value(sides[0]) is not None:
        end, start = ("]", "[") if closed[0] else (")", "(")
        return [(*BELOW, f"-{sides[0]}", end), (start, sides[0], *ABOVE)]
    if FUNCTION.fullmatch(sides[0]) and CONSTANT.fullmatch(sides[1]):
        return [(*BELOW, sides[1], "]" if closed[0] else ")")]
    if FUNCTION.fullmatch(sides[1]) and CONSTANT.fullmatch(sides[0]):
        return [("[" if closed[0] else "(", sides[0], *ABOVE)]
    return None
