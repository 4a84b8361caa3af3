"""Grading: comparing what was printed, counting tests, and starting anew after a hang."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.envs.code import grading
from marft.envs.code.grading import Allowance, passed_tests, same_output, same_word
from marft.envs.code.remote_tests import is_equal
from marft.envs.sandbox import SandboxBroken, require_sandbox
from marft.envs.sandbox.limits import MIB
from marft.types import MarftError

ALLOWANCE = Allowance(seconds=1.0, together=20.0, memory=512 * MIB)


@pytest.fixture
def sandbox() -> None:
    try:
        require_sandbox()
    except MarftError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("1 2\n3", "1 2\n3\n", True),
        ("1  2 \r\n3\n\n\n", "1 2\n3", True),
        ("", "", True),
        ("\n", "", True),
        ("", "1", False),
        ("1 2 3", "1 2\n3", False),  # lines matter
        ("1\n\n2", "1\n2", False),
        ("2 1", "1 2", False),
        ("YES", "yes", False),
        ("1", "1 1", False),
        ("1\n2", "1", False),
        ("3.1415927", "3.14159265", True),
        ("3.14160", "3.14159265", False),
        ("1000000.5", "1000000.0", True),  # one part in two million
        ("1000002.5", "1000000.0", False),
        ("0.0000005", "0.0", True),
        ("0.000002", "0.0", False),
        ("2", "2.000", True),
        ("2.0", "2", False),  # a whole number is asked for
        ("1000000000000000001", "1000000000000000000", False),
        ("1e3", "1000.0", True),
        ("nan", "1.0", False),
        ("inf", "1.0", False),
        ("nan", "nan", True),  # the same text
        ("1_0.0", "10.0", False),
        ("0x1p3", "8.0", False),
        ("٣.0", "3.0", False),
        ("9" * 500, "1.0", False),
        ("1e999", "1e998", False),
        ("1", "1e999", False),
        ("-0.0", "0.0", True),
    ],
)
def test_same_output(found: str, expected: str, same: bool) -> None:
    assert same_output(found, expected) is same


@pytest.mark.parametrize(
    ("found", "expected", "equal"),
    [
        (1e30 * (1 + 1e-15), 1e30, True),
        (1e30 * (1 + 2e-6), 1e30, False),
        (1e30, 1e30 * (1 + 1e-15), True),
        (1000000.5, 1000000.0, True),
        (1000002.5, 1000000.0, False),
        (5e-7, 0.0, True),
        (2e-6, 0.0, False),
        (-1000000.0, 1000000.0, False),
        (3, 3.0000001, True),
        (3.0000000000000004, 3, True),
        (1000000000.5, 1000000000, False),  # a whole number is asked for
        (1.0, math.inf, False),
        (math.inf, 1.0, False),
        (math.inf, math.inf, True),
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (10**400, 1.0, False),
        (1.0, 10**400, False),
        ("1.0", 1.0, False),
        (True, 1.0, True),
    ],
)
def test_function_tests_allow_what_printed_numbers_are_allowed(found: object, expected: object, equal: bool) -> None:
    assert is_equal(found, expected, False) is equal
    assert is_equal([found], [[expected]], True) is equal


@given(st.lists(st.lists(st.text("ab1.-", min_size=1), min_size=1), min_size=1))
def test_spacing_never_matters_and_lines_always_do(rows: list[list[str]]) -> None:
    text = "\n".join(" ".join(row) for row in rows)
    assert same_output("\n".join("  ".join(row) + " " for row in rows) + "\n\n", text)
    assert not same_output(text + "\nx", text)
    assert not same_output(text.replace("\n", " ") + " x", text)


@given(st.text(max_size=20), st.text(max_size=20))
def test_words_without_fractions_are_equal_or_not(found: str, expected: str) -> None:
    if "." not in expected and "e" not in expected.lower():
        assert same_word(found, expected) is (found == expected)


@given(st.floats(-1e6, 1e6), st.floats(-1e-7, 1e-7))
def test_close_numbers_are_the_same(number: float, error: float) -> None:
    assert same_word(f"{number + error:.9f}", f"{number:.9f}")
    assert not same_word(f"{number + 2e-6 * max(1, abs(number)):.9f}", f"{number:.9f}")


DOUBLES = {"kind": "stdio", "inputs": ["1", "2", "3"], "outputs": ["2", "4", "6"]}


@pytest.mark.usefixtures("sandbox")
def test_all_tests_or_up_to_the_first_failure() -> None:
    fails_second = "n = int(input())\nprint(2 * n if n != 2 else 0)"
    assert passed_tests(fails_second, DOUBLES, ALLOWANCE, stop=False) == (True, False, True)
    assert passed_tests(fails_second, DOUBLES, ALLOWANCE, stop=True) == (True, False, False)


CALLED = {
    "kind": "calls", "given": "", "setup": "", "asked": ["f"],
    "tests": ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3"],
}  # fmt: skip


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    "trap", ["while True: pass", "import os; os._exit(0)", "raise ValueError", "return [0] * 10**9"]
)
def test_a_trap_in_one_test_leaves_the_others_be(trap: str) -> None:
    program = f"def f(n):\n    if n == 2:\n        {trap}\n    return n"
    assert passed_tests(program, CALLED, ALLOWANCE, stop=False) == (True, False, True)
    assert passed_tests(program, CALLED, ALLOWANCE, stop=True) == (True, False, False)


@pytest.mark.usefixtures("sandbox")
def test_time_for_all_tests_is_limited() -> None:
    slow = Allowance(seconds=1.0, together=1.5, memory=512 * MIB)
    program = "import time\nn = int(input())\ntime.sleep(1.2)\nprint(2 * n)"
    assert passed_tests(program, DOUBLES, slow, stop=False) == (True, False, False)
    assert passed_tests("import time\ndef f(n):\n    time.sleep(0.9)\n    return n", CALLED, slow, stop=False) in (
        (True, False, False),
        (False, False, False),
    )


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(n): return 10 ** 5000", "assert f(1) == 10 ** 5000"),
        ("def f(n): return (1, [2.5, None], {'a': {1, 2}}, b'x', 1 + 2j)", "assert f(1) == (1, [2.5, None], {'a': {1, 2}}, b'x', 1 + 2j)"),
        ("def f(n): return {(1, 2): frozenset({3})}", "assert f(1) == {(1, 2): frozenset({3})}"),
        ("import collections\ndef f(n): return collections.Counter('aab')", "assert f(1) == {'a': 2, 'b': 1}"),
        ("import collections\ndef f(n): return collections.namedtuple('P', 'x y')(1, 2)", "assert f(1) == (1, 2)"),
        ("def f(n): return float('inf'), float('-inf'), -0.0", "assert f(1) == (math.inf, -math.inf, 0)"),
        ("def f(n): return '\\ud800\\n\\0'", "assert f(1) == '\\ud800\\n\\0'"),
        ("def f(kind): return kind", "assert f(int) is int and f(str) is str"),
        ("def f(n, *, m=0): return n - m", "assert f(5, m=2) == 3"),
        ("def f(n): raise KeyError(n)", "try:\n    f(1)\n    assert False\nexcept KeyError:\n    pass"),
        ("class Node:\n    def __init__(self, n): self.n, self.left = n, None\ndef f(node): return node.n + node.left.n", "root = Node(1)\nroot.left = Node(2)\nassert f(root) == 3 and root.left.n == 2"),
        ("class Solution:\n    def f(self, n): return n + 1", "assert f(1) == 2"),
        ("print('noise')\nimport sys\nsys.stdout.close()\ndef f(n): return 1", "assert f(1) == 1"),
        ("f = lambda n: [[n]] * 3", "assert __same__(f(1), [[1], (1,), [1.0000001]], False)"),
        ("f = lambda n: n", "assert __same__(f(3), [3], True) and not __same__(f(3), [3], False)"),
        ("f = lambda n: {'a': (1,)}", "assert __same__(f(3), {'a': [1]}, False) and not __same__(f(3), {'a': [1, 1]}, False)"),
        ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2] and next(f(3)) == 0 and f(3) != [0, 1, 2]"),
        ("def f(xs): return map(str, xs)", "assert list(f(x for x in (1, 2))) == ['1', '2'] and ''.join(f(range(3))) == '012'"),
        ("import itertools\ndef f(n): return itertools.count(n)\ndef Node(xs): return next(xs)", "assert Node(f(3)) == 3"),
        ("def f(n): return range(n, 0, -1)", "assert list(f(3)) == [3, 2, 1] and f(3) == range(3, 0, -1) and f(3) != [3, 2, 1]"),
        ("def f(d): return d.keys(), d.values(), d.items()", "k, v, i = f({'a': [1], 'b': 2})\nassert k == {'a', 'b'} and list(k) == ['a', 'b'] and list(v) == [[1], 2] and ('b', 2) in i and len(i) == 2"),
        ("import collections\ndef f(n): return collections.OrderedDict(a=n).items()", "assert dict(f(1)) == {'a': 1}"),
        ("import enum\nclass E(enum.IntEnum):\n    A = 3\ndef f(n): return E(n)", "assert f(3) == 3 and f(3) in {3} and f(f(3)) + 1 == 4"),
        ("import http\ndef f(n): return {http.HTTPStatus(n): http.HTTPMethod.GET}", "assert f(200) == {200: 'GET'}"),
        ("class X(float): pass\ndef f(n): return X(n)", "assert f(1.5) == 1.5 and type(f(1.5)) is float"),
        ("def f(xs): xs.sort()", "xs = alias = [3, 1, 2]\nassert f(xs) is None and xs is alias and xs == [1, 2, 3]"),
        ("def f(d, s, *, m):\n    d[1] = 2\n    s.add(1)\n    m[0][0] = 5", "d, s, m = collections.defaultdict(list), {3}, [[1]]\nf(d, s, m=m)\nassert (d, s, m) == ({1: 2}, {1, 3}, [[5]]) and d[7] == []"),
        ("kept = []\ndef f(xs): return next(kept[0]) if kept else kept.append(xs)", "f(iter([1, 2]))\nassert f(0) == 1 and f(0) == 2"),
        ("def f(xs):\n    xs.pop()\n    return 1", "xs = [1]\nassert f(xs) == 1 and xs == [1]"),
        ("class Node: pass\ndef f(xs): xs.reverse()", "a, b = Node(), Node()\na.n, b.n = 1, 2\nxs = [a, b]\nf(xs)\nassert [x.n for x in xs] == [2, 1]"),
    ],
)  # fmt: skip
def test_values_that_honest_programs_return(program: str, test: str) -> None:
    exam = {**CALLED, "asked": ["f", "Node"], "tests": [test, "assert 1 == 2"]}
    assert passed_tests(program, exam, ALLOWANCE, stop=False) == (True, False)


@pytest.mark.usefixtures("sandbox")
def test_long_outputs_may_be_asked_for() -> None:
    long = {"kind": "stdio", "inputs": [""], "outputs": ["word " * 400_000]}
    assert passed_tests("print('word ' * 400_000)", long, ALLOWANCE, stop=True) == (True,)


@pytest.mark.usefixtures("sandbox")
def test_a_setup_that_fails_fails_the_tests() -> None:
    exam = {**CALLED, "setup": "x = f(1) / 0"}
    assert passed_tests("def f(n): return n", exam, ALLOWANCE, stop=False) == (False, False, False)


@pytest.mark.usefixtures("sandbox")
def test_tests_that_ask_for_nothing_are_verdicts_too() -> None:
    for _ in range(5):
        assert passed_tests("def f(n): pass", {**CALLED, "tests": ["assert f"]}, ALLOWANCE, stop=True) == (False,)
        assert passed_tests("import time; time.sleep(9)", {**CALLED, "tests": ["1 / 0"]}, ALLOWANCE, stop=True) == (
            False,
        )


def test_a_broken_sandbox_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise SandboxBroken("away")

    monkeypatch.setattr(grading, "run", broken)
    with pytest.raises(SandboxBroken):
        passed_tests("print(1)", DOUBLES, ALLOWANCE, stop=True)


@pytest.mark.usefixtures("sandbox")
@settings(max_examples=15, deadline=None)
@given(st.text(max_size=200))
def test_no_text_passes(program: str) -> None:
    assert passed_tests(program, DOUBLES, ALLOWANCE, stop=True) == (False,) * 3
