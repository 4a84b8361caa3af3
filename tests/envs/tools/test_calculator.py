"""The calculator: exact on every expression, and at once done with every other text."""

from __future__ import annotations

import ast
import inspect
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.config import parse
from marft.config.team import TOOLS
from marft.envs.tools import calculator, make_tool
from marft.envs.tools.calculator import Calculator, evaluate
from marft.envs.tools.text import SHOWN
from marft.types import MarftError


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("2*(3+4)", "14"),
        (" 2 + 3 = ", "5"),
        ("0.1+0.2", "0.3"),
        ("1/3", "0.333333333333333"),
        ("100/8", "12.5"),
        ("-7//2", "-4"),
        ("-7%3", "2"),
        ("7.5 % 2", "1.5"),
        ("-2**2", "-4"),
        ("2**-3", "0.125"),
        ("2**3**2", "512"),
        ("2^10", "1024"),
        ("6 × 7 ÷ 2 − 1", "20"),
        ("+5", "5"),
        (".5 + 5.", "5.5"),
        ("1e5", "100000"),
        ("2.5E-3", "0.0025"),
        ("sqrt(16)", "4"),
        ("sqrt(0.25)", "0.5"),
        ("sqrt(2)", "1.4142135623731"),
        ("27**(1/3)", "3"),
        ("0**0.5", "0"),
        ("0**0", "1"),
        ("abs(-3.5)", "3.5"),
        ("min(3, 1/2, 2)", "0.5"),
        ("max(3, 7)", "7"),
        ("round(2.567, 2)", "2.57"),
        ("round(2.5)", "2"),
        ("round(1234, -2)", "1200"),
        ("factorial(10)", "3628800"),
        ("gcd(12, 18)", "6"),
        ("1**(10**900)", "1"),
        ("(-1)**(10**900 + 1)", "-1"),
        ("10**999", "1" + "0" * 999),
        ("1e30/7", "1.42857142857143e+29"),
        ("(1/3)**400", "1.41741854995386e-191"),
        ("(2 +\n3)", "5"),
    ],
)
def test_results(text: str, result: str) -> None:
    assert Calculator().use(text) == result


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("9**9**9", "too large"),
        ("9**9**9**9**9", "too large"),
        ("0*9**9**9", "too large"),
        ("10**1100", "too large"),
        ("10**-1100", "too large"),
        ("(10**500)*(10**600)", "too large"),
        ("1/(10**600)/(10**600)", "too large"),
        ("factorial(401)", "too large"),
        ("factorial(factorial(9))", "too large"),
        ("2**999.5", "too large"),
        ("sqrt(10**99)", "too large"),
        ("1e9999", "1e9999 is not a plain number"),
        ("1" * 1001, "too long"),
        ("1/0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("1 // 0", "division by zero"),
        ("0**-1", "division by zero"),
        ("0**(-1/2)", "division by zero"),
        ("(-8)**(1/3)", "a broken power of a negative number"),
        ("sqrt(-1)", "the root of a negative number"),
        ("factorial(-1)", "the factorial of a negative number"),
        ("factorial(1.5)", "factorial takes whole numbers"),
        ("gcd(1.5, 2)", "gcd takes whole numbers"),
        ("round(1, 99)", "round takes at most 15 places"),
        ("min()", "min does not take 0 numbers"),
        ("sqrt(1, 2)", "sqrt does not take 2 numbers"),
        ("0x10", "0x10 is not a plain number"),
        ("True", "True is not a plain number"),
        ("1_000", "1_000 is not a plain number"),
        ("٤٢", "use plain digits and operators"),
        ("\ud83d", "use plain digits and operators"),
    ],
)
def test_refused(text: str, line: str) -> None:
    assert Calculator().use(text) == f"error: {line}"


@pytest.mark.parametrize(
    "text",
    ["", " ", "=", "1 +", "3 4", "x", "1j", "'a' * 9", "[1] * 9", "1,000", "a = 1", "1 < 2", "sqrt", "sqrt(x=1)", "abs(*[1])",
     "pow(2, 3)", "().__class__", "__import__('os').abort()", "(1).real", "1 if 1 else 2", "lambda: 1", "(x := 1)", "f'{1}'",
     "1 << 99", "~1", "not 1", "1 and 2", "...", "None", "(" * 400 + "1" + ")" * 400, "\x00", "# 1", "1;2", "1)", "await 1"],
)  # fmt: skip
def test_what_is_no_arithmetic(text: str) -> None:
    assert Calculator().use(text).startswith("error: ")


EXPRESSIONS = st.recursive(
    st.integers(0, 999).map(str) | st.tuples(st.integers(0, 99), st.integers(0, 99)).map(lambda p: f"{p[0]}.{p[1]:02}"),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        )
        | inner.map(lambda text: f"-{text}")
    ),
    max_leaves=8,
)


def exactly(node: ast.AST, text: str) -> Fraction:
    """The oracle: Python's own fractions."""
    match node:
        case ast.Expression(body=body):
            return exactly(body, text)
        case ast.UnaryOp(operand=inner):
            return -exactly(inner, text)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = exactly(left, text), exactly(right, text)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return a / b
                case ast.FloorDiv():
                    return Fraction(a // b)
                case _:
                    return a % b
    return Fraction(ast.get_source_segment(text, node) or "")  # type: ignore[arg-type]


@settings(max_examples=300)
@given(EXPRESSIONS)
def test_it_agrees_with_fractions(text: str) -> None:
    try:
        expected = exactly(ast.parse(text, mode="eval"), text)
    except ZeroDivisionError:
        assert Calculator().use(text) == "error: division by zero"
        return
    assert evaluate(text) == expected
    shown = Calculator().use(text)
    assert Fraction(shown) == pytest.approx(expected, rel=1e-14)
    if expected.denominator == 1:
        assert shown == str(expected)


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=80)
    | st.lists(
        st.sampled_from([*"0123456789.()+-*/%^, e\n=", "**", "//", "sqrt(", "factorial(", "9" * 99, "max("]),
        max_size=40,
    ).map("".join)
)
def test_it_never_raises_and_is_short(text: str) -> None:
    assert 0 < len(Calculator().use(text)) <= SHOWN + 1  # a thousand digits and a sign


@pytest.mark.parametrize(
    "text", ["-" * 1000 + "1", "(" * 999, "1+" * 499 + "1", "abs(" * 190 + "1" + ")" * 190, "9**" * 333 + "9"]
)
def test_deep_expressions(text: str) -> None:
    assert len(Calculator().use(text[:1000])) <= SHOWN


def test_it_never_evaluates() -> None:
    called = {node.func.id for node in ast.walk(ast.parse(inspect.getsource(calculator)))
              if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
    assert not called & {"eval", "exec", "compile", "__import__", "getattr"}


def test_tools_by_name() -> None:
    name, tool = make_tool("calculator", 30.0)
    assert name == "calculator"
    assert "<calculator>2*(3+4)</calculator>" in tool.help
    assert "\n" not in tool.help
    with pytest.raises(MarftError, match="'calc' is none of calculator, python"):
        parse({"team": {"agents": {"a": {"prompt": "x", "tools": ["calc"]}}}, "algorithm": "rae"})
    with pytest.raises(MarftError, match="tools: cannot import 'calc'"):
        make_tool("calc", 30.0)
    assert TOOLS == ("calculator", "python")
