"""Rows of the publishers' formats as tasks."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from marft.envs.code.formats import read_task
from marft.envs.code.grading import Allowance, passed_tests
from marft.envs.sandbox import require_sandbox
from marft.envs.sandbox.limits import MIB
from marft.types import MarftError

DATA = Path(__file__).parents[3] / "shared" / "data"
ALLOWANCE = Allowance(seconds=2.0, together=20.0, memory=512 * MIB)
MBPP = {
    "text": "Write a function to add.",
    "code": "def add(a, b):\r\n  return a + b",
    "task_id": 1,
    "test_setup_code": "",
    "test_list": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"],
    "challenge_test_list": [],
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    \"\"\" Add them up.\n    >>> total([1])\n    1\n    \"\"\"\n",
    "canonical_solution": "    return sum(xs)\n",
    "test": "METADATA = {'author': 'x'}\n\n\ndef check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
    "entry_point": "total",
}  # fmt: skip
CONTEST = {
    "description": "Double it.",
    "public_tests": {"input": ["1\n"], "output": ["2\n"]},
    "private_tests": {"input": ["2\n"], "output": ["4\n"]},
    "generated_tests": {"input": [], "output": []},
}
CASES = [
    {"input": "[1, 2]\n3", "output": "[1, 2, 3]", "testtype": "functional"},
    {"input": "[]\n1", "output": "[1]", "testtype": "functional"},
]
LIVE = {
    "question_content": "Append.",
    "starter_code": "class Solution:\n    def append(self, xs, x):\n        ",
    "public_test_cases": json.dumps(CASES[:1]),
    "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(json.dumps(CASES[1:])))).decode(),
    "metadata": json.dumps({"func_name": "append"}),
}
DOUBLE = "print(2 * int(input()))"
APPEND = "class Solution:\n    def append(self, xs, x): return xs + [x]"
SUM = "def total(*xs): return sum(xs)"
ROWS: dict[str, tuple[dict[str, Any], str, int]] = {  # a row, a program that solves it, how many tests it has
    "mbpp": (MBPP, MBPP["code"], 2),  # type: ignore[dict-item]
    "mbpp, sanitized": ({"prompt": "Add.", "code": "import math\ndef add(a): return math.ceil(a)", "test_imports": ["import math"], "test_list": ["assert add(0.5) == math.ceil(0.5)"]}, "def add(a): return 1", 1),
    "mbpp, a builtin's name": ({**MBPP, "code": "def sum(a, b): pass", "test_list": ["assert sum(10, 15) == 6"]}, "def sum(a, b): return 6", 1),
    "humaneval": (HUMANEVAL, "def total(xs: List[int]) -> int:\n    return sum(xs)", 1),
    "code_contests": (CONTEST, DOUBLE, 2),
    "livecodebench": (LIVE, APPEND, 2),
    "livecodebench, stdin": ({"question_content": "x", "public_test_cases": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}]), "private_test_cases": "[]", "metadata": "{}"}, DOUBLE, 1),
    "deepcoder": ({"problem": "Double it.", "tests": {"inputs": ["1", "2"], "outputs": ["2", "4"]}}, DOUBLE, 2),
    "deepcoder, text": ({"problem": "x", "tests": json.dumps({"inputs": ["1"], "outputs": ["2"]})}, DOUBLE, 1),
    "deepcoder, lines": ({"problem": "x", "tests": {"inputs": [["1", ""]], "outputs": [["2"]]}}, DOUBLE, 1),
    "deepcoder, taco function": ({"problem": "x", "tests": {"fn_name": "total", "inputs": [[1, 2]], "outputs": [[3]]}}, SUM, 1),
    "deepcoder, primeintellect": ({"problem": "x", "tests": json.dumps([{"type": "function_call", "fn_name": "total", "input": [1, 2], "output": [3]}])}, SUM, 1),
    "deepcoder, primeintellect stdin": ({"problem": "x", "tests": json.dumps([{"type": "stdin_stdout", "input": "1\n", "output": "2\n"}])}, DOUBLE, 1),
    "deepcoder, livecodebench": ({"problem": "x", "tests": json.dumps([{**case, "metadata": {"func_name": "append"}} for case in CASES])}, APPEND, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_solution_passes_and_nothing_does_not(name: str) -> None:
    row, program, count = ROWS[name]
    try:
        require_sandbox()
    except MarftError as error:
        pytest.skip(str(error))
    task = read_task(row, "x/0", 15)
    assert passed_tests(program, task.data["tests"], ALLOWANCE, stop=False) == (True,) * count
    assert not any(passed_tests("def sum(a, b): return -1\nprint(-1)", task.data["tests"], ALLOWANCE, stop=False))
    assert json.loads(json.dumps(dict(task.data))) == task.data
    assert "```python block" in task.prompt


def test_what_the_prompts_say() -> None:
    assert read_task(MBPP, "m/0", 15).prompt == (
        "Write a function to add.\nYour program must define what this test calls, and pass it:\n"
        "assert add(1, 2) == 3\nReply with the whole program in one ```python block."
    )
    assert "== 4" not in read_task(MBPP, "m/0", 15).prompt
    shown = read_task(HUMANEVAL, "h/0", 15).prompt
    assert shown.startswith("Complete this function:\n```python\nfrom typing import List")
    assert "candidate" not in shown
    assert "reads from standard input" in read_task(CONTEST, "c/0", 15).prompt
    live = read_task(LIVE, "l/0", 15).prompt
    assert "Begin with:\n```python\nclass Solution:" in live
    assert "Write the function `append`." in live


def test_of_many_tests_the_longest_inputs_are_kept_in_their_order() -> None:
    row = {"problem": "x", "tests": {"inputs": ["aaa", "b", "cc", "dddd", "ee"], "outputs": list("12345")}}
    tests = read_task(row, "x/0", 3).data["tests"]
    assert (tests["inputs"], tests["outputs"]) == (["aaa", "cc", "dddd"], ["1", "3", "4"])


def test_a_pickle_is_read_and_not_run() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return pytest.fail, ("it was unpickled",)

    packed = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with pytest.raises(MarftError, match="x/0 is not livecodebench"):
        read_task({**LIVE, "private_test_cases": packed}, "x/0", 15)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"question": "?", "answer": "!"}, "no column with tests .*; its columns: question, answer"),
        ({**MBPP, "test_list": []}, "is not mbpp: NoTests"),
        ({**MBPP, "test_list": ["assert other(1) == 1"]}, "is not mbpp: NoTests"),  # nothing that the program defines
        ({**MBPP, "test_list": ["assert add(("]}, "is not mbpp: SyntaxError"),
        ({**MBPP, "test_list": None}, "is not mbpp: TypeError"),
        ({"problem": "x", "tests": "{"}, "is not deepcoder: JSONDecodeError"),
        ({"problem": "x", "tests": []}, "is not deepcoder: NoTests"),
        ({"problem": "x", "tests": {"inputs": ["1"], "outputs": []}}, "is not deepcoder: NoTests: 1 inputs and 0 outputs"),
        ({"problem": "x", "tests": 7}, "is not deepcoder: AttributeError"),
        ({"tests": {"inputs": ["1"], "outputs": ["1"]}}, "is not deepcoder: KeyError: 'problem'"),
        ({**CONTEST, "public_tests": {}, "private_tests": {}}, "is not code_contests: NoTests"),
        ({**LIVE, "private_test_cases": "!"}, "is not livecodebench"),
        ({"entry_point": "f", "test": "x"}, "is not humaneval: KeyError: 'prompt'"),
    ],
)  # fmt: skip
def test_rows_that_are_not_what_they_seem(row: dict[str, Any], line: str) -> None:
    with pytest.raises(MarftError, match=f"^x/0.* ?{line}"):
        read_task(row, "x/0", 15)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the published sets are not here ({DATA})")
def test_every_published_row_is_a_task() -> None:
    rows = [json.loads(line) for line in (DATA / "mbpp.jsonl").read_text().splitlines()]
    tasks = [read_task(row, f"mbpp/{i}", 15) for i, row in enumerate(rows)]
    assert sum(len(task.data["tests"]["tests"]) for task in tasks) == sum(len(row["test_list"]) for row in rows) == 2922
    rows = json.loads((DATA / "deepcoder_code_contests_test.json").read_text())
    tasks = [read_task(row, f"deepcoder/{i}", 10_000) for i, row in enumerate(rows)]
    assert len(tasks) == 165
    assert sum(len(task.data["tests"]["outputs"]) for task in tasks) == 1837
    assert max(len(read_task(row, "x", 15).data["tests"]["outputs"]) for row in rows) == 15
