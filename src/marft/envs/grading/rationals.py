r"""Exact rational values of written numbers: `0.5`, `1/2`, `\frac{1}{2}`, `3\frac{1}{2}`, `1.2\cdot10^{3}`, `2^{10}`.

A number has to be written out: sums, roots and products are expressions, and no expression is a number here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from marft.envs.grading.expression_parser import Tree, parse_expression
from marft.envs.grading.latex_normalization import without_spaces
from marft.envs.grading.number_words import value_of_words

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


OPERATIONS: dict[str, Callable[[list[Fraction]], Fraction]] = {
    "+": lambda values: sum(values, Fraction(0)),
    "*": lambda values: math.prod(values, start=Fraction(1)),
    "-": lambda values: -values[0],
    "/": lambda values: 1 / values[0],
    "()": lambda values: values[0],
    "^": lambda values: bounded_power(*values),
}


def rational_value(text: str) -> Fraction | None:
    """The value of a written number, None for anything else; digits are bounded."""
    if text.endswith("⟫") or (text[-1:].isalpha() and "\\" not in text):
        return value_of_words(text)
    text = without_spaces(text)
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
        return fraction_value(*found.groups())
    if found := SLASH.fullmatch(text):
        return fraction_value("", "", found[1], found[2])
    if found := REPEATING.fullmatch(text):  # 0.1\overline{6} is 1/6, 0.333\ldots is 1/3
        period = found[4] or found[5]
        value = int(found[2] + found[3] or 0) + Fraction(int(period), 10 ** len(period) - 1)
        return (-value if found[1] == "-" else value) / Fraction(10 ** len(found[3]))
    if found := SCIENTIFIC.fullmatch(text):
        return Fraction(Fraction(found[1]) * Fraction(10) ** int(found[2] or found[3]))
    if (found := POWER.fullmatch(text)) and int(found[3]) <= MAX_POWER:
        value = Fraction(int(found[2]) ** int(found[3]))
        return -value if found[1] == "-" else value
    return None


def fraction_value(sign: str, whole: str, top: str, bottom: str) -> Fraction | None:
    """A fraction, or a mixed number such as 3½; division by zero has no value."""
    if Fraction(bottom) == 0 or (whole and top.startswith(("-", "+"))):
        return None
    value = Fraction(whole or 0) + Fraction(top) / Fraction(bottom)
    return -value if sign == "-" else value


def computed_value(text: str) -> Fraction | None:
    """The value of a calculation with rational numbers, as in `2\\cdot9 = 18`; None for anything else or too large."""
    tree = parse_expression(text)
    try:
        return None if tree is None else tree_value(tree)
    except (ZeroDivisionError, ValueError, KeyError, RecursionError):
        return None


def tree_value(tree: Tree) -> Fraction:
    """The value of an expression's tree; ValueError or KeyError for what is no calculation."""
    if isinstance(tree, str):
        return Fraction(tree)
    operation = OPERATIONS[str(tree[0])]
    return operation([tree_value(part) for part in tree[1:]])


def bounded_power(base: Fraction, exponent: Fraction) -> Fraction:
    """A power with a small whole exponent; ValueError for any other."""
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT or abs(base) > MAX_BASE:
        raise ValueError
    return Fraction(base ** int(exponent))


def decimal_places(text: str) -> int | None:
    """How many decimal places a plain decimal is written with, None for every other form."""
    text = without_spaces(text)
    return len(text.partition(".")[2]) if DECIMAL.fullmatch(text) else None


def is_decimal(value: Fraction) -> bool:
    """Whether a value can be written out as a decimal: its denominator divides a power of ten."""
    return pow(10, value.denominator.bit_length(), value.denominator) == 0


def round_half_up(value: Fraction, places: int) -> Fraction:
    """Half away from zero, as people round."""
    nearest = Fraction(int(abs(value) * 10**places + Fraction(1, 2)), 10**places)
    return nearest if value >= 0 else -nearest
