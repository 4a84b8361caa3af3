"""Programs that want the reward without the answer. None of them gets it."""

from __future__ import annotations

import pytest

from marft.envs.code.formats import read_task
from marft.envs.code.grading import Allowance, passed_tests
from marft.envs.sandbox import require_sandbox
from marft.envs.sandbox.limits import MIB
from marft.types import MarftError

try:
    require_sandbox()
except MarftError as error:
    pytest.skip(str(error), allow_module_level=True)

ALLOWANCE = Allowance(seconds=2.0, together=20.0, memory=512 * MIB)
CALLS = {
    "kind": "calls",
    "given": "",
    "setup": "limit = 10",
    "asked": ["f"],
    "tests": [
        "assert f(20) == 6765",
        "assert math.isclose(f(30), 832040)",
        "assert set([f(7)]) == {13} and not f(0)",
        "assert f(limit) in (55, 56) and f(limit) != 56",
    ],
}
STDIO = {"kind": "stdio", "inputs": ["20\n", "30\n"], "outputs": ["6765\n", "832040\n"]}
HONEST = """
def f(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
"""
LIAR = """
class Liar({base}):
    def __new__(cls, *a): return {base}.__new__(cls)
    def always(self, *a): return True
    def never(self, *a): return False
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __instancecheck__ = always
    __ne__ = __bool__ = never
    def __hash__(self): return 0
    def __repr__(self): return "6765"
    def __str__(self): return "6765"
    def __getattr__(self, name): return self
    def __call__(self, *a): return self
    def __float__(self): return 832040.0
    def __index__(self): return 6765
    def __iter__(self): return iter([6765])
def f(n): return Liar()
"""
CHEATS = {
    "nothing": "",
    "not Python": "def f(",
    "the wrong name": "def g(n): return 6765",
    "a constant": "def f(n): return 1",
    "None": "def f(n): pass",
    "a lying object": LIAR.format(base="object"),
    "a lying number": LIAR.format(base="int"),
    "a lying fraction": LIAR.format(base="float"),
    "a lying text": LIAR.format(base="str"),
    "a lying list": LIAR.format(base="list"),
    "a lying tuple": LIAR.format(base="tuple"),
    "a lying set": LIAR.format(base="set"),
    "a lying dict": LIAR.format(base="dict"),
    "a class": "class f:\n    def __init__(self, n): pass\n    def __eq__(self, other): return True",
    "a function": "def f(n): return f",
    "a generator": "def f(n):\n    yield 6765",
    "not a number": "def f(n): return float('nan')",
    "every answer": "def f(n): return [6765, 832040, 13, 55, 0]",
    "leaving": "import sys; sys.exit(0)",
    "leaving for good": "import os; os._exit(0)",
    "leaving when asked": "import os\ndef f(n): os._exit(0)",
    "leaving as if all was well": "def f(n): raise SystemExit(0)",
    "a crash": "import ctypes\ndef f(n): ctypes.string_at(0)",
    "being killed": "import os\ndef f(n): os.kill(os.getpid(), 9)",
    "printing verdicts": "print('1111', flush=True)\nprint('1111', end='')\ndef f(n): print('1111')",
    "verdicts on every descriptor": """
import os
for fd in range(64):
    for data in (b"1111", b"\\0\\0\\0\\x0e" + b'{"value": 6765}', b"1\\n"):
        try: os.write(fd, data)
        except OSError: pass
def f(n): return 1
""",
    "answers ahead of the questions": """
import os
frame = b'{"value": true}'
for fd in range(3, 64):
    try: os.write(fd, (len(frame).to_bytes(4, "big") + frame) * 50)
    except OSError: pass
os.kill(os.getpid(), 19)
""",
    "an endless message": """
import os
for fd in range(3, 64):
    try:
        os.write(fd, b"\\0\\x70\\0\\0")
        while True: os.write(fd, b"[" * 65536)
    except OSError: pass
""",
    "deep nesting": """
import os
data = b'{"value": ' + b"[" * 100000 + b"]" * 100000 + b"}"
for fd in range(3, 64):
    try: os.write(fd, len(data).to_bytes(4, "big") + data)
    except OSError: pass
def f(n): return 1
""",
    "odd messages": """
import os, socket
from marft.envs.code import wire
answers = [b"1", b"[]", b"{}", b'{"value": {}}', b'{"value": {"a": 1, "b": 2}}', b'{"value": {"int": "zz"}}', b"\\xff", b'{"raised": 7}']
def receive(self, deadline=None):
    for data in answers:
        self.socket.sendall(len(data).to_bytes(4, "big") + data)
    os._exit(0)
wire.Channel.receive = receive
""",
    "raising what the tests may forgive": "def f(n): raise AssertionError",
    "raising a strange thing": "class Pass(BaseException): pass\ndef f(n): raise Pass",
    "no answer": "def f(n):\n    while True: pass",
    "sleeping": "import time\ndef f(n): time.sleep(99)",
    "patched builtins": """
import builtins, json, math
builtins.isinstance = lambda *a: True
builtins.set = builtins.all = builtins.any = lambda *a: True
math.isclose = lambda *a, **k: True
json.dumps = lambda *a, **k: '{"value": true}'
def f(n): return True
""",
    "a patched server": """
import sys
from marft.envs.code import wire
wire.pack = lambda *a: True
sys.modules["__main__"].pack = lambda value, keep: {"kept": "f"}
def f(n): return 1
""",
    "reading the tests": """
import gc, glob, os, re, sys
def numbers():
    seen = []
    frame = sys._getframe()
    while frame: seen += [repr(frame.f_locals), repr(frame.f_globals)]; frame = frame.f_back
    seen += [repr(o) for o in gc.get_objects() if isinstance(o, (list, dict, tuple))][:20000]
    for path in [*glob.glob("/program/**", recursive=True), *glob.glob("/tmp/**"), "/proc/self/cmdline", "/proc/1/cmdline", "/proc/self/environ"]:
        try: seen.append(open(path, errors="replace").read())
        except OSError: pass
    return {int(n) for n in re.findall(r"(?<![0-9])[0-9]{2,6}(?![0-9])", " ".join(seen).replace(SELF, ""))}
SELF = open("/program/program.py").read()
FOUND = numbers()
def f(n): return next((n for n in FOUND if 7 * n + 1 == 47356), 1)  # without naming the number it looks for
""",
    "asking the tests": """
import socket
def f(n):
    for fd in range(3, 64):
        try: s = socket.socket(fileno=fd)
        except OSError: continue
        s.settimeout(0.1)
        data = b'["get", "limit", "x"]'
        s.sendall(len(data).to_bytes(4, "big") + data)
        try: return int(s.recv(100)[4:])
        except Exception: s.detach()
    return 1
""",
}  # fmt: skip
PRINTS = {
    "nothing": "",
    "the wrong number": "print(1)",
    "the right number and a crash": "print(6765)\n1 / 0",
    "the right number and the wrong end": "print(6765)\nexit(1)",
    "every answer": "print(6765)\nprint(832040)",
    "every answer in a line": "print(6765, 832040)",
    "the input": "print(input())",
    "an answer on stderr": "import sys\nprint(6765, file=sys.stderr)",
    "an answer and no end": "print(6765, flush=True)\nwhile True: pass",
    "nothing but a good end": "import os; os._exit(0)",
    "a pattern": "print('.*')",
    "true": "print(True)",
    "almost": "print(6765.0000001)",
    "in another form": "print('6_765', '6765.0'[:0])",
    "reading the outputs": "import glob\nprint(*(open(p).read() for p in glob.glob('/program/*')))",
}


