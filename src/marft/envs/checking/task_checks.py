"""Checks of the tasks: what they are made of, that the splits share none, and that they are always the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from marft.envs.base import Split
from marft.envs.checking.checked_env import READ, SPLITS, CheckedEnv
from marft.envs.checking.finding import Finding
from marft.types import Task

ANSWERS = ("answer", "solution")  # what tasks usually call it


def check_tasks(checked: CheckedEnv) -> Iterator[Finding]:
    """Both splits have tasks, each well formed and with an id of its own."""
    for split in SPLITS:
        size, found = checked.tasks(split)
        if not size:
            raise checked.violation("tasks", f"tasks({split!r}) is empty; give it at least one task")
        for i, task in enumerate(found):
            if wrong := task_flaw(task):
                raise checked.violation("tasks", f"task {i} of {split!r} {wrong}")
        twice = [name for name, count in Counter(task.id for task in found).items() if count > 1]
        if twice:
            raise checked.violation("tasks", f"two tasks of {split!r} have the id {twice[0]!r}; give each its own")
    sizes = {split: checked.tasks(split)[0] for split in SPLITS}
    read = f" (the first {READ:,} of each were read)" if max(sizes.values()) > READ else ""
    yield Finding(check="tasks", ok=True, text=f"{sizes['train']:,} for training, {sizes['test']:,} held out{read}")


def task_flaw(task: object) -> str | None:
    """What is wrong with one task, and the remedy; None where nothing is."""
    if not isinstance(task, Task):
        return f"is a {type(task).__name__}; make it a marft.Task(id=…, prompt=…, data=…)"
    if not isinstance(task.id, str) or not task.id:
        return f"has the id {task.id!r}; give it a text of its own"
    if not isinstance(task.prompt, str) or not task.prompt.strip():
        return f"has the prompt {task.prompt!r}; agents need a text to work on"
    if not hasattr(task.data, "keys"):
        return f"has a {type(task.data).__name__} as data; make it a dict, as in data={{'answer': …}}"
    return None


def check_splits(checked: CheckedEnv) -> Iterator[Finding]:
    """Train and test share neither ids nor prompts."""
    train, test = (checked.tasks(split)[1] for split in SPLITS)
    ids, prompts = ({getattr(t, what) for t in train} & {getattr(t, what) for t in test} for what in ("id", "prompt"))
    for what, shared in (("ids", ids), ("prompts", prompts if not checked.overrides_observe else set())):
        if shared:
            wrong = f"train and test share {len(shared)} of their {what}, such as {min(shared)[:40]!r}"
            raise checked.violation("tasks", f"{wrong}; held-out tasks must be new")
    if prompts:
        text = f"train and test share {len(prompts)} of their prompts; fine where tasks differ in what observe shows"
        yield Finding(check="splits", ok=None, text=text)
    else:
        yield Finding(check="splits", ok=True, text="train and test share no id and no prompt")


def check_hidden_answers(checked: CheckedEnv) -> Iterator[Finding]:
    """Only a note: in some tasks the answer has to be found in the prompt."""
    found = checked.tasks("train")[1]
    for key in ANSWERS:
        shown = [task for task in found if key in task.data and occurs_in(task.prompt, str(task.data[key]))]
        if 2 * len(shown) > len(found):
            text = f"data[{key!r}] stands in the prompt of {len(shown)} of {len(found)} tasks; an agent may only have to copy it"
            yield Finding(check="hidden answers", ok=None, text=text)
            return
    yield Finding(check="hidden answers", ok=True, text="prompts do not give the answer away")


def check_gold(checked: CheckedEnv) -> Iterator[Finding]:
    """The right answer that people are shown in transcripts."""
    given = 0
    for task in checked.samples:
        one, two = (checked.ask("gold", task, on=f"task {task.id!r}") for _ in range(2))
        if one is not None and not isinstance(one, str):
            text = f"gold gave {type(one).__name__}; return a text, or None where there is none to show"
            raise checked.violation("gold", text)
        if one != two:
            raise checked.violation("gold", "gold gave two answers for one task; it may depend on the task alone")
        given += one is not None
    text = f"given for {given} of {len(checked.samples)} tasks; people see it, agents do not"
    yield Finding(check="gold", ok=True, text=text if given else "no right answers to show")


def occurs_in(prompt: str, answer: str) -> bool:
    """Whether the prompt holds the answer as whole words."""
    return bool(answer.strip()) and re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", prompt) is not None


def task_fingerprints(checked: CheckedEnv, split: Split) -> list[str]:
    """One for each task read, the same in every process where the tasks are."""
    return [checked.fingerprint(task, f"task {task.id!r}") for task in checked.tasks(split)[1]]


def check_same_tasks(checked: CheckedEnv) -> Iterator[Finding]:
    """A second instance in this process has the same tasks."""
    for split in SPLITS:
        size, again = checked.read(split, checked.build())
        if size != checked.tasks(split)[0] or [
            checked.fingerprint(task, "a task") for task in again
        ] != task_fingerprints(checked, split):
            text = f"a second instance has other tasks for {split!r}"
            raise checked.violation("tasks", f"{text}; draw with random.Random(seed), never with random itself")
    yield Finding(check="same tasks", ok=True, text="a second instance has the same")
