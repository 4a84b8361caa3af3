"""Python as a tool: what a few lines print, within limits, and only in the sandbox."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marft.envs.sandbox import Outcome, require_sandbox
from marft.envs.sandbox.limits import MIB
from marft.envs.sandbox.program import SandboxBroken
from marft.envs.tools import make_tool
from marft.envs.tools import python as tool_module
from marft.envs.tools.python import Python, describe_outcome, strip_fence
from marft.envs.tools.text import SHOWN
from marft.types import MarftError


@pytest.fixture(scope="module")
def python() -> Python:
    try:
        require_sandbox()
    except MarftError as error:
        pytest.skip(str(error))
    return Python()


@pytest.mark.parametrize(
    "code",
    [
        "[b'x' * (1 << 20) for _ in range(4096)]",
        "import mmap\nkept = [mmap.mmap(-1, 1 << 28) for _ in range(16)]",
        "for i in range(10**7): open(f'/tmp/{i:0200}', 'w').close()",
    ],
)
def test_no_kind_of_memory_is_without_a_limit(python: Python, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(tool_module, "LIMITS", replace(tool_module.LIMITS, memory=64 * MIB))
    assert python.use(code) == "error: out of memory"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("1 + 1", "2"),
        ("print(3)\nx = 4\nx * 2", "3\n8"),
        ("x = 4", "(no output)"),
        ("None", "(no output)"),
        ("", "(no output)"),
        ("'a'", "'a'"),
        ("def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nf(10)", "55"),
        ("import math\nmath.comb(10, 3)", "120"),
        ("```python\n2**10\n```", "1024"),
        ("1/0", "ZeroDivisionError: division by zero"),
        ("print(1)\nraise ValueError('bad')", "1\nValueError: bad"),
        ("x =", "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "error: exit code 3"),
        ("import sys\nsys.stdin.read()", "''"),
        ("if __name__ == '__main__':\n    print('main')", "main"),
        ("'\\x00'", "'\\x00'"),
        ("\x00", "ValueError: source code string cannot contain null bytes"),
        ("print('é漢🎲')", "é漢🎲"),
        ("[0] * 10**11", "error: out of memory"),
        ("import os\nos.path.exists('/root') or os.path.exists('/home')", "False"),
    ],
)
def test_what_is_shown(python: Python, code: str, shown: str) -> None:
    assert python.use(code) == shown


def test_it_forgets_between_calls(python: Python) -> None:
    assert python.use("x = 5\nx") == "5"
    assert python.use("x") == "NameError: name 'x' is not defined"


@pytest.mark.parametrize("code", ["print('a' * 5000)", "print('a' * 10**8)", "'a' * 5000", "raise ValueError('a' * 5000)", "\ud83d",
                                  "x" * 20_001, "(" * 10_000, "-" * 15_000 + "1", "import os\nos.abort()"])  # fmt: skip
def test_it_is_short_whatever_comes(python: Python, code: str) -> None:
    assert 0 < len(python.use(code)) <= SHOWN


def test_how_runs_are_told() -> None:
    def told(ended: str, stdout: str = "", stderr: str = "", code: int | None = 1) -> str:
        return describe_outcome(Outcome(ended=ended, stdout=stdout, stderr=stderr, exit_code=code, seconds=0.1))  # type: ignore[arg-type]

    assert told("timeout", "1\n", code=None) == "1\nerror: it took too long"
    assert told("output", "a" * 5000).endswith("aa…\nerror: it printed too much")
    assert len(told("output", "a" * 5000)) == SHOWN
    assert told("error", stderr="Traceback\nKeyError: 3\n") == "KeyError: 3"
    assert told("killed", code=137) == "error: exit code 137"
    assert told("ok", "a" * (SHOWN - 1)) == "a" * (SHOWN - 1)


def test_code_in_a_fence() -> None:
    assert strip_fence("```python\nx\n  y\n```") == "x\n  y"
    assert strip_fence("```\nx\n```") == "x"
    assert strip_fence("\n  x\n") == "  x"
    assert strip_fence("```") == "```"


def test_a_broken_sandbox_is_told_and_a_missing_one_refused(python: Python, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Outcome:
        raise SandboxBroken("gone")

    def missing() -> None:
        raise MarftError("install bubblewrap")

    monkeypatch.setattr(tool_module, "run", broken)
    assert python.use("1") == "error: the sandbox is not available"
    monkeypatch.setattr(tool_module, "require_sandbox", missing)
    with pytest.raises(MarftError, match="install bubblewrap"):
        make_tool("python", 30.0)


def test_what_it_tells_the_agent(python: Python) -> None:
    assert "<python>print(sum(range(10)))</python>" in python.help
    assert "\n" not in python.help