def test_an_honest_program_passes() -> None:
    assert passed_tests(HONEST, CALLS, ALLOWANCE, stop=False) == (True,) * 4
    assert passed_tests(HONEST + "print(f(int(input())))", STDIO, ALLOWANCE, stop=False) == (True, True)


@pytest.mark.parametrize("name", CHEATS)
def test_no_function_test_is_fooled(name: str) -> None:
    assert passed_tests(CHEATS[name], CALLS, ALLOWANCE, stop=True) == (False,) * 4


@pytest.mark.parametrize("name", PRINTS)
def test_no_output_test_is_fooled(name: str) -> None:
    assert passed_tests(PRINTS[name], STDIO, ALLOWANCE, stop=True) == (False, False)


def test_what_is_right_by_accident_counts_for_that_test_alone() -> None:
    assert passed_tests("def f(n): return 6765", CALLS, ALLOWANCE, stop=False) == (True, False, False, False)
    assert passed_tests("print(6765)", STDIO, ALLOWANCE, stop=False) == (True, False)


def test_what_tests_print_is_no_verdict() -> None:
    test = "import os, sys\nprint(f(1), flush=True)\nos.write(1, str(f(1)).encode())\nassert f(1) == 2"
    assert passed_tests("def f(n): return '1'", {**CALLS, "tests": [test]}, ALLOWANCE, stop=False) == (False,)
    noisy = "import sys\nprint('start' * 10**6)\nprint('start' * 10**6, file=sys.stderr)\nassert f(7) == 13"
    assert passed_tests(HONEST, {**CALLS, "tests": [noisy, "assert f(7) == 14"]}, ALLOWANCE, stop=False) == (
        True,
        False,
    )


