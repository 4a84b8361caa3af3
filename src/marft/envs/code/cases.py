"""The tests of a task, in the two kinds that there are, as plain data that can be written as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from marft.envs.code.remote_tests import SAME

Case = TypeVar("Case")
FEW, SHOWN = 5, 300  # tests that are described, and characters of each; some are megabytes


class NoTests(ValueError):
    """A row whose tests are missing or cannot be understood."""


def stdio_tests(inputs: Sequence[str], outputs: Sequence[str], most: int) -> dict[str, Any]:
    """Cases of input and output; of more than `most`, those with the longest inputs, in their own order."""
    if not outputs or len(inputs) != len(outputs):
        raise NoTests(f"{len(inputs)} inputs and {len(outputs)} outputs")
    cases = keep_longest([*zip(inputs, outputs, strict=True)], most, key=lambda case: len(case[0]))
    return {"kind": "stdio", "inputs": [a for a, _ in cases], "outputs": [b for _, b in cases]}


def call_tests(
    tests: Sequence[str], asked: Sequence[str], most: int, *, given: str = "", setup: str = ""
) -> dict[str, Any]:
    """Tests as source; `asked` are the names that the program must define. `given` comes before program and tests."""
    if not tests or not asked:
        raise NoTests("no tests, or no function that they call")
    chosen = keep_longest([*tests], most, key=len)
    return {"kind": "calls", "given": given, "setup": setup, "asked": [*asked], "tests": chosen}


def keep_longest(cases: list[Case], most: int, key: Callable[[Case], int]) -> list[Case]:
    """The `most` largest cases by `key`, in the order they came in."""
    kept = sorted(sorted(range(len(cases)), key=lambda at: -key(cases[at]))[:most])
    return [cases[at] for at in kept]


def assert_call(function: str, arguments: Sequence[Any], expected: Any, *, wrapped: bool) -> str:
    """The test that `function` gives `expected`; both come from JSON, so their text is a literal."""
    return f"assert {SAME}({function}(*{list(arguments)!r}), {expected!r}, {wrapped})"


def tests_from_columns(row: Mapping[str, Any], most: int) -> dict[str, Any]:
    """`tests` as DeepCoder has them: columns of inputs and outputs, or a list of cases; as data or as JSON text."""
    tests = row["tests"]
    if isinstance(tests, str):
        tests = json.loads(tests)
    if isinstance(tests, list):
        return tests_from_cases(tests, row, most)
    function = tests.get("fn_name")
    if not function:
        return stdio_tests([*map(join_lines, tests["inputs"])], [*map(join_lines, tests["outputs"])], most)
    pairs = zip(tests["inputs"], tests["outputs"], strict=True)
    return call_tests([assert_call(function, *parse_arguments(a, b), wrapped=True) for a, b in pairs], [function], most)


def tests_from_cases(cases: Sequence[Mapping[str, Any]], row: Mapping[str, Any], most: int) -> dict[str, Any]:
    """One mapping per case with `input` and `output`, and where it calls a function, the function's name."""
    if not cases:
        raise NoTests("no cases")
    metadata = cases[0].get("metadata") or row.get("metadata") or {}
    metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
    function = cases[0].get("fn_name") or metadata.get("func_name")
    if not function:
        return stdio_tests(
            [join_lines(case["input"]) for case in cases], [join_lines(case["output"]) for case in cases], most
        )
    wrapped = not isinstance(cases[0]["input"], str)
    tests = [assert_call(function, *parse_arguments(case["input"], case["output"]), wrapped=wrapped) for case in cases]
    return call_tests(tests, [function], most)


def describe_tests(tests: Mapping[str, Any]) -> str:
    """What a program must do, for people: the first tests, each by its beginning."""
    if tests["kind"] == "stdio":
        cases = [f"{given!r} → {wanted!r}" for given, wanted in zip(tests["inputs"], tests["outputs"], strict=True)]
    else:
        cases = list(tests["tests"])
    shown = [case if len(case) <= SHOWN else f"{case[:SHOWN]}…" for case in cases[:FEW]]
    return "\n".join([f"passes {len(cases)} tests:", *shown, *(["…"] if len(cases) > FEW else [])])


def parse_arguments(given: Any, expected: Any) -> tuple[list[Any], Any]:
    """Arguments as a list, or as text with one JSON value per line (LiveCodeBench)."""
    if isinstance(given, str):
        return [json.loads(line) for line in given.split("\n") if line.strip()], json.loads(expected)
    return [*given], expected


def join_lines(text: Any) -> str:
    """Some sets hold a text as the list of its lines."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)
