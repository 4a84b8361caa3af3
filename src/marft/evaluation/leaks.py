"""Held-out tasks that also stand in the training data: found before a run begins, and told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from marft.config import Config
from marft.envs.base import Environment
from marft.envs.data import overlapping_tasks
from marft.envs.hosting import Host
from marft.evaluation.benchmarks import benchmarks_of, read_held_out_tasks

EXAMPLES = 3


def find_leaks(config: Config, host: Host) -> dict[str, Any]:
    """By benchmark: how many of its tasks the team will train on, and a few pairs of ids. Tasks that are made on demand
    are not gone through; their environment says how it keeps the splits apart."""
    train = host.tasks("train")
    hidden = type(host.env).observe is not Environment.observe  # what tells tasks apart may not be in the prompt
    if not config.eval.tasks or not isinstance(train, list) or hidden:
        return {}
    held_out = {config.env.name: host.tasks("test")}
    held_out |= {name: read_held_out_tasks(name, env) for name, env in benchmarks_of(config).items()}
    found: dict[str, Any] = {}
    for name, tasks in held_out.items():
        if isinstance(tasks, list) and (pairs := overlapping_tasks(train, tasks)):
            found[name] = {"tasks": len(pairs), "of": len(tasks), "examples": [list(p) for p in pairs[:EXAMPLES]]}
    return found


def describe_leaks(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each benchmark with leaked tasks, from what `find_leaks` returned."""
    for name, leak in found.items():
        pairs = ", ".join(f"{test} = {train}" for train, test in leak["examples"])
        yield (
            f"{leak['tasks']} of {leak['of']:,} held-out tasks of {name} also stand in the training data, or nearly so: "
            f"{pairs}{', …' if leak['tasks'] > len(leak['examples']) else ''}"
        )
