"""A team in another environment: where a benchmark's environment is opened and closed, and its tasks are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from marft.config import Config, EnvConfig
from marft.envs import make_env
from marft.envs.hosting import deadlines_of
from marft.envs.task_validation import load_tasks
from marft.evaluation.settings import eval_settings, with_settings
from marft.game.lockstep import Lockstep
from marft.rollouts.runner import EpisodeRunner
from marft.training.build import Assembly, open_host
from marft.types import MarftError, Task


@contextmanager
def open_benchmark(
    runner: EpisodeRunner, name: str, env: Mapping[str, Any], lockstep: Lockstep
) -> Iterator[EpisodeRunner]:
    """The same team at the environment of a benchmark, as long as it is played there."""
    with name_benchmark_in_errors(name):
        host = open_host(EnvConfig.model_validate(env), lockstep)
    with host:
        yield replace(runner, host=host)


@contextmanager
def evaluation_runner(
    config: Config, parts: Assembly, name: str, env: Mapping[str, Any] | None
) -> Iterator[EpisodeRunner]:
    """The team at a benchmark, sampling as evaluation does; without an `env` at the run's own environment."""
    settings = eval_settings(config)
    team = {each: with_settings(agent, settings) for each, agent in parts.runner.team.items()}
    runner = replace(parts.runner, team=team)
    if env is None:
        yield runner
        return
    with open_benchmark(runner, name, env, parts.lockstep) as there:
        yield there


def read_held_out_tasks(name: str, env: Mapping[str, Any]) -> Sequence[Task]:
    """The held-out tasks of a benchmark where nobody plays yet."""
    with name_benchmark_in_errors(name):
        config = EnvConfig.model_validate(env)
        deadlines = deadlines_of(config.name, config.deadline, config.tasks_deadline)
        made = make_env(config.name, config.settings)
        return load_tasks(made, "test", deadline=deadlines.tasks, row_deadline=deadlines.call)


def first_tasks(tasks: Sequence[Task], count: int) -> list[Task]:
    """The first `count` tasks, or all where there are fewer; no other is made."""
    return [tasks[i] for i in range(min(count, len(tasks)))]


@contextmanager
def name_benchmark_in_errors(name: str) -> Iterator[None]:
    """A mistake says in which benchmark it is."""
    try:
        yield
    except MarftError as error:
        line = str(error).replace("env.", f"eval.benchmarks.{name}.")
        raise MarftError(f"benchmark {name}: {line}", error.trace) from error
