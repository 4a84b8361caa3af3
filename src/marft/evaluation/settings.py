"""How held-out tasks are played, and on which benchmarks: what the config says of it, spelled out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from marft.config import Config
from marft.envs.data import KNOWN
from marft.game.play import Agent

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
