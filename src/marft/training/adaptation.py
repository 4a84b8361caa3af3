"""What adapts from update to update: running baselines, weights of a KL with a target, learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from marft.algorithms.batch import TrainingBatch
from marft.algorithms.losses import adapted_kl_weight
from marft.algorithms.trust_region import adapted_rate
from marft.config.algorithm import KlConfig
from marft.config.schema import OptimizerConfig
from marft.learners.base import Update
from marft.training.checkpoint import Position


def after_update(position: Position, kl: KlConfig, data: TrainingBatch, update: Update) -> Position:
    """The position of the next version: one more update, and all that it has changed."""
    rates = {name: adapted_rate(position.rates.get(name, 1.0), excess) for name, excess in update.excess.items()}
    return replace(
        position,
        version=position.version + 1,
        tokens_trained=position.tokens_trained + update.tokens,
        baselines=next_baselines(position, data),
        kl_weights=next_kl_weights(position, kl, data, update),
        rates={**position.rates, **rates},
    )


def next_baselines(position: Position, data: TrainingBatch) -> Mapping[str, float]:
    """The agents' running baselines after an update."""
    if data.estimate.baseline_A is None:
        return position.baselines
    names = (member.agent for member in data.batch.members)
    found = zip(names, data.estimate.baseline_A.tolist(), strict=True)
    return {name: baseline for name, baseline in found if not math.isnan(baseline)}  # NaN: it has not acted yet


def next_kl_weights(position: Position, kl: KlConfig, data: TrainingBatch, update: Update) -> Mapping[str, float]:
    """The weights of a KL with a target after an update: each agent's moves with its own KL."""
    weights = dict(position.kl_weights)
    if kl.target is None:
        return weights
    for member in data.batch.members:
        found = update.statistics[member.agent].get("reference_kl")
        if found is not None:
            weights[member.agent] = adapted_kl_weight(weights.get(member.agent, kl.weight), found, kl.target)
    return weights


def scheduled_rate(optimizer: OptimizerConfig, iteration: int, progress: float) -> float:
    """The factor of all learning rates: a linear warm-up, then constant or a linear decay to a tenth."""
    rise = min(1.0, (iteration + 1) / (optimizer.warmup + 1))
    past = min(1.0, progress)  # the budget may have been passed by an earlier play of this iteration
    fall = 1 - 0.9 * past if optimizer.decay == "linear" else 1.0
    return rise * fall
