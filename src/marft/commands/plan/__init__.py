"""`marft train --plan`: what a run will need of memory and time, from its config and a short probe on the real model."""

from __future__ import annotations

import math

from marft.commands.plan.iteration import Iteration, heaviest_of
from marft.commands.plan.memory import Memory, adapters_of, cache_of, device_memory, measure, weights_of
from marft.commands.plan.rollouts import Rollouts, most_generated, said
from marft.commands.plan.telling import Forecast, tell
from marft.commands.train import splits
from marft.config import Config
from marft.terminal import say
from marft.terminal.status import Status
from marft.training.build import Assembly, assemble
from marft.training.loading import load_initial_adapters
from marft.types import MarftError


def plan(config: Config, status: Status | None = None) -> Forecast:
    """Prints the forecast. The real model is loaded and a few real episodes are played; nothing is written."""
    status = status or Status()
    if not config.team.trained:
        raise MarftError("no agent of this team learns; make one trainable, or evaluate it with marft eval")
    keeps = config.model_copy(update={"train": config.train.model_copy(update={"recompute": False})})
    parts = assemble(keeps, reads=splits(config), status=status)
    load_initial_adapters(config, parts)
    with parts.runner.host:
        found = foresee(config, parts)
    status.rest()
    for line in tell(config, parts, found):
        say(line)
    return found


def foresee(config: Config, parts: Assembly) -> Forecast:
    """The parts come without recomputation: what a single layer keeps is found before it is switched on."""
    rollouts, status = Rollouts(config, parts), parts.runner.status
    status.begin("timing short episodes", unit="episodes")
    pace = rollouts.pace()
    status.begin("playing whole episodes", unit="episodes")
    whole = rollouts.whole()
    cache = cache_of(config, parts)  # as a run's: every slot has room for the longest prompt and answer
    status.begin("laying out the passes of one iteration", unit="turns")
    one = Iteration(config, parts.learner, parts.runner.team, whole.episodes, status)
    trained, between, valued = list(one.trained()), list(one.between()), list(one.valued())
    heaviest = heaviest_of([trained, between, valued])
    status.begin("measuring the heaviest pass")
    costs = {team: measure(each, recompute=config.train.recompute) for team, each in heaviest.items()}
    largest = max(costs.values(), key=lambda cost: cost.memory)

    count, probed, rounds = config.train.tasks * config.train.samples, len(whole.episodes), one.rounds
    spoken = sum(said(config, turn) for episode in whole.episodes for turn in episode.turns) / probed
    generated = one.plays * count * whole.tokens / probed
    plain = one.plays * whole.tokens / max(probed * spoken, 1)  # plays without play-outs that would say as much
    iterations = config.train.iterations
    if config.train.budget is not None:
        iterations = min(iterations, math.ceil(config.train.budget / max(generated, 1.0)))
    held_out = min(config.eval.tasks, len(parts.runner.host.tasks("test"))) if config.eval.tasks else 0
    return Forecast(
        memory=Memory(
            weights=sum(weights_of(team) for team in parts.teams),
            adapters=sum(adapters_of(team, parts.learner.optimizers.keys()) for team in parts.teams),
            cache=cache,
            one_pass=largest.memory,
        ),
        device_memory=device_memory(parts.teams[0].device),
        pass_tokens=largest.tokens,
        fitting=min((c.tokens for team, c in costs.items() if c.tokens < heaviest[team].tokens), default=None),
        generated=generated,
        most_generated=round(one.plays * count * max(most_generated(config, episode) for episode in whole.episodes)),
        trained=sum(each.tokens for each in trained) / rounds,
        computed=sum(each.computed for each in trained) / rounds,
        seconds={
            "rollout": plain * pace.seconds(count, count * spoken),
            "credit": sum(each.computed * costs[each.team].scoring for each in valued) / rounds,
            "update": sum(each.computed * costs[each.team].training for each in trained) / rounds
            + sum(each.computed * costs[each.team].scoring for each in between) / rounds,
        },
        evaluation=(1 + len(config.eval.benchmarks)) * pace.seconds(held_out, held_out * spoken),
        iterations=iterations,
        evaluations=(2 + (iterations // config.eval.every if config.eval.every else 0)) if held_out else 0,
        probed=probed,
    )
