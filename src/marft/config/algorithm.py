"""How the team learns: credit, estimator and policy loss, critics, and who is updated when.

Credits and algorithms are chosen by name from the tables below, or brought along as `package.module:Class`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from marft.config.section import Section

Fraction = Annotated[float, Field(ge=0, le=1)]
Aggregation = Literal["token", "turn", "agent"]
DEFAULT_LAM = 0.95
DEFAULT_CORRECTION = 2.0  # with a lag of 2 or more


# --- credit ----------------------------------------------------------------------------------------------------------
class CreditConfig(Section):
    """What every credit has; its own settings and what it does stand in a class of its own (`rollouts/credit.py`)."""

    least_samples: ClassVar[int] = 1  # of a task

    name: str

    @property
    def chained(self) -> bool:
        """Whether what a turn earns depends on the turns after it."""
        return True


CREDITS: Mapping[str, str] = {
    "equal": "marft.rollouts.credit:Equal",
    "step_discounted": "marft.rollouts.credit:StepDiscounted",
    "per_step": "marft.rollouts.credit:PerStep",
    "per_player": "marft.rollouts.credit:PerPlayer",
    "difference": "marft.rollouts.credit:Difference",
    "tree": "marft.rollouts.credit:Tree",
}


# --- algorithms ------------------------------------------------------------------------------------------------------
class KlConfig(Section):
    """KL(policy || untrained base). With a target its weight adapts, for each agent, until the KL is about that."""

    weight: Annotated[float, Field(ge=0)] = 0.0
    estimator: Literal["k1", "k2", "k3"] = "k3"
    where: Literal["loss", "reward"] = "loss"
    target: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def check(self) -> KlConfig:
        """Raise a ValueError where settings contradict one another or would have no effect."""
        if not self.weight and (self.estimator, self.where, self.target) != ("k3", "loss", None):
            raise ValueError("weight: it is 0, so the KL's other settings would be ignored; give a weight or drop them")
        if self.estimator == "k1" and self.where == "loss":
            raise ValueError(
                "estimator: k1 in the loss has a gradient of mean zero, so it does nothing; use k2, k3 or where: reward"
            )
        return self


class AlgorithmConfig(Section):
    """What every algorithm has; its own settings and what it does stand in a class of its own (`algorithms/`)."""

    values_at: ClassVar[Literal["token", "turn"] | None] = None  # where it needs a critic's values; None: it needs none
    least_samples: ClassVar[int] = 1  # of a task

    name: str
    aggregation: Aggregation = "token"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    entropy: Annotated[float, Field(ge=0)] = 0.0
    kl: KlConfig = KlConfig()
    trust_region: Annotated[float, Field(gt=0)] | None = 0.5  # most KL of a turn that an update may make
    kl_stop: Annotated[float, Field(gt=0)] | None = (
        None  # KL a token past which an agent takes no more steps on a batch
    )
    correction: float | Literal["auto"] | None = (
        "auto"  # largest weight of stale samples; auto: 2 with a lag of 2 or more, else none
    )

    @field_validator("correction", mode="before")
    @classmethod
    def check_correction(cls, given: Any) -> Any:
        """Raise a ValueError for what is no bound on weights."""
        if given not in (None, "auto") and not (isinstance(given, int | float) and 1 <= given < math.inf):
            raise ValueError("it is no number from 1 on; give one such as 2, or auto, or null for no correction")
        return given


class GaeConfig(AlgorithmConfig):
    """Advantages from a critic's values."""

    lam: Fraction | None = None  # None: DEFAULT_LAM
    whiten: bool = True
    value_clip: Annotated[float, Field(gt=0)] | None = None
    value_loss: Literal["mse", "huber"] = "mse"
    huber_delta: Annotated[float, Field(gt=0)] | None = None  # error past which it grows linearly; None: 1

    @property
    def turn_lam(self) -> float:
        """λ between turns."""
        return DEFAULT_LAM if self.lam is None else self.lam

    @model_validator(mode="after")
    def check(self) -> GaeConfig:
        """Raise a ValueError for a setting that would have no effect."""
        if self.huber_delta is not None and self.value_loss != "huber":
            raise ValueError("huber_delta: mse would ignore it; drop it or say algorithm.value_loss=huber")
        return self


ALGORITHMS: Mapping[str, str] = {
    "marft-token": "marft.algorithms.marft_token:MarftToken",
    "marft-action": "marft.algorithms.marft_action:MarftAction",
    "grpo": "marft.algorithms.grpo:Grpo",
    "dr_grpo": "marft.algorithms.dr_grpo:DrGrpo",
    "rloo": "marft.algorithms.rloo:Rloo",
    "gspo": "marft.algorithms.gspo:Gspo",
    "reinforce++": "marft.algorithms.reinforce_pp:ReinforcePP",
    "rae": "marft.algorithms.rae:Rae",
}


# --- critics and schedules -------------------------------------------------------------------------------------------
class CriticConfig(Section):
    """The value function. Without a mode: `shared` where the algorithm needs one, else `none`."""

    mode: Literal["shared", "per_agent", "none"] | None = None
    lr: Annotated[float, Field(gt=0)] | None = None  # None: optimizer.lr
    warmup: Annotated[int, Field(ge=0)] = 0  # iterations in which only critics learn


class ScheduleConfig(Section):
    """Who is updated, and when."""

    mode: Literal["joint", "alternate", "sequential", "resample"] = "joint"
    interval: Annotated[int, Field(ge=1)] | None = None  # iterations of each agent under `alternate`; None: 1
    clip: Annotated[float, Field(gt=1)] | None = None  # most of the factor under `sequential`, and 1/least; None: 5

    @model_validator(mode="after")
    def check(self) -> ScheduleConfig:
        """Raise a ValueError for settings that belong to another mode."""
        if self.interval is not None and self.mode != "alternate":
            raise ValueError(
                f"interval: {self.mode} would ignore it, only alternate has it; drop it or say schedule=alternate"
            )
        if self.clip is not None and self.mode != "sequential":
            raise ValueError(
                f"clip: {self.mode} would ignore it, only sequential has it; drop it or say schedule=sequential"
            )
        return self
