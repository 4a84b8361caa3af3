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

from marft.envs.code.cases import NoTests, call_tests, stdio_tests, tests_from_cases, tests_from_columns
from marft.types import MarftError, Task

Row = Mapping[str, Any]
BLOCK = "Reply with the whole program in one ```python block."
READS_AND_WRITES = "Write a Python program that reads from standard input and writes to standard output."
CASES = ("public_tests", "private_tests", "generated_tests")


def mbpp(row: Row, most: int) -> tuple[str, dict[str, Any]]:
    """MBPP, and its sanitized edition: one assert is shown, as is customary, since it tells the function's name."""
    tests = [str(test) for test in row["test_list"]]
    setup = "\n".join([*row.get("test_imports", ()), row.get("test_setup_code") or ""])
    used = {
        node.id for source in (setup, *tests) for node in ast.walk(parse_quietly(source)) if isinstance(node, ast.Name)
    }
    asked = [name for name in defined_names(str(row["code"])) if name in used]
    text = str(row["text"] if "text" in row else row["prompt"])
    prompt = (
        f"{text}\nYour program must define what this test calls, and pass it:\n{tests[0] if tests else ''}\n{BLOCK}"
    )
    return prompt, call_tests(tests, asked, most, setup=setup)


def humaneval(row: Row, most: int) -> tuple[str, dict[str, Any]]:
    """HumanEval: its prompt is the beginning of the program, with imports and what the tests use beside the function."""
    given, name = str(row["prompt"]), str(row["entry_point"])
    prompt = f"Complete this function:\n```python\n{given.rstrip()}\n```\n{BLOCK}"
    return prompt, call_tests([f"check({name})"], [name], most, given=given, setup=str(row["test"]))


def deepcoder(row: Row, most: int) -> tuple[str, dict[str, Any]]:
    """DeepCoder: a problem, and tests in columns or as cases."""
    return problem_prompt(str(row["problem"]), row, tests_from_columns(row, most))


def code_contests(row: Row, most: int) -> tuple[str, dict[str, Any]]:
    """CodeContests: public, private and generated tests of standard input and output."""
    parts = [row[name] for name in CASES if row.get(name)]
    inputs, outputs = ([text for part in parts for text in part[key]] for key in ("input", "output"))
    return problem_prompt(str(row["description"]), row, stdio_tests(inputs, outputs, most))


def livecodebench(row: Row, most: int) -> tuple[str, dict[str, Any]]:
    """LiveCodeBench: public and packed private tests."""
    cases = [
        *json.loads(row["public_test_cases"]),
        *json.loads(unpack_private_tests(row.get("private_test_cases") or "[]")),
    ]
    return problem_prompt(str(row["question_content"]), row, tests_from_cases(cases, row, most))


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


def problem_prompt(problem: str, row: Row, tests: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The problem and the form of its answer: a program, or a function with the head that the task gives."""
    if tests["kind"] == "stdio":
        return f"{problem.strip()}\n{READS_AND_WRITES} {BLOCK}", tests
    starter = str(row.get("starter_code") or "").strip()
    head = f"Begin with:\n```python\n{starter}\n```\n" if starter else ""
    return f"{problem.strip()}\n{head}Write the function `{tests['asked'][0]}`. {BLOCK}", tests


def parse_quietly(source: str) -> ast.Module:
    """The syntax tree, without warnings about the source."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a reference solution with an odd escape is still one
        return ast.parse(source)


def defined_names(source: str) -> list[str]:
    """What a reference solution defines at its top level."""
    names = []
    for node in parse_quietly(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [*dict.fromkeys(names)]


def unpack_private_tests(text: str) -> str:
    """LiveCodeBench packs its private tests as base64 of a zipped pickle of one text; the text is read, not unpickled."""
    if text.lstrip().startswith("["):
        return text
    packed = zlib.decompress(base64.b64decode(text))
    return next(str(value) for step, value, _ in pickletools.genops(packed) if "UNICODE" in step.name)
