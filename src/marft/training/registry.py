"""The algorithm and the credit that a config names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from marft.algorithms import credit
from marft.algorithms.credit import RewardStream
from marft.algorithms.dr_grpo import DrGrpo
from marft.algorithms.experience import Algorithm
from marft.algorithms.grpo import Grpo
from marft.algorithms.gspo import Gspo
from marft.algorithms.marft_action import MarftAction
from marft.algorithms.marft_token import MarftToken
from marft.algorithms.rae import Rae
from marft.algorithms.reinforce_pp import ReinforcePP
from marft.algorithms.rloo import Rloo
from marft.config import (
    AlgorithmConfig,
    CreditConfig,
    DrGrpoConfig,
    GaeConfig,
    GrpoConfig,
    GspoConfig,
    MarftActionConfig,
    MarftTokenConfig,
    RaeConfig,
    ReinforcePPConfig,
    RlooConfig,
)
from marft.types import Episode

DEFAULT_LAM = 0.95


def make_algorithm(config: AlgorithmConfig) -> Algorithm:
    shared: dict[str, Any] = {
        "clip_low": config.clip_low,
        "clip_high": config.clip_high,
        "dual_clip": config.dual_clip,
        "aggregation": config.aggregation,
    }
    match config:
        case MarftTokenConfig():
            return MarftToken(
                lam=lam_of(config),
                token_gamma=config.token_gamma,
                token_lam=config.token_lam,
                whiten=config.whiten,
                **shared,
            )
        case MarftActionConfig():
            return MarftAction(lam=lam_of(config), whiten=config.whiten, normalise=config.normalise, **shared)
        case GrpoConfig():
            return Grpo(std_floor=config.std_floor, **shared)
        case DrGrpoConfig():
            return DrGrpo(**shared)
        case RlooConfig():
            return Rloo(**shared)
        case GspoConfig():
            return Gspo(std_floor=config.std_floor, **shared)
        case ReinforcePPConfig():
            return ReinforcePP(**shared)
        case RaeConfig():
            return Rae(decay=config.decay, **shared)


def lam_of(config: GaeConfig) -> float:
    return DEFAULT_LAM if config.lam is None else config.lam


def make_credit(config: CreditConfig) -> Callable[[Episode], RewardStream]:
    match config.name:
        case "equal":
            return credit.equal
        case "step_discounted":
            return partial(credit.step_discounted, beta=config.beta)
        case "per_step":
            return partial(credit.per_step, gamma=config.gamma)
        case "per_player":
            return partial(credit.per_player, gamma=config.gamma)
        case "difference" | "tree":
            return credit.replayed
