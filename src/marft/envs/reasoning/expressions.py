"""Which answers may reach a parser that evaluates them: plain formulas whose numbers stay small."""

from __future__ import annotations

import ast
import math
import re

ANGLES = ("sin", "cos", "tan", "sec", "csc", "cot")
FUNCTIONS = frozenset(
    {"exp", "log", "ln", "sqrt", "Abs", "abs", *ANGLES, *(f"a{a}" for a in ANGLES), *(f"{a}h" for a in ANGLES)}
)
NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{0,15}")
LENGTH = 1_000  # characters
DIGITS = 2_000.0  # of the largest number that may come up on the way


class UnsafeExpression(Exception):
    """A formula that is none, or one that would take too much."""


def is_safe_expression(text: str) -> bool:
    """Whether `text` is arithmetic on numbers, names and known functions, small enough to be worked out at once.

    sympy's parser ends in Python's `eval`, so that `().__class__`, `open("f")` and `9**9**9` must not get there.
    """
    if len(text) > LENGTH or not text.isascii():
        return False
    try:
        return digits_bound(ast.parse(text.strip(), mode="eval").body) <= DIGITS
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError, UnsafeExpression):
        return False


def digits_bound(node: ast.expr) -> float:
    """A bound on log10 of the value's numerator and denominator. Names stay names or cancel, so they count as 1."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return abs(math.log10(abs(value))) if value else 0.0
        case ast.Name(id=name) if NAME.fullmatch(name):
            return 0.0
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=inner):
            return digits_bound(inner)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return digits_bound(left) + digits_bound(right) + 0.31  # a sum is at most twice the larger part
        case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
            raised = digits_bound(exponent)
            return max(raised, digits_bound(base) * 10 ** min(raised, 9.0))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
            return digits_bound(argument)
    raise UnsafeExpression(type(node).__name__)
