"""A sanity check: what always fails is found on two short episodes, before an evaluation is paid for. Nothing of it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from marft.config import Config
from marft.evaluation.benchmarks import (
    benchmarks_of,
    eval_settings,
    first_tasks,
    open_benchmark,
    read_held_out_tasks,
    with_eval_sampling,
)
from marft.evaluation.failures import ENOUGH, Failures, Tolerance
from marft.game.agent import Agent
from marft.rollouts.event_loop import run_async
from marft.rollouts.players import Assignment, Key, Players
from marft.rollouts.runner import EpisodeRunner, Start
from marft.training.build import Assembly
from marft.types import Episode, Task

FEW, SHORT = 2, 64  # episodes, and tokens of each turn: a second at most, whatever the model


def check_team_plays(
    config: Config, runner: EpisodeRunner, tasks: Sequence[Task], tolerance: Tolerance, at: str = ""
) -> None:
    """Stops where the team cannot play: its workflow, a script or the environment raises, an endpoint is away.

    A short turn may fail where a whole one would not, so the verdict is over whole episodes: played only where a short
    one failed. Its seed is its own, and engines keep nothing: evaluation is the same with and without.
    """
    whole = with_eval_sampling(runner, eval_settings(config))
    hurried = replace(whole, team={name: with_short_turns(config, agent) for name, agent in whole.team.items()})
    if not any(episode.ended == "failed" for episode in play_trial(hurried, first_tasks(tasks, FEW), config.seed)):
        return
    found = Failures().plus_episodes(play_trial(whole, first_tasks(tasks, ENOUGH), config.seed))
    if found.exceeds(tolerance.share):
        tolerance.stop(found, f"episodes of the sanity check{at}")


def check_team_everywhere(config: Config, parts: Assembly, remedy: str) -> None:
    """Wherever a run will play: on its own tasks, and on each benchmark."""
    tolerance = Tolerance(share=config.train.failures, remedy=remedy)
    check_team_plays(config, parts.runner, parts.runner.host.tasks("test" if config.eval.tasks else "train"), tolerance)
    for name, env in benchmarks_of(config).items() if config.eval.tasks else ():
        with open_benchmark(parts.runner, name, env, parts.lockstep) as runner:
            check_team_plays(config, runner, runner.host.tasks("test"), tolerance, f" on {name}")


def check_players_play(config: Config, parts: Assembly, players: Players, version: int, remedy: str) -> None:
    """The same where only others have an engine: they play whole episodes, with the adapters as they are, whose version this
    is. Without evaluations there is nothing to pay for before the first iteration, which fails as soon."""
    tolerance = Tolerance(share=config.train.failures, remedy=remedy)
    tasks: dict[str | None, Sequence[Task]] = {}
    if config.eval.tasks:
        tasks = {name: read_held_out_tasks(name, env) for name, env in benchmarks_of(config).items()}
        tasks = {None: parts.runner.host.tasks("test"), **tasks}
    for play, (name, own) in enumerate(tasks.items()):
        for count in (FEW, ENOUGH):
            chosen = first_tasks(own, count)
            assignment = Assignment(
                key=Key(held_out=True, iteration=0, play=play, shard=0), version=version, seed=sanity_seed(config.seed),
                tasks=tuple(range(len(chosen))), first_samples=(0,) * len(chosen), samples=1, benchmark=name,
            )  # fmt: skip
            players.offer(assignment, parts.snapshot(), chosen)
            found = Failures().plus_episodes(players.take(assignment.key).episodes)
            if not found.exceeds(0):
                break
        if found.exceeds(tolerance.share):
            tolerance.stop(found, "episodes of the sanity check" + (f" on {name}" if name else ""))


def play_trial(runner: EpisodeRunner, tasks: Sequence[Task], seed: int) -> list[Episode]:
    """One episode on each task."""
    return run_async(runner.episodes([Start(task=task, sample=0) for task in tasks], sanity_seed(seed)))


def sanity_seed(seed: int) -> str:
    """One that no evaluation uses."""
    return f"{seed}/sanity"


def with_short_turns(config: Config, agent: Agent) -> Agent:
    """With turns of a few tokens; a script says what it says."""
    if config.team.agents[agent.name].kind == "scripted":
        return agent
    return replace(agent, sampling=replace(agent.sampling, max_tokens=min(agent.sampling.max_tokens, SHORT)))
