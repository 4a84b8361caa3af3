"""Evaluation on held-out tasks: one episode a task, with a confidence interval."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from marft.config import Config
from marft.envs import tasks_of
from marft.game.play import Agent
from marft.training.table import Start, Table
from marft.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """How held-out tasks are played; what is None is each agent's own."""

    tasks: int
    temperature: float | None
    top_p: float | None
    top_k: int | None


def eval_settings(config: Config) -> EvalSettings:
    chosen = config.eval
    return EvalSettings(tasks=chosen.tasks, temperature=chosen.temperature, top_p=chosen.top_p, top_k=chosen.top_k)


def evaluate(table: Table, settings: EvalSettings, seed: int) -> dict[str, Any]:
    """Mean reward and accuracy on the first held-out tasks. The same seed asks the same questions with the same luck."""
    tasks = tasks_of(table.env, "test")
    chosen = [tasks[i] for i in range(min(settings.tasks, len(tasks)))]
    team = {name: with_settings(agent, settings) for name, agent in table.team.items()}
    starts = [Start(task=task, sample=0) for task in chosen]
    episodes = asyncio.run(replace(table, team=team).episodes(starts, f"{seed}/eval"))
    return summarise(episodes)


def with_settings(agent: Agent, settings: EvalSettings) -> Agent:
    given = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": settings.top_k}
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return replace(agent, sampling=replace(agent.sampling, **chosen))


def summarise(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Figures of one evaluation; failed episodes count as wrong and are counted."""
    rewards = [episode.reward.team for episode in episodes]
    graded = [e for e in episodes if e.reward.correct is not None or e.ended == "failed"]
    lengths: dict[str, list[int]] = {}
    for episode in episodes:
        for turn in episode.turns:
            lengths.setdefault(turn.agent, []).append(len(turn.completion.token_ids))
    row: dict[str, Any] = {
        "tasks": len(episodes),
        "reward": sum(rewards) / len(rewards),
        "failed": sum(e.ended == "failed" for e in episodes),
        "tokens": {agent: sum(n) / len(n) for agent, n in lengths.items()},
        "tokens_per_task": sum(map(sum, lengths.values())) / len(episodes),
    }
    if row["failed"]:
        row["first_error"] = next(e.error for e in episodes if e.ended == "failed")
    if any(e.reward.correct is not None for e in episodes):
        right = sum(bool(e.reward.correct) for e in graded)
        row["accuracy"] = right / len(graded)
        row["accuracy_ci95"] = list(wilson(right, len(graded)))
    return row


def wilson(right: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion: honest near 0 and 1, where the normal one is not."""
    p = right / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, centre - half), min(1.0, centre + half)
