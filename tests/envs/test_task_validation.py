"""Tasks as environments list them: a row that cannot be played is told apart, and the others are as they were."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import pytest
import toys

from marft.envs.base import GeneratedTasks, Split
from marft.envs.hosting import InProcess
from marft.envs.hosting.host import Deadlines
from marft.envs.task_validation import load_tasks, validate_task
from marft.types import BadTask, MarftError, Task

GOOD = Task(id="a", prompt="Add 1 and 2.", data={"answer": 3})


class Hostile(str):
    __slots__ = ()

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise RuntimeError("no bytes")


class Torn(Task):
    """Its prompt cannot be had."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name == "prompt":
            raise RuntimeError("no prompt")
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("row", "flaw"),
    [
        (None, "is a NoneType, not a marft.Task"),
        ({"id": "a", "prompt": "b"}, "is a dict, not a marft.Task"),
        (Task(id=3, prompt="x"), "has an id that is no text"),  # type: ignore[arg-type]
        (Task(id="x" * 2_000, prompt="x"), "has an id that is no text of at most 1,000 characters"),
        (Task(id="a", prompt=None), "has a prompt that is NoneType, not str"),  # type: ignore[arg-type]
        (Task(id="a", prompt="1 + \udc80?"), "has a prompt that holds half of a surrogate pair (\\udc80, character 4)"),
        (Task(id="a", prompt="x" * 5_000_000), "has a prompt that is 5,000,000 characters long"),
        (Task(id="a", prompt="x", data=[1]), "has data that is list, not a mapping"),  # type: ignore[arg-type]
        (Torn(id="a", prompt="x"), "cannot be read: RuntimeError: no prompt"),
    ],
)
def test_a_row_that_cannot_be_played_says_why(row: Any, flaw: str) -> None:
    found = validate_task(row, "train/7")
    assert isinstance(found, BadTask)
    assert found.flaw.startswith(flaw)
    f"{found.id}{found.prompt}{found.flaw}".encode()
    assert len(found.prompt) < 20_000


def test_a_good_row_is_the_very_same() -> None:
    assert validate_task(GOOD, "train/7") is GOOD


def test_an_id_is_spelled_so_that_it_can_be_written() -> None:
    assert validate_task(Task(id="\ud800", prompt="x"), "n") == Task(id="\\ud800", prompt="x")


def test_texts_of_other_classes_become_plain() -> None:
    found = validate_task(Task(id=Hostile("a"), prompt=Hostile("b"), data=MappingProxyType({"x": 1})), "n")
    assert (found.id, found.prompt, found.data["x"]) == ("a", "b", 1)
    assert {type(found.id), type(found.prompt)} == {str}


class Rows(GeneratedTasks):
    def __len__(self) -> int:
        return 4

    def make(self, index: int) -> Task:
        match index:
            case 0:
                raise SystemExit("out of paper")
            case 1:
                time.sleep(600)
            case 2:
                return Task(id="c", prompt="\ud800")
        return GOOD


class Lists(toys.Echo):
    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows = rows

    def tasks(self, split: Split) -> Any:
        return self.rows() if callable(self.rows) else self.rows


def test_tasks_that_are_made_on_demand_are_looked_at_when_they_are_made() -> None:
    tasks = load_tasks(Lists(Rows()), "train", row_deadline=0.3)
    flaws = [task.flaw if isinstance(task, BadTask) else task for task in tasks]
    assert flaws == [
        "could not be made: SystemExit: out of paper",
        "took more than 0.3 s to make (env.deadline)",
        "has a prompt that holds half of a surrogate pair (\\ud800, character 0), which is no text",
        GOOD,
    ]


def hang() -> Sequence[Task]:
    time.sleep(600)
    return [GOOD]


def spin() -> Sequence[Task]:
    while True:
        try:
            while True:
                pass
        except Exception:
            pass


class NoLength(Rows):
    def __len__(self) -> int:
        time.sleep(600)
        return 1


def endless() -> Iterator[Task]:
    while True:
        yield GOOD


@pytest.mark.parametrize("rows", [hang, spin, NoLength])
def test_a_listing_that_hangs_ends_in_one_line(rows: Any) -> None:
    started = time.monotonic()
    with pytest.raises(MarftError) as caught:
        load_tasks(Lists(rows), "train", deadline=0.3)
    assert str(caught.value) == (
        "environment.tasks('train') took more than 0.3 s (env.tasks_deadline); give it more, or look for what it waits for"
    )
    assert time.monotonic() - started < 10


def leave() -> Sequence[Task]:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("rows", "line"),
    [(leave, "raised SystemExit: 3"), (endless, "raised TypeError: object of type 'generator' has no len()"), ([], "is empty")],
)  # fmt: skip
def test_a_listing_that_fails_ends_in_one_line(rows: Any, line: str) -> None:
    with pytest.raises(MarftError) as caught:
        load_tasks(Lists(rows), "train")
    assert str(caught.value).startswith(f"environment.tasks('train') {line}")


@pytest.mark.parametrize(
    ("gold", "shown"),
    [
        (
            lambda: "\ud800",
            "(environment.gold returned a text that holds half of a surrogate pair (\\ud800, character 0), ",
        ),
        (lambda: leave(), "(environment.gold raised SystemExit: 3)"),
        (lambda: time.sleep(600), "(environment.gold took more than 0.3 s (env.deadline))"),
        (lambda: 5, "5"),
    ],
)
def test_a_gold_that_fails_is_quoted_in_its_place(gold: Any, shown: str) -> None:
    class Golden(toys.Echo):
        def gold(self, task: Task) -> Any:
            return gold()

    host = InProcess(Golden(), deadlines=Deadlines(tasks=1.0, call=0.3))
    assert str(host.gold(GOOD)).startswith(shown)
    assert host.gold(BadTask(id="a", prompt="", flaw="x")) is None
