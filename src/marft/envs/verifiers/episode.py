"""One episode as verifiers plays and scores it, with our endpoint in place of a model's provider.

`play` is a program of `team.workflow: program`. It runs in a process of its own, since the scoring of other people may
block: verifiers' episodes share that process's event loop.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from marft.envs.verifiers.library import Source, load_environment, load_tasks

TOOL_SERVERS = 4 * (os.cpu_count() or 1)  # episodes at once that start processes for their tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An environment that is up, with what its episodes share."""

    env: Any
    tasks: Sequence[Any]
    resources: AsyncExitStack  # until the process ends
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TOOL_SERVERS))


SERVED: dict[str, asyncio.Task[Served]] = {}  # by what was asked for: the first episode of each starts it


def play(task: Mapping[str, Any], base_url: str, api_key: str, agents: Sequence[str]) -> Awaitable[dict[str, Any]]:
    """An episode of a task of `env=verifiers`: its reward, the parts of it, and the last message."""
    return play_episode(task["data"], base_url, api_key, agents)


async def play_episode(data: Mapping[str, Any], base_url: str, api_key: str, agents: Sequence[str]) -> dict[str, Any]:
    """verifiers' episode; RuntimeError where it is not one that it would count."""
    from verifiers.v1 import EvalClientConfig, ModelContext

    served = await serve(Source(**data["source"]), agents)
    task = served.tasks[data["number"]]
    if task.key != data["key"]:
        raise RuntimeError(
            f"task {data['number']} is another one in this process; a taskset must load the same each time"
        )
    with key_in_environment(api_key) as variable:
        client = EvalClientConfig(base_url=base_url, api_key_var=variable)
        async with served.places if task.toolsets(task.config) else nullcontext():
            episode = await served.env.run_episode(task, ModelContext(model=agents[0], client=client))
    return result_of(episode, agents)


async def serve(source: Source, agents: Sequence[str]) -> Served:
    """The environment, started once."""
    key = repr((source, tuple(agents)))
    if key not in SERVED:
        SERVED[key] = asyncio.ensure_future(start(source, agents))
        SERVED[key].add_done_callback(lambda started: forget_failed(key, started))
    return await asyncio.shield(SERVED[key])


def forget_failed(key: str, started: asyncio.Task[Served]) -> None:
    """The next episode starts anew what could not be started."""
    if started.cancelled() or started.exception() is not None:
        del SERVED[key]


async def start(source: Source, agents: Sequence[str]) -> Served:
    """Its tasks and the tool servers that all of them share."""
    env, tasks, resources = load_environment(source, agents), load_tasks(source), AsyncExitStack()
    await resources.enter_async_context(env.serving())
    # the servers that relay calls to a provider keep a client for every key there was, and each episode has a key of its
    # own: without shared ones, every rollout brings one and takes it along
    env._interception = None
    return Served(env=env, tasks=tasks, resources=resources)


@contextmanager
def key_in_environment(api_key: str) -> Iterator[str]:
    """The variable that holds the key for a while: verifiers takes keys from nowhere else, and hides variables with such
    names from the processes that it starts."""
    variable = f"MARFT_API_KEY_{secrets.token_hex(8)}"
    os.environ[variable] = api_key
    try:
        yield variable
    finally:
        del os.environ[variable]


def result_of(episode: Any, agents: Sequence[str]) -> dict[str, Any]:
    """What the program returns. Each trace that trains counts the same for its role, and each role for the team."""
    if not episode.ok:
        failed = [error for one in (*episode.traces, episode) for error in one.errors]
        raise RuntimeError(
            f"verifiers: {failed[-1].type}: {failed[-1].message}" if failed else "verifiers: not complete"
        )
    ours = [trace for trace in episode.traces if trace.agent.config.model in agents] or list(episode.traces)
    trained = [trace for trace in ours if trace.agent.trainable] or ours
    roles: dict[str, list[Any]] = {}
    players: dict[str, list[float]] = {}
    for trace in trained:
        roles.setdefault(trace.agent.name, []).append(trace)
        if trace.agent.config.model in agents:
            players.setdefault(trace.agent.config.model, []).append(trace.reward)
    parts: dict[str, float] = {}
    for role, traces in roles.items():
        for trace in traces:
            for name, value in scores_of(trace).items():
                part = name if len(roles) == 1 else f"{role}/{name}"
                parts[part] = parts.get(part, 0.0) + value / len(traces) / len(roles)
    reward = fmean(fmean(trace.reward for trace in traces) for traces in roles.values())
    own = {"agents": {agent: fmean(rewards) for agent, rewards in players.items()}} if len(players) > 1 else {}
    return {"reward": reward, "parts": parts, "answer": trained[-1].last_reply, **own}


def scores_of(trace: Any) -> dict[str, float]:
    """Each reward of a trace, its weight included; RuntimeError where one was not scored in time."""
    if unscored := [name for name, reward in trace.rewards.items() if reward is None]:
        raise RuntimeError(f"verifiers: the reward {unscored[0]} was not scored")
    return {name: reward.value for name, reward in trace.rewards.items()}
