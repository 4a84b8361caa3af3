"""How the team learns: credit, estimator and policy loss, critics, and who is updated when."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from marft.config.section import Section

Fraction = Annotated[float, Field(ge=0, le=1)]
Aggregation = Literal["token", "turn", "agent"]


# --- credit ----------------------------------------------------------------------------------------------------------
class EqualConfig(Section):
    """Every turn scores the team's reward."""

    name: Literal["equal"] = "equal"


class StepDiscountedConfig(Section):
    """The team's reward, discounted by β for every turn that followed."""

    name: Literal["step_discounted"]
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.9


class PerStepConfig(Section):
    """The environment's own reward of each turn, and the team's on the last."""

    name: Literal["per_step"]
    gamma: Fraction = 1.0


class PerPlayerConfig(Section):
    """Every player's own rewards, each with its own return-to-go: for opponents."""

    name: Literal["per_player"]
    gamma: Fraction = 1.0


class DifferenceConfig(Section):
    """What the team's reward loses when a message is blanked, or given by the untrained base, and the rest is replayed."""

    name: Literal["difference"]
    baseline: Literal["blank", "base"] = "blank"


class TreeConfig(Section):
    """A task's samples fork from one episode, so that siblings from the same state are compared."""

    name: Literal["tree"]


CreditConfig = Annotated[
    EqualConfig | StepDiscountedConfig | PerStepConfig | PerPlayerConfig | DifferenceConfig | TreeConfig,
    Field(discriminator="name"),
]


# --- algorithms ------------------------------------------------------------------------------------------------------
class KlConfig(Section):
    """KL(policy || untrained base). With a target its weight adapts, for each agent, until the KL is about that."""

    weight: Annotated[float, Field(ge=0)] = 0.0
    estimator: Literal["k1", "k2", "k3"] = "k3"
    where: Literal["loss", "reward"] = "loss"
    target: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def check(self) -> KlConfig:
        if not self.weight and (self.estimator, self.where, self.target) != ("k3", "loss", None):
            raise ValueError("weight: it is 0, so the KL's other settings would be ignored; give a weight or drop them")
        if self.estimator == "k1" and self.where == "loss":
            raise ValueError(
                "estimator: k1 in the loss has a gradient of mean zero, so it does nothing; use k2, k3 or where: reward"
            )
        return self


class ClippedConfig(Section):
    """What every clipped-surrogate algorithm has."""

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


class GaeConfig(ClippedConfig):
    """Advantages from a critic's values."""

    lam: Fraction | None = None  # None: 0.95
    whiten: bool = True
    value_clip: Annotated[float, Field(gt=0)] | None = None
    value_loss: Literal["mse", "huber"] = "mse"
    huber_delta: Annotated[float, Field(gt=0)] | None = None  # error past which it grows linearly; None: 1

    @model_validator(mode="after")
    def check(self) -> GaeConfig:
        if self.huber_delta is not None and self.value_loss != "huber":
            raise ValueError("huber_delta: mse would ignore it; drop it or say algorithm.value_loss=huber")
        return self


class MarftTokenConfig(GaeConfig):
    """Token-level trust region (MARFT-T)."""

    name: Literal["marft-token"]
    token_gamma: Fraction = 1.0
    token_lam: Fraction = 1.0


class MarftActionConfig(GaeConfig):
    """Action-level trust region (MARFT-A): one ratio and one advantage a turn."""

    name: Literal["marft-action"]
    normalise: Literal["sum", "token", "word"] = "token"


class GrpoConfig(ClippedConfig):
    """Group-relative advantages, each agent with its own groups."""

    name: Literal["grpo"]
    std_floor: Annotated[float, Field(gt=0)] = 1e-4


class DrGrpoConfig(ClippedConfig):
    """GRPO without the division by the group's deviation."""

    name: Literal["dr_grpo"]


class RlooConfig(ClippedConfig):
    """Each sample against the mean of the others."""

    name: Literal["rloo"]


class GspoConfig(ClippedConfig):
    """GRPO's advantages with one length-normalised ratio a turn."""

    name: Literal["gspo"]
    std_floor: Annotated[float, Field(gt=0)] = 1e-4


class ReinforcePPConfig(ClippedConfig):
    """Scores normalised over the batch, for each agent."""

    name: Literal["reinforce++"]


class RaeConfig(ClippedConfig):
    """Scores against a running baseline of each agent."""

    name: Literal["rae"]
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9


ALGORITHMS: dict[str, type[BaseModel]] = {
    "marft-token": MarftTokenConfig,
    "marft-action": MarftActionConfig,
    "grpo": GrpoConfig,
    "dr_grpo": DrGrpoConfig,
    "rloo": RlooConfig,
    "gspo": GspoConfig,
    "reinforce++": ReinforcePPConfig,
    "rae": RaeConfig,
}
CREDITS: dict[str, type[BaseModel]] = {
    "equal": EqualConfig,
    "step_discounted": StepDiscountedConfig,
    "per_step": PerStepConfig,
    "per_player": PerPlayerConfig,
    "difference": DifferenceConfig,
    "tree": TreeConfig,
}
AlgorithmConfig = Annotated[
    MarftTokenConfig
    | MarftActionConfig
    | GrpoConfig
    | DrGrpoConfig
    | RlooConfig
    | GspoConfig
    | ReinforcePPConfig
    | RaeConfig,
    Field(discriminator="name"),
]
COMPARES = (GrpoConfig, DrGrpoConfig, RlooConfig, GspoConfig)  # samples of one task with one another


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
        if self.interval is not None and self.mode != "alternate":
            raise ValueError(
                f"interval: {self.mode} would ignore it, only alternate has it; drop it or say schedule=alternate"
            )
        if self.clip is not None and self.mode != "sequential":
            raise ValueError(
                f"clip: {self.mode} would ignore it, only sequential has it; drop it or say schedule=sequential"
            )
        return self
