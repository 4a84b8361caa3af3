"""Which held-out tasks a team is evaluated on, and how: the environments of benchmarks, their tasks, and the sampling there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from marft.config import Config, EnvConfig
from marft.envs import make_env
from marft.envs.data import KNOWN
from marft.envs.hosting import deadlines_of
from marft.envs.task_validation import load_tasks
from marft.game.agent import Agent
from marft.game.lockstep import Lockstep
from marft.rollouts.runner import EpisodeRunner
from marft.training.build import Assembly, open_host
from marft.types import MarftError, Task

OF_DATA = ("train", "test", "held_out", "prompt", "answer")  # they say how one data set is read, and no other


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """How held-out tasks are played; what is None is each agent's own."""

    tasks: int
    temperature: float | None
    top_p: float | None
    top_k: int | None
    benchmarks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the env of each


def eval_settings(config: Config) -> EvalSettings:
    """The settings of `config.eval`, with every benchmark's environment spelled out."""
    chosen = config.eval
    return EvalSettings(
        tasks=chosen.tasks,
        temperature=chosen.temperature,
        top_p=chosen.top_p,
        top_k=chosen.top_k,
        benchmarks=benchmarks_of(config),
    )


def benchmarks_of(config: Config) -> dict[str, dict[str, Any]]:
    """Each benchmark's environment: its own settings laid over the run's, unless they name another environment.

    A known data set has its own kind of environment. Another data set leaves behind how the run's own is read.
    """
    own, found = config.env.model_dump(mode="json"), {}
    for name, benchmark in config.eval.benchmarks.items():
        given, below = benchmark.given, own
        if "name" not in given and given.get("data") in KNOWN:
            given["name"] = KNOWN[given["data"]].kind
        if given.get("name", own["name"]) != own["name"]:
            below = {key: own[key] for key in ("deadline", "tasks_deadline", "workers")}
        elif given.get("data", own.get("data")) != own.get("data"):
            below = {key: value for key, value in own.items() if key not in OF_DATA}
        found[name] = {**below, **given}
    return found


def with_settings(agent: Agent, settings: EvalSettings) -> Agent:
    """The agent with evaluation's temperature, top_p and top_k, where these are set."""
    given = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": settings.top_k}
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return replace(agent, sampling=replace(agent.sampling, **chosen))


def with_eval_sampling(runner: EpisodeRunner, settings: EvalSettings) -> EpisodeRunner:
    """The whole team, sampling as evaluation does."""
    return replace(runner, team={name: with_settings(agent, settings) for name, agent in runner.team.items()})


# --- environments ----------------------------------------------------------------------------------------------------
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
    runner = with_eval_sampling(parts.runner, eval_settings(config))
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


# --- tasks -----------------------------------------------------------------------------------------------------------
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
