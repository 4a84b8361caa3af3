r"""Exact rational values of written numbers: `0.5`, `1/2`, `\frac{1}{2}`, `3\frac{1}{2}`, `1.2\cdot10^{3}`, `2^{10}`.

A number has to be written out: sums, roots and products are expressions, and no expression is a number here.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from marft.envs.grading.expression import Tree, parsed
from marft.envs.grading.latex import tight
from marft.envs.grading.numerals import in_words

MAX_DIGITS = 200  # of a written number; longer ones are no answer
MAX_POWER = 600
MAX_EXPONENT, MAX_BASE = 50, 10**6  # in a calculation

PLAIN = r"(?:\d+(?:\.\d*)?|\.\d+)"
SIGNED = rf"[-+]?{PLAIN}"
DECIMAL = re.compile(SIGNED)
RATIO = re.compile(rf"([-+]?)(\d*)\\frac\{{({SIGNED})\}}\{{({SIGNED})\}}")
SLASH = re.compile(rf"\(?({SIGNED})\)?/\(?({SIGNED})\)?")
SCIENTIFIC = re.compile(rf"({SIGNED})(?:\\cdot10\^\{{?([-+]?\d{{1,3}})\}}?|[eE]([-+]?\d{{1,3}}))")
REPEATING = re.compile(r"([-+]?)(\d*)\.(\d*?)(?:\\overline\{(\d+)\}|(\d)\5\5+(?:\.{3}|…|\\l?dots))")
POWER = re.compile(r"([-+]?)(\d{1,6})\^\{?(\d{1,3})\}?")


def number(text: str) -> Fraction | None:
    """The value of a written number, None for anything else; digits are bounded."""
    if text.endswith("⟫") or (text[-1:].isalpha() and "\\" not in text):
        return in_words(text)
    text = tight(text)
    if text.startswith("-(") and text.endswith(")") and text.count("(") == 1:
        text = f"-{text[2:-1]}" if text[2:3] != "-" else ""
    while text.startswith("{") and text.endswith("}") and "{" not in text[1:]:
        text = text[1:-1]
    if not text or len(text) > MAX_DIGITS or not text.isascii():
        return None
    if text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        text = text[1:-1]
    if DECIMAL.fullmatch(text):
        return Fraction(text)
    if found := RATIO.fullmatch(text):
        return ratio(found[1], found[2], found[3], found[4])
    if found := SLASH.fullmatch(text):
        return ratio("", "", found[1], found[2])
    if found := REPEATING.fullmatch(text):
        return repeating(found[1], found[2], found[3], found[4] or found[5])
    if found := SCIENTIFIC.fullmatch(text):
        return Fraction(Fraction(found[1]) * Fraction(10) ** int(found[2] or found[3]))
    if (found := POWER.fullmatch(text)) and int(found[3]) <= MAX_POWER:
        value = Fraction(int(found[2]) ** int(found[3]))
        return -value if found[1] == "-" else value
    return None


def ratio(sign: str, whole: str, top: str, bottom: str) -> Fraction | None:
    """A fraction, or a mixed number such as 3½; division by zero has no value."""
    if Fraction(bottom) == 0 or (whole and top.startswith(("-", "+"))):
        return None
    value = Fraction(whole or 0) + Fraction(top) / Fraction(bottom)
    return -value if sign == "-" else value


def repeating(sign: str, whole: str, fixed: str, period: str) -> Fraction:
    r"""`0.1\overline{6}` is 1/6; `0.333\ldots` is 1/3."""
    value = Fraction(int(whole + fixed or 0)) + Fraction(int(period), 10 ** len(period) - 1)
    value = value / Fraction(10 ** len(fixed))
    return -value if sign == "-" else value


def equal_sides(left: str, right: str) -> bool:
    """Whether two sides of an equation are one number, the left one worked out if it is a calculation."""
    value = number(right)
    return value is not None and value in (number(left), calculated(left))


def calculated(text: str) -> Fraction | None:
    """The value of a calculation with rational numbers, as in `2\\cdot9 = 18`; None for anything else or too large."""
    tree = parsed(text)
    try:
        return None if tree is None else worked_out(tree)
    except (ZeroDivisionError, ValueError, RecursionError):
        return None


def worked_out(tree: Tree) -> Fraction:
    if isinstance(tree, str):
        return Fraction(tree)
    operation, *parts = tree
    if operation not in ("+", "-", "*", "/", "()", "^"):
        raise ValueError(operation)
    values = [worked_out(part) for part in parts]
    match operation:
        case "+":
            return sum(values, Fraction(0))
        case "*":
            return math.prod(values, start=Fraction(1))
        case "-":
            return -values[0]
        case "/":
            return 1 / values[0]
        case "^" if values[1].denominator == 1 and abs(values[1]) <= MAX_EXPONENT and abs(values[0]) <= MAX_BASE:
            return Fraction(values[0] ** int(values[1]))
        case "()":
            return values[0]
    raise ValueError(operation)


def decimals(text: str) -> int | None:
    """How many decimal places a plain decimal is written with, None for every other form."""
    text = tight(text)
    return len(text.partition(".")[2]) if DECIMAL.fullmatch(text) else None


def is_decimal(value: Fraction) -> bool:
    """Whether a value can be written out as a decimal: its denominator divides a power of ten."""
    return pow(10, value.denominator.bit_length(), value.denominator) == 0


def rounded(value: Fraction, places: int) -> Fraction:
    """Half away from zero, as people round."""
    scaled = abs(value) * 10**places + Fraction(1, 2)
    nearest = Fraction(scaled.numerator // scaled.denominator, 10**places)
    return nearest if value >= 0 else -nearest
