"""Exact arithmetic for agents: a walk over the expression's tree, never Python's own evaluation.

Every number is a fraction; roots and broken powers are right to 30 digits. Whatever would grow past a thousand digits is
refused before it is worked out.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from fractions import Fraction

LENGTH = 1_000  # characters of an expression
BITS = 3_400  # of a numerator or denominator: a thousand digits
PRECISE = Context(prec=30)
DIGITS = 15  # shown of a number that is not whole
NUMBER = re.compile(r"\d*\.?\d*(?:[eE][+-]?\d{1,3})?")
SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**", "\n": " ", "\r": " "})
BIGGEST_FACTORIAL = 400


class Refused(Exception):
    """Why there is no result, in a few words."""


def power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator == 1:
        if base == 0 and exponent < 0:
            raise ZeroDivisionError
        if abs(base) == 1:
            return base ** (exponent.numerator % 2)
        check_bits((bits(base) - 1) * abs(exponent.numerator))
        return base**exponent.numerator
    if base < 0:
        raise Refused("a broken power of a negative number")
    if base == 0:
        if exponent < 0:
            raise ZeroDivisionError
        return base
    check_bits(int(bits(base) * abs(exponent)))
    return rounded_off(PRECISE.power(decimal(base), decimal(exponent)))


def divided(a: Fraction, b: Fraction, by: Callable[[Fraction, Fraction], Fraction | int]) -> Fraction:
    check_bits(bits(a) + bits(b))
    return Fraction(by(a, b))


def times(a: Fraction, b: Fraction) -> Fraction:
    check_bits(bits(a) + bits(b))
    return a * b


def root(number: Fraction) -> Fraction:
    if number < 0:
        raise Refused("the root of a negative number")
    above, below = math.isqrt(number.numerator), math.isqrt(number.denominator)
    if above**2 == number.numerator and below**2 == number.denominator:
        return Fraction(above, below)
    return rounded_off(PRECISE.sqrt(decimal(number)))


def rounded_off(result: Decimal) -> Fraction:
    if result.adjusted() >= DIGITS:  # it would be shown in full, with digits that are not right
        raise Refused("too large")
    return Fraction(result)


def factorial(number: Fraction) -> Fraction:
    n = whole(number, "factorial")
    if n < 0:
        raise Refused("the factorial of a negative number")
    if n > BIGGEST_FACTORIAL:
        raise Refused("too large")
    return Fraction(math.factorial(n))


def rounded(number: Fraction, places: Fraction = Fraction(0)) -> Fraction:
    digits = whole(places, "round")
    if abs(digits) > DIGITS:
        raise Refused(f"round takes at most {DIGITS} places")
    return Fraction(round(number, digits))


def divisor(*numbers: Fraction) -> Fraction:
    return Fraction(math.gcd(*(whole(number, "gcd") for number in numbers)))


OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: times,
    ast.Div: lambda a, b: divided(a, b, operator.truediv),
    ast.FloorDiv: lambda a, b: divided(a, b, operator.floordiv),
    ast.Mod: lambda a, b: divided(a, b, operator.mod),
    ast.Pow: power,
}
FUNCTIONS: Mapping[str, tuple[range, Callable[..., Fraction]]] = {  # how many arguments it takes, and what it does
    "sqrt": (range(1, 2), root),
    "abs": (range(1, 2), abs),
    "min": (range(1, 100), lambda *numbers: min(numbers)),
    "max": (range(1, 100), lambda *numbers: max(numbers)),
    "round": (range(1, 3), rounded),
    "factorial": (range(1, 2), factorial),
    "gcd": (range(1, 100), divisor),
}


class Calculator:
    """+ - * / // % ** (also ^ × ÷), parentheses, decimals and FUNCTIONS."""

    name = "calculator"
    help = (
        "calculator: write <calculator>2*(3+4)</calculator> and its result is shown to you; "
        f"it knows + - * / // % ** and {' '.join(FUNCTIONS)}."
    )

    def use(self, text: str) -> str:
        try:
            return show(work_out(text))
        except Refused as refused:
            return f"error: {refused}"
        except ZeroDivisionError:
            return "error: division by zero"
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return "error: not an expression that can be worked out"


def work_out(text: str) -> Fraction:
    if len(text) > LENGTH:
        raise Refused("too long")
    text = text.translate(SPELLINGS).strip().removesuffix("=").rstrip()
    if not text.isascii():  # positions in the tree count bytes
        raise Refused("use plain digits and operators")
    return value(ast.parse(text, mode="eval").body, text)


def value(node: ast.expr, text: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            result = number(text[node.col_offset : node.end_col_offset])
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            result = -value(inner, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            result = value(inner, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            result = OPERATORS[type(op)](value(left, text), value(right, text))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            takes, function = FUNCTIONS[name]
            if len(arguments) not in takes:
                raise Refused(f"{name} does not take {len(arguments)} numbers")
            result = function(*(value(each, text) for each in arguments))
        case _:
            raise Refused(f"only numbers, + - * / // % **, parentheses and {', '.join(FUNCTIONS)} are known")
    check_bits(bits(result))
    return result


def number(spelled: str) -> Fraction:
    """A literal as it is written: 0.1 is a tenth."""
    if not NUMBER.fullmatch(spelled):
        raise Refused(f"{spelled[:20]} is not a plain number")
    return Fraction(spelled)


def whole(number: Fraction, what: str) -> int:
    if number.denominator != 1:
        raise Refused(f"{what} takes whole numbers")
    return number.numerator


def decimal(number: Fraction) -> Decimal:
    return PRECISE.divide(Decimal(number.numerator), Decimal(number.denominator))


def bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def check_bits(count: int) -> None:
    if count > BITS:
        raise Refused("too large")


def show(number: Fraction) -> str:
    """Whole numbers in full, others to DIGITS digits."""
    if number.denominator == 1:
        return str(number.numerator)
    near = Context(prec=DIGITS).divide(Decimal(number.numerator), Decimal(number.denominator)).normalize()
    return f"{near:f}" if -DIGITS < near.adjusted() < DIGITS else f"{near:e}"
