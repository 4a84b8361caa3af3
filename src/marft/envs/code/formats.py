"""Rows of the publishers' formats as tasks, recognised by their columns."""

from __future__ import annotations

import ast
import base64
import json
import pickletools
import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from marft.envs.code.tests import NoTests, calls, from_cases, from_columns, stdio
from marft.types import MarftError, Task

Row = Mapping[str, Any]
BLOCK = "Reply with the whole program in one ```python block."
READS_AND_WRITES = "Write a Python program that reads from standard input and writes to standard output."
CASES = ("public_tests", "private_tests", "generated_tests")


def mbpp(row: Row, most: int) -> tuple[str, dict[str, Any]]:
    """MBPP, and its sanitized edition: one assert is shown, as is customary, since it tells the function's name."""
    tests = [str(test) for test in row["test_list"]]
    setup = "\n".join([*row.get("test_imports", ()), row.get("test_setup_code") or ""])
    used = {node.id for source in (setup, *tests) for node in ast.walk(parse(source)) if isinstance(node, ast.Name)}
    asked = [name for name in defined(str(row["code"])) if name in used]
    text = str(row["text"] if "text" in row else row["prompt"])
    prompt = (
        f"{text}\nYour program must define what this test calls, and pass it:\n{tests[0] if tests else ''}\n{BLOCK}"
    )
    return prompt, calls(tests, asked, most, setup=setup)


def humaneval(row: Row, most: int) -> tuple[str, dict[str, Any]]:
    """HumanEval: its prompt is the beginning of the program, with imports and what the tests use beside the function."""
    given, name = str(row["prompt"]), str(row["entry_point"])
    prompt = f"Complete this function:\n```python\n{given.rstrip()}\n```\n{BLOCK}"
    return prompt, calls([f"check({name})"], [name], most, given=given, setup=str(row["test"]))


def deepcoder(row: Row, most: int) -> tuple[str, dict[str, Any]]:
    return asking(str(row["problem"]), row, from_columns(row, most))


def code_contests(row: Row, most: int) -> tuple[str, dict[str, Any]]:
    parts = [row[name] for name in CASES if row.get(name)]
    inputs, outputs = ([text for part in parts for text in part[key]] for key in ("input", "output"))
    return asking(str(row["description"]), row, stdio(inputs, outputs, most))


def livecodebench(row: Row, most: int) -> tuple[str, dict[str, Any]]:
    cases = [*json.loads(row["public_test_cases"]), *json.loads(plain(row.get("private_test_cases") or "[]"))]
    return asking(str(row["question_content"]), row, from_cases(cases, row, most))


FORMATS: dict[str, Callable[[Row, int], tuple[str, dict[str, Any]]]] = {
    "test_list": mbpp,
    "entry_point": humaneval,
    "public_test_cases": livecodebench,
    "public_tests": code_contests,
    "tests": deepcoder,
}


def read_task(row: Row, name: str, most: int) -> Task:
    """A row as a task with at most `most` tests."""
    form = next((form for column, form in FORMATS.items() if column in row), None)
    if form is None:
        known = ", ".join(FORMATS)
        raise MarftError(f"{name}: no column with tests ({known}); its columns: {', '.join(row)}")
    try:
        prompt, tests = form(row, most)
    except (NoTests, KeyError, TypeError, ValueError, AttributeError, SyntaxError, zlib.error) as error:
        raise MarftError(f"{name} is not {form.__name__}: {type(error).__name__}: {error}") from None
    return Task(id=name, prompt=prompt, data={"tests": tests})


def asking(problem: str, row: Row, tests: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The problem and the form of its answer: a program, or a function with the head that the task gives."""
    if tests["kind"] == "stdio":
        return f"{problem.strip()}\n{READS_AND_WRITES} {BLOCK}", tests
    starter = str(row.get("starter_code") or "").strip()
    head = f"Begin with:\n```python\n{starter}\n```\n" if starter else ""
    return f"{problem.strip()}\n{head}Write the function `{tests['asked'][0]}`. {BLOCK}", tests


def parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a reference solution with an odd escape is still one
        return ast.parse(source)


def defined(source: str) -> list[str]:
    """What a reference solution defines at its top level."""
    names = []
    for node in parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [*dict.fromkeys(names)]


def plain(text: str) -> str:
    """LiveCodeBench packs its private tests as base64 of a zipped pickle of one text; the text is read, not unpickled."""
    if text.lstrip().startswith("["):
        return text
    packed = zlib.decompress(base64.b64decode(text))
    return next(str(value) for step, value, _ in pickletools.genops(packed) if "UNICODE" in step.name)
