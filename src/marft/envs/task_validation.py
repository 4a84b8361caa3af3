"""The tasks of a split as an environment lists them, each looked at before anybody plays it.

A row that cannot be played (half a surrogate pair, a prompt that is no text, no task at all) becomes a BadTask, whose
episodes fail and say why: one bad row of many thousands does not end a run.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marft.envs.base import Environment, GeneratedTasks, Split
from marft.envs.deadlines import DeadlineExceeded, interrupt_after
from marft.types import BadTask, MarftError, Task
from marft.untrusted_values import described, escaped, exact, flaw_of, kind_of, shortened

LONGEST_ID = 1_000  # characters
# what the user's code may raise; a KeyboardInterrupt is somebody's at the keyboard
UNREADABLE = (Exception, SystemExit, GeneratorExit, CancelledError, BaseExceptionGroup)


def load_tasks(
    env: Environment[Any], split: Split, *, deadline: float | None = None, row_deadline: float | None = None
) -> Sequence[Task]:
    """The tasks of a split; an environment that has none, or fails to say in time, ends in one line."""
    call = f"environment.tasks({split!r})"
    late = (
        f"{call} took more than {deadline or 0:g} s (env.tasks_deadline); give it more, or look for what it waits for"
    )
    try:
        with interrupt_after(deadline, late):
            tasks = env.tasks(split)
            count = len(tasks)
            if isinstance(tasks, list | tuple):
                return require_tasks(call, [validate_task(task, f"{split}/{i}") for i, task in enumerate(tasks)])
    except MarftError:
        raise
    except DeadlineExceeded:
        raise MarftError(late) from None
    except UNREADABLE as error:
        raise MarftError(f"{call} raised {described(error)}") from error
    return require_tasks(call, ValidatedTasks(tasks, count, split, row_deadline))


def require_tasks(call: str, tasks: Sequence[Task]) -> Sequence[Task]:
    """The tasks, or MarftError where there are none."""
    if not tasks:
        raise MarftError(f"{call} is empty; give it at least one task")
    return tasks


class ValidatedTasks(GeneratedTasks):
    """Tasks that the environment makes when they are asked for, each under a deadline."""

    def __init__(self, made: Sequence[Task], count: int, split: Split, deadline: float | None) -> None:
        self._made, self._count, self._split, self._deadline = made, count, split, deadline

    def __len__(self) -> int:
        return self._count

    def make(self, index: int) -> Task:
        """A BadTask where it cannot be made in time."""
        name = f"{self._split}/{index}"
        late = f"task {name} took more than {self._deadline or 0:g} s to make (env.deadline)"
        try:
            with interrupt_after(self._deadline, late):
                return validate_task(self._made[index], name)
        except MarftError:
            raise
        except DeadlineExceeded:
            return BadTask(id=name, prompt="", flaw=f"took more than {self._deadline or 0:g} s to make (env.deadline)")
        except UNREADABLE as error:
            return BadTask(id=name, prompt="", flaw=f"could not be made: {described(error)}")

    def prefetch(self, indices: Sequence[int]) -> None:
        """Where the environment can make tasks ahead of time."""
        ahead: Callable[[Sequence[int]], None] | None = getattr(self._made, "prefetch", None)
        if ahead is not None:
            ahead(indices)


def validate_task(task: object, name: str) -> Task:
    """The task itself where it is as it should be. `name` stands for an id that cannot be had."""
    try:
        if not issubclass(type(task), Task):
            return BadTask(id=name, prompt="", flaw=f"is a {kind_of(task)}, not a marft.Task")
        assert isinstance(task, Task)
        return task if is_plain_task(task) else plain_copy(task, name)
    except UNREADABLE as error:
        return BadTask(id=name, prompt="", flaw=f"cannot be read: {described(error)}")


def is_plain_task(task: Task) -> bool:
    """Whether nothing of it has to be copied or refused."""
    kinds = (type(task), type(task.id), type(task.prompt), type(task.data))
    return (
        kinds == (Task, str, str, dict)
        and len(task.id) <= LONGEST_ID
        and not (flaw_of(task.id) or flaw_of(task.prompt))
    )


def plain_copy(task: Task, name: str) -> Task:
    """An id is only a name: it is spelled so that it can be written. What agents would read is not changed."""
    if not issubclass(type(task.id), str) or len(exact(task.id)) > LONGEST_ID:
        return BadTask(id=name, prompt="", flaw=f"has an id that is no text of at most {LONGEST_ID:,} characters")
    own = escaped(exact(task.id))
    if not issubclass(type(task.prompt), str):
        return BadTask(id=own, prompt="", flaw=f"has a prompt that is {kind_of(task.prompt)}, not str")
    prompt = exact(task.prompt)
    if (flaw := flaw_of(prompt)) is not None:
        return BadTask(id=own, prompt=shortened(prompt, 10_000), flaw=f"has a prompt that {flaw}")
    if not isinstance(task.data, Mapping):
        return BadTask(id=own, prompt=prompt, flaw=f"has data that is {kind_of(task.data)}, not a mapping")
    if isinstance(task, BadTask):
        return task
    return Task(id=own, prompt=prompt, data=task.data)
