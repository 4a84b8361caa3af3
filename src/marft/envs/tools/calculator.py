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


class CalculatorError(Exception):
    """Why there is no result, in a few words."""


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Exact for whole exponents, otherwise right to 30 digits."""
    if exponent.denominator == 1:
        if base == 0 and exponent < 0:
            raise ZeroDivisionError
        if abs(base) == 1:
            return base ** (exponent.numerator % 2)
        check_bits((bit_size(base) - 1) * abs(exponent.numerator))
        return base**exponent.numerator
    if base < 0:
        raise CalculatorError("a broken power of a negative number")
    if base == 0:
        if exponent < 0:
            raise ZeroDivisionError
        return base
    check_bits(int(bit_size(base) * abs(exponent)))
    return exact_fraction(PRECISE.power(as_decimal(base), as_decimal(exponent)))


def divide(a: Fraction, b: Fraction, by: Callable[[Fraction, Fraction], Fraction | int]) -> Fraction:
    """`by(a, b)`: a quotient, a floor or a remainder."""
    check_bits(bit_size(a) + bit_size(b))
    return Fraction(by(a, b))


def multiply(a: Fraction, b: Fraction) -> Fraction:
    """A product that is refused before it grows too large."""
    check_bits(bit_size(a) + bit_size(b))
    return a * b


def square_root(number: Fraction) -> Fraction:
    """Exact where the root is rational, otherwise right to 30 digits."""
    if number < 0:
        raise CalculatorError("the root of a negative number")
    above, below = math.isqrt(number.numerator), math.isqrt(number.denominator)
    if above**2 == number.numerator and below**2 == number.denominator:
        return Fraction(above, below)
    return exact_fraction(PRECISE.sqrt(as_decimal(number)))


def exact_fraction(result: Decimal) -> Fraction:
    """Of a rounded result; refused where digits that are not right would be shown."""
    if result.adjusted() >= DIGITS:  # it would be shown in full, with digits that are not right
        raise CalculatorError("too large")
    return Fraction(result)


def factorial(number: Fraction) -> Fraction:
    """Of whole numbers up to BIGGEST_FACTORIAL."""
    n = require_integer(number, "factorial")
    if n < 0:
        raise CalculatorError("the factorial of a negative number")
    if n > BIGGEST_FACTORIAL:
        raise CalculatorError("too large")
    return Fraction(math.factorial(n))


def round_to(number: Fraction, places: Fraction = Fraction(0)) -> Fraction:
    """To `places` decimals, halves to even."""
    digits = require_integer(places, "round")
    if abs(digits) > DIGITS:
        raise CalculatorError(f"round takes at most {DIGITS} places")
    return Fraction(round(number, digits))


def common_divisor(*numbers: Fraction) -> Fraction:
    """The greatest of all the numbers."""
    return Fraction(math.gcd(*(require_integer(number, "gcd") for number in numbers)))


OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: multiply,
    ast.Div: lambda a, b: divide(a, b, operator.truediv),
    ast.FloorDiv: lambda a, b: divide(a, b, operator.floordiv),
    ast.Mod: lambda a, b: divide(a, b, operator.mod),
    ast.Pow: power,
}
FUNCTIONS: Mapping[str, tuple[range, Callable[..., Fraction]]] = {  # how many arguments it takes, and what it does
    "sqrt": (range(1, 2), square_root),
    "abs": (range(1, 2), abs),
    "min": (range(1, 100), lambda *numbers: min(numbers)),
    "max": (range(1, 100), lambda *numbers: max(numbers)),
    "round": (range(1, 3), round_to),
    "factorial": (range(1, 2), factorial),
    "gcd": (range(1, 100), common_divisor),
}


class Calculator:
    """+ - * / // % ** (also ^ × ÷), parentheses, decimals and FUNCTIONS."""

    name = "calculator"
    help = (
        "calculator: write <calculator>2*(3+4)</calculator> and its result is shown to you; "
        f"it knows + - * / // % ** and {' '.join(FUNCTIONS)}."
    )
    description = f"Works an expression out exactly. It knows + - * / // % ** and {' '.join(FUNCTIONS)}."

    def use(self, text: str) -> str:
        """The value in digits, or `error: …`."""
        try:
            return format_number(evaluate(text))
        except CalculatorError as refused:
            return f"error: {refused}"
        except ZeroDivisionError:
            return "error: division by zero"
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return "error: not an expression that can be worked out"


def evaluate(text: str) -> Fraction:
    """The value of an expression as agents write it; CalculatorError says why it is refused."""
    if len(text) > LENGTH:
        raise CalculatorError("too long")
    text = text.translate(SPELLINGS).strip().removesuffix("=").rstrip()
    if not text.isascii():  # positions in the tree count bytes
        raise CalculatorError("use plain digits and operators")
    return evaluate_node(ast.parse(text, mode="eval").body, text)


def evaluate_node(node: ast.expr, text: str) -> Fraction:
    """The value of one node; `text` is the whole expression, whose literals are read as written."""
    match node:
        case ast.Constant(value=int() | float()):
            result = parse_number(text[node.col_offset : node.end_col_offset])
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            result = -evaluate_node(inner, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            result = evaluate_node(inner, text)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            result = OPERATORS[type(op)](evaluate_node(left, text), evaluate_node(right, text))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            takes, function = FUNCTIONS[name]
            if len(arguments) not in takes:
                raise CalculatorError(f"{name} does not take {len(arguments)} numbers")
            result = function(*(evaluate_node(each, text) for each in arguments))
        case _:
            raise CalculatorError(f"only numbers, + - * / // % **, parentheses and {', '.join(FUNCTIONS)} are known")
    check_bits(bit_size(result))
    return result


def parse_number(spelled: str) -> Fraction:
    """A literal as it is written: 0.1 is a tenth."""
    if not NUMBER.fullmatch(spelled):
        raise CalculatorError(f"{spelled[:20]} is not a plain number")
    return Fraction(spelled)


def require_integer(number: Fraction, what: str) -> int:
    """The number as an int; CalculatorError where it has a fraction."""
    if number.denominator != 1:
        raise CalculatorError(f"{what} takes whole numbers")
    return number.numerator


def as_decimal(number: Fraction) -> Decimal:
    """To 30 digits."""
    return PRECISE.divide(Decimal(number.numerator), Decimal(number.denominator))


def bit_size(number: Fraction) -> int:
    """Bits of the larger of numerator and denominator."""
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def check_bits(count: int) -> None:
    """CalculatorError for a number of more than BITS bits."""
    if count > BITS:
        raise CalculatorError("too large")


def format_number(number: Fraction) -> str:
    """Whole numbers in full, others to DIGITS digits."""
    if number.denominator == 1:
        return str(number.numerator)
    near = Context(prec=DIGITS).divide(Decimal(number.numerator), Decimal(number.denominator)).normalize()
    return f"{near:f}" if -DIGITS < near.adjusted() < DIGITS else f"{near:e}"
