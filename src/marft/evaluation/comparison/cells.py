"""The compared teams as configs: everything that is not the point of a cell stays as the user's config has it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from marft.config import Config, parse
from marft.config.section import nearest
from marft.evaluation.comparison.folder import Question
from marft.types import MAX_TURNS, MarftError

FEWEST = 3  # votes: two have no majority
MOST = MAX_TURNS - 1  # the last turn tells the result


def make_question(config: Config, *, seeds: int, single: str | None, frozen: Sequence[str]) -> Question:
    """The question, checked to its end: no mistake may wait until hours of training are spent."""
    if seeds < 1:
        raise MarftError(f"--seeds {seeds}: give 1 or more; an interval over seeds needs 2")
    if not config.eval.tasks:
        raise MarftError("eval.tasks is 0: say how many held-out tasks to compare on, as in eval.tasks=512")
    if config.eval.temperature == 0:
        raise MarftError("eval.temperature is 0: all votes would be the same answer; leave it out to compare")
    if not config.team.trained:
        raise MarftError("no agent of this team learns, so there is nothing to compare; make one trainable")
    if single is not None and config.team.anonymous:
        raise MarftError("--single: agents of an anonymous team are told nothing; drop it or team.anonymous")
    question = Question(
        config=config,
        seeds=seeds,
        single=config.team.agents[last_trained(config)].prompt if single is None else single,
        frozen=choose_frozen(config, frozen),
    )
    for name in question.cells:
        cell_config(question, name, seed=config.seed + seeds - 1, budget=1)
    return question


def choose_frozen(config: Config, frozen: Sequence[str]) -> tuple[str, ...]:
    """Who is frozen: those who are named, else the first who can be. Whoever shares an adapter cannot: it learns on."""
    learns, team = list(config.team.trained), list(config.team.agents)
    adapters = Counter(config.team.trained.values())
    alone = [name for name, adapter in config.team.trained.items() if adapters[adapter] == 1]
    for name in frozen:
        if name not in team:
            raise MarftError(f"--frozen {name}: unknown agent{nearest(name, team)}; the team is {', '.join(team)}")
        if name not in learns:
            raise MarftError(f"--frozen {name}: it does not learn anyway; those who do are {', '.join(learns)}")
        if len(learns) == 1:
            raise MarftError(f"--frozen {name}: nobody else on the team learns; drop it")
        if name not in alone:
            raise MarftError(f"--frozen {name}: others learn its adapter; freeze one who has an adapter of its own")
    return tuple(dict.fromkeys(frozen)) or tuple(alone[:1] if len(learns) > 1 else ())


def last_trained(config: Config) -> str:
    """The name of the last agent that learns."""
    return list(config.team.trained)[-1]


# --- Config → Config -------------------------------------------------------------------------------------------------
def cell_config(question: Question, name: str, *, seed: int, budget: int) -> Config:
    """One cell's config under one seed. The tokens that the team took are the budget of the others."""
    config = with_sections(question.config, seed=seed)
    match name.split():
        case ["team" | "untuned"]:
            return config
        case ["single"]:
            return with_budget(single_config(config, question.single), budget)
        case ["vote"]:
            return vote_config(cell_config(question, "single", seed=seed, budget=budget), FEWEST)
        case ["frozen", agent]:
            return with_budget(frozen_config(config, agent), budget)
    raise ValueError(f"unknown cell {name!r}")


def single_config(config: Config, prompt: str) -> Config:
    """The last agent that learns, alone, told `prompt`, with room for everybody's tokens, and with the team's rounds."""
    name = last_trained(config)
    agent = config.team.agents[name].model_dump(mode="json")
    agent |= {"prompt": prompt, "sees": [], "max_tokens": sum(a.max_tokens for a in config.team.agents.values())}
    rounds = {"workflow": "rounds", "rounds": config.team.rounds} if config.team.workflow == "rounds" else {}
    team = {"workflow": "sequential", **rounds, "anonymous": config.team.anonymous, "agents": {name: agent}}
    return with_sections(config, team=team, schedule={"mode": "joint"})


def frozen_config(config: Config, name: str) -> Config:
    """The team with one agent left as it is before training."""
    team = config.team.model_dump(mode="json")
    team["agents"][name] |= {"trainable": False, "lr": None, "rank": None, "adapter": None}
    left = {adapter for agent, adapter in config.team.trained.items() if agent != name}
    return with_sections(config, team=team, **({"schedule": {"mode": "joint"}} if len(left) == 1 else {}))


def vote_count(team_tokens: float, answer_tokens: float) -> int:
    """So many answers that they take about the tokens that the team takes for a task."""
    return max(FEWEST, min(MOST, round(team_tokens / max(answer_tokens, 1.0))))


def vote_config(single: Config, votes: int) -> Config:
    """The same agent, asked several times; the majority counts."""
    team = single.team.model_dump(mode="json")
    return with_sections(single, team={**team, "workflow": "vote", "rounds": None, "votes": votes})


def with_budget(config: Config, budget: int) -> Config:
    """The tokens end the run, and the iterations never do: an episode generates at least one token."""
    train = config.train.model_dump(mode="json")
    enough = math.ceil(budget / (config.train.tasks * config.train.samples))
    return with_sections(config, train={**train, "budget": budget, "iterations": max(config.train.iterations, enough)})


def with_sections(config: Config, **sections: Any) -> Config:
    """The config with whole sections replaced; raises a MarftError where the result is not valid."""
    return parse({**config.model_dump(mode="json"), **sections})
