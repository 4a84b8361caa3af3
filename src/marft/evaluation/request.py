"""What `marft eval` is asked: which tasks of which benchmarks, of which weights, and in which chunks they are played."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.config import Config
from marft.evaluation.benchmarks import first_tasks, read_held_out_tasks
from marft.evaluation.folder import EvalRequest, Slot
from marft.evaluation.settings import benchmarks_of
from marft.training.build import Assembly
from marft.types import MarftError, Task

CHUNK = 2  # times as many episodes as are generated at once: they are lost together when the process is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A set of held-out tasks and the environment they are played in."""

    name: str
    env: Mapping[str, Any] | None  # None: the one that the team already plays in
    tasks: Mapping[str, Task]  # by their ids


def read_benchmarks(config: Config, parts: Assembly) -> list[Benchmark]:
    """Those of the config, else the run's own held-out tasks. All data is read before anything is played."""
    envs: dict[str, dict[str, Any] | None] = {**benchmarks_of(config)} or {config.env.name: None}
    found = []
    for name, env in envs.items():
        held_out = parts.runner.host.tasks("test") if env is None else read_held_out_tasks(name, env)
        chosen = first_tasks(held_out, config.eval.tasks)
        tasks = {task.id: task for task in chosen}
        if len(tasks) < len(chosen):
            raise MarftError(f"{name}: two held-out tasks have the same id; give each its own")
        found.append(Benchmark(name=name, env=env, tasks=tasks))
    return found


def make_request(config: Config, parts: Assembly, benchmarks: Sequence[Benchmark]) -> EvalRequest:
    """What an evaluation is asked: its config, and hashes of the weights and tasks it is about."""
    tasks = {each.name: tasks_digest(each.tasks.values()) for each in benchmarks}
    return EvalRequest(config=config, weights=weights_digest(parts), tasks=tasks)


def tasks_digest(tasks: Iterable[Task]) -> str:
    """SHA-256 of the tasks' ids and prompts, in their order, in hexadecimal."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(f"{task.id}\0{task.prompt}\0".encode(errors="replace"))
    return digest.hexdigest()


def weights_digest(parts: Assembly) -> str:
    """Of all adapters and of the bases below them."""
    digest = hashlib.sha256(parts.fingerprint.encode())
    for team in parts.teams:
        for name in team.adapters:
            for key, weight in sorted(team.trainable_parameters(name).items()):
                digest.update(f"{name}/{key}".encode())
                digest.update(weight.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def plan_chunks(config: Config, benchmarks: Sequence[Benchmark]) -> list[list[Slot]]:
    """What is played together, in order. Samples of a task stand side by side: their first prompt is computed once."""
    size = CHUNK * config.engine.slots
    chunks: list[list[Slot]] = []
    for benchmark in benchmarks:
        for silent in (None, *(config.team.agents if config.eval.ablate else ())):
            slots = [
                Slot(benchmark=benchmark.name, silent=silent, task=task, sample=sample)
                for task in benchmark.tasks
                for sample in range(config.eval.samples)
            ]
            chunks += [slots[i : i + size] for i in range(0, len(slots), size)]
    return chunks