@pytest.mark.parametrize(
    "name", ["is_equal", "same", "__same__", "is_close", "close", "space", "run_remote_tests", "examine"]
)
def test_a_function_may_be_called_like_one_of_ours(name: str) -> None:
    tests = read_task({"problem": "?", "tests": {"fn_name": name, "inputs": [[3]], "outputs": [[4]]}}, "x", 9).data[
        "tests"
    ]
    assert passed_tests(f"def {name}(n): return n + 1", tests, ALLOWANCE, stop=False) == (name != "__same__",)
    assert passed_tests(f"def {name}(*_): return True", tests, ALLOWANCE, stop=False) == (False,)


@pytest.mark.parametrize(
    "raised", ["StopIteration", "StopAsyncIteration", "GeneratorExit", "type('S', (StopIteration,), {})"]
)
def test_no_loop_of_the_tests_is_ended_by_the_program(raised: str) -> None:
    tests = [
        "assert all(map(lambda n: f(n) == 1, [1, 2]))",
        "assert list(map(f, [1, 2])) == []",
        "assert next(map(f, [1]), 1) == 1",
        "for _ in iter(lambda: f(1), 1): assert False",
    ]
    assert passed_tests(f"def f(n): raise {raised}", {**CALLS, "tests": tests}, ALLOWANCE, stop=False) == (False,) * 4


@pytest.mark.parametrize(
    "program",
    [
        "def f(xs):\n    xs.clear()\n    return 0",
        "def f(xs): xs.clear()",
        "def f(xs):\n    xs.clear()\n    raise ValueError",
        "from marft.envs.code import wire\nwire.Channel.send = lambda self, answer, real=wire.Channel.send: real(self, {'value': 0, 'given': [[]]})\ndef f(xs): return 0",
    ],
)
def test_what_a_result_is_compared_with_is_not_the_programs(program: str) -> None:
    tests = ["xs = [1, 2, 3]\nassert f(xs) == sum(xs)", "xs = {1, 2}\nassert f(xs) == sum(xs)"]
    assert passed_tests(program, {**CALLS, "tests": tests}, ALLOWANCE, stop=False) == (False, False)


@pytest.mark.parametrize("given", ["[]", "[1]", "[[], []]", "['x']", "7", "{'iterator': 1}", "[{'set': []}]"])
def test_odd_changes_fail(given: str) -> None:
    send = f"lambda self, answer, real=wire.Channel.send: real(self, {{'value': None, 'given': {given}}})"
    program = f"from marft.envs.code import wire\nwire.Channel.send = {send}\ndef f(xs): pass"
    tests = ["xs = [1]\nf(xs)\nassert xs == []", "xs = [1]\ntry:\n    f(xs)\nfinally:\n    assert xs != [1]"]
    assert passed_tests(program, {**CALLS, "tests": tests}, ALLOWANCE, stop=False) == (False, False)


@pytest.mark.parametrize("name", ["a lying object", "a lying number", "a patched server", "odd messages"])
def test_lies_pass_not_even_one_test(name: str) -> None:
    assert passed_tests(CHEATS[name], CALLS, ALLOWANCE, stop=False) == (False,) * 4


HUMANEVAL = {
    "kind": "calls",
    "given": "def poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\n\ndef root(xs):\n    '''A root.'''\n",
    "setup": "def check(candidate):\n    for xs in ([1, 2], [-6, 3]):\n        assert abs(poly(xs, candidate(xs))) < 1e-6\n",
    "asked": ["root"],
    "tests": ["check(root)"],
}


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        ("def root(xs): return -xs[0] / xs[1]", True),
        ("from __future__ import annotations\ndef root(xs): return -xs[0] / xs[1]", True),
        ("def root(xs): return -xs[0] / xs[1] + 0.1", False),
        ("def poly(xs, x): return 0\ndef root(xs): return 1", False),  # what the task gives cannot be replaced
        ("def check(candidate): pass\ndef root(xs): return 1", False),
        ("abs = lambda x: 0\nimport builtins\nbuiltins.abs = abs\ndef root(xs): return 1", False),
        ("", False),
    ],
)
def test_checks_in_the_manner_of_humaneval(program: str, passes: bool) -> None:
    assert passed_tests(program, HUMANEVAL, ALLOWANCE, stop=True) == (passes,)
