"""What decides every task of a reasoning environment: equal recipes make equal tasks in every process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Which of reasoning-gym's tasks with which settings, the seed, the share that is held out, and the instruction."""

    tasks: Mapping[str, Mapping[str, Any]]  # settings by the task's name
    seed: int
    held_out: float
    instruction: str


def read_tasks(task: object) -> dict[str, dict[str, Any]]:
    """Settings by name from `NAME`, `[NAME, …]` or `{NAME: {setting: value}}`."""
    if isinstance(task, str):
        task = [task]
    if isinstance(task, list | tuple):
        named: dict[Any, Any] = {name: {} for name in task if isinstance(name, str)}
        if len(named) != len(task):
            raise ValueError(f"task lists something twice or something that is no name: {task!r}")
    elif isinstance(task, Mapping):
        named = {name: {} if settings is None else settings for name, settings in task.items()}
    else:
        raise ValueError(f"task must be a name, a list of names or a mapping of names to settings, not {task!r}")
    if not named:
        raise ValueError("task names no task; give at least one, such as chain_sum")
    for name, settings in named.items():
        if not isinstance(name, str) or not isinstance(settings, Mapping):
            raise ValueError(f"task: {name!r} needs a mapping of settings, such as {{min_terms: 2}}, not {settings!r}")
    try:
        plain: dict[str, dict[str, Any]] = json.loads(json.dumps(named))
    except (TypeError, ValueError) as error:
        raise ValueError(f"task: settings must be plain values as in a YAML file: {error}") from None
    return plain
