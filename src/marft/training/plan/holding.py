"""The memory that a run holds, put together from its parts."""

from __future__ import annotations

from collections.abc import Mapping

from marft.config import Config
from marft.models.recompute import recompute_layers
from marft.models.team import TeamModel
from marft.training.compose import Assembly
from marft.training.plan.memory import (
    Memory,
    activation_of,
    adapters_of,
    cache_of,
    device_memory,
    logits_of,
    weights_of,
)
from marft.training.plan.reading import Load, most_said
from marft.training.plan.rollouts import Played

VLLM_SHARE = 0.4  # of the device, unless the config says how much


def activations(config: Config, load: Load) -> float:
    """Bytes a token; with recomputation what is kept, and one layer's own while it runs again."""
    whole = activation_of(load.example)
    if not config.train.recompute:
        return whole
    recompute_layers(load.team)
    return activation_of(load.example) + whole / int(load.team.config.num_hidden_layers)


def memory(
    config: Config,
    parts: Assembly,
    whole: Played,
    one_pass: Mapping[TeamModel, int],
    activation: Mapping[TeamModel, float],
) -> Memory:
    """Bases lie side by side; their passes follow one another."""
    learning = parts.learner.optimizers.keys()
    heaviest = max(one_pass, key=lambda team: activation[team] * one_pass[team])
    return Memory(
        weights=sum(weights_of(team) for team in parts.teams),
        adapters=sum(adapters_of(team, learning) for team in parts.teams),
        cache=cache(config, parts, whole),
        activation=activation[heaviest],
        activations=int(activation[heaviest] * one_pass[heaviest]),
        logits=max(logits_of(team, size) for team, size in one_pass.items()),
    )


def cache(config: Config, parts: Assembly, whole: Played) -> int:
    if config.engine.name == "vllm":
        device = parts.teams[0].device
        return 0 if config.engine.url else int((config.engine.memory or VLLM_SHARE) * device_memory(device))
    rows = min(config.engine.slots, config.train.tasks * config.train.samples)
    reach = max(len(turn.prompt_ids) + most_said(config, turn) for episode in whole.episodes for turn in episode.turns)
    return sum(cache_of(team, rows, min(reach, team.longest)) for team in parts.teams)
