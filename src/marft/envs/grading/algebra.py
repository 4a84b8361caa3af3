"""Equality of two values by algebra: math-verify, told to be exact. Slow, and only safe under the worker's limits."""

from __future__ import annotations

import importlib
import re
from typing import Any

from marft.envs.grading.answer_structure import EQUALS, Leaf
from marft.envs.grading.comparison import values_equal
from marft.envs.grading.latex_normalization import SET_CLOSE, SET_OPEN

MAX_VALUE = 300  # characters
MAX_NESTING = 16
HUGE = re.compile(r"\^\s*\{?\s*[-+]?\s*\d{5}|\d{5,}\s*!|!.{0,3}!|\d{120}")
TOWER = re.compile(r"\d\s*\}?\s*\^[\s{(]*\d+[\s{(]*\^|\^[^-+=,]{0,40}\^[^-+=,]{0,40}\^")
DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")
IMAGINARY = re.compile(r"(?<![\\A-Za-z{])i(?![A-Za-z])")
DIGITS, TOLERANCE = 30, 1e-15
NUMBER = re.compile(r"[-+]?\d{1,400}(?:\.\d{1,400})?")
NAME = re.compile(r"[A-Za-z]\w{0,40}", re.ASCII)
WARM_UP = (
    r"\frac{1}{2}", r"\sqrt{8}+3", r"2\pi", r"x^2+2x+1", r"(x+1)^{2}", "6-5i", r"\sin x", r"e^{x}", r"\frac{a-b}{c}y",
    r"\log_{2}3", r"\sqrt[3]{2}", r"-\frac{\sqrt{3}}{2}", "y=2x+3", "x^2+y^2=4", r"\infty", r"\binom{5}{2}", "5!",
    r"|x-1|", "3<x", r"f(x)", r"2^{n}", "2x/3", r"\cos 60", r"\tan\frac{x}{2}", r"x_{1}", r"1\frac{1}{2}", "xy",
)  # fmt: skip


def equal_by_algebra(gold: Leaf, answer: Leaf) -> bool:
    """Whether two values are equal; algebra is asked where letters and numbers do not decide."""
    verdict = values_equal(gold, answer)
    if verdict is not None:
        return verdict
    both_equations = bool(gold.name and answer.name)
    first, second = (f"{leaf.name}={leaf.text}" if both_equations else leaf.text for leaf in (gold, answer))
    return is_tractable(first) and is_tractable(second) and verified_by_sympy(first, second)


def is_tractable(text: str) -> bool:
    """Whether it makes sense to try: ASCII, of bounded length and depth, at most one equation, and no tower of powers."""
    text = text.replace("°", "")
    if (
        len(EQUALS.findall(text)) > 1
        or len(text) > MAX_VALUE
        or not text.isascii()
        or HUGE.search(text)
        or TOWER.search(text)
    ):
        return False
    depths = [0]
    for character in text:
        depths.append(depths[-1] + (character in "([{") - (character in ")]}"))
    return min(depths) >= 0 and depths[-1] == 0 and max(depths) <= MAX_NESTING


def verified_by_sympy(gold: str, answer: str) -> bool:
    """Whether math-verify finds two formulas equal, under our stricter rules."""
    from math_verify import verify

    golds, answers = parse_latex(gold), parse_latex(answer)
    if not golds or not answers or not are_comparable(golds[0], answers[0]):
        return False
    return bool(verify(golds[0], answers[0], strict=True, timeout_seconds=None)) and are_relatively_close(
        golds[0], answers[0]
    )


def are_comparable(gold: Any, answer: Any) -> bool:
    """math-verify calls two equations equal when neither has a solution, and a set equal to its only element."""
    from sympy import Eq, Set, simplify

    if isinstance(gold, Eq) != isinstance(answer, Eq) or isinstance(gold, Set) != isinstance(answer, Set):
        return False
    if not isinstance(gold, Eq):
        return True
    factor = simplify((gold.lhs - gold.rhs) / (answer.lhs - answer.rhs))
    return bool(factor.is_number and factor.is_finite and factor != 0)


def are_relatively_close(gold: Any, answer: Any) -> bool:
    """math-verify chops what is below 1e-15 to 0, which makes all tiny constants equal: compare relatively."""
    from sympy import Expr

    if not (isinstance(gold, Expr) and isinstance(answer, Expr)) or gold.free_symbols or answer.free_symbols:
        return True
    first, second = gold.doit().evalf(DIGITS), answer.doit().evalf(DIGITS)
    if not (first.is_number and second.is_number) or first == second:
        return True
    return bool(abs(first - second) <= TOLERANCE * max(abs(first), abs(second)))


def parse_latex(text: str) -> list[Any]:
    """Decimals become fractions first: math-verify rounds floats, and 1.414214 is not the root of 2."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    text = DECIMAL.sub(lambda d: f"{{\\frac{{{int(d[1] + d[2])}}}{{{10 ** len(d[2])}}}}}", text)
    text = IMAGINARY.sub(" {i} ", text)  # math-verify sees the imaginary unit only where it stands alone
    text = text.replace("°", "").replace(SET_OPEN, r"\{").replace(SET_CLOSE, r"\}").replace("$", "").replace("%", "")
    # Formulas only: the plain-text parser of math-verify ends in sympy's parse_expr, which evaluates Python.
    # Units are ours to read: math-verify would take the s of 2s for seconds.
    spelling = NormalizationConfig(units=False, boxed="none", equations=False)
    config = LatexExtractionConfig(normalization_config=spelling)
    return list(parse(f"${text}$", [config], fallback_mode="no_fallback", parsing_timeout=None))


def load_math_verify() -> None:
    """Import and warm up what is slow, then take away sympy's way to run text as Python."""
    from sympy.parsing import sympy_parser

    for text in WARM_UP:
        verified_by_sympy(text, "(x+1)^2")
    importlib.import_module("sympy.physics.units")  # simplify imports it when it first needs it
    sympy_parser.parse_expr = number_or_name


def number_or_name(text: str, *_: object, **__: object) -> Any:
    """In place of sympy's parse_expr, which evaluates Python and which sympy calls for every number it meets."""
    from sympy import Rational, Symbol

    text = text.strip()
    if NUMBER.fullmatch(text):
        return Rational(text)
    if NAME.fullmatch(text):
        return Symbol(text)
    raise SyntaxError("only numbers and names are read from text here")
