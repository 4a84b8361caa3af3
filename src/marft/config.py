"""The typed configuration: YAML files, recipes by name and dotted overrides become one checked `Config`.

One fact, one field. An unknown key, a wrong type or a combination without meaning ends in a `MarftError` of one line.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from marft.types import MarftError, Sampling

NAME = r"^[a-z][a-z0-9_-]{0,31}$"  # of agents: also folder names and adapter names
RESERVED = {"critic", "base"}


class Section(BaseModel):
    """A part of the config: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EnvConfig(BaseModel):
    """Which environment, and its own settings (checked by the environment itself)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "arithmetic"

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class AgentConfig(Section):
    """One agent's profile: what it is told, what it sees, how it speaks."""

    prompt: str
    sees: tuple[str, ...] | None = None  # None: every predecessor
    temperature: Annotated[float, Field(gt=0)] = 1.0
    max_tokens: Annotated[int, Field(ge=1)] = 64
    lr: Annotated[float, Field(gt=0)] | None = None  # None: optimizer.lr

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


class TeamConfig(Section):
    """The agents in order of play, and the workflow that decides who acts when."""

    workflow: str = "sequential"
    agents: dict[Annotated[str, Field(pattern=NAME)], AgentConfig] = Field(min_length=1)

    @field_validator("workflow")
    @classmethod
    def known(cls, workflow: str) -> str:
        if workflow != "sequential" and ":" not in workflow:
            raise ValueError(f"unknown workflow {workflow!r}; use 'sequential' or 'package.module:function'")
        return workflow

    @model_validator(mode="after")
    def check(self) -> TeamConfig:
        names = list(self.agents)
        if taken := RESERVED & set(names):
            raise ValueError(f"agent name {min(taken)!r} is reserved; choose another")
        for i, (name, agent) in enumerate(self.agents.items()):
            for seen in agent.sees or ():
                if seen not in names:
                    raise ValueError(f"agents.{name}.sees: unknown agent {seen!r}{nearest(seen, names)}")
                if self.workflow == "sequential" and names.index(seen) >= i:
                    raise ValueError(f"agents.{name}.sees: {seen!r} acts later; list it before {name!r} or drop it")
        return self


class ClippedConfig(Section):
    """What every clipped-surrogate algorithm has."""

    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    entropy: Annotated[float, Field(ge=0)] = 0.0
    kl: Annotated[float, Field(ge=0)] = 0.0  # weight of KL(policy || untrained base), estimator k3


class GaeConfig(ClippedConfig):
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95
    whiten: bool = True
    value_clip: Annotated[float, Field(gt=0)] | None = None
    value_loss: Literal["mse", "huber"] = "mse"


class MarftTokenConfig(GaeConfig):
    """Token-level trust region (MARFT-T)."""

    name: Literal["marft-token"]
    aggregation: Literal["token", "turn"] = "turn"
    token_gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    token_lam: Annotated[float, Field(ge=0, le=1)] = 1.0


class MarftActionConfig(GaeConfig):
    """Action-level trust region (MARFT-A): one ratio and one advantage a turn."""

    name: Literal["marft-action"]
    normalise: Literal["sum", "token", "word"] = "token"


class GrpoConfig(ClippedConfig):
    """Group-relative advantages, each agent with its own groups; no critic."""

    name: Literal["grpo"]
    aggregation: Literal["token", "turn"] = "turn"
    std_floor: Annotated[float, Field(gt=0)] = 1e-4


AlgorithmConfig = Annotated[MarftTokenConfig | MarftActionConfig | GrpoConfig, Field(discriminator="name")]


class CreditConfig(Section):
    name: Literal["equal"] = "equal"


class CriticConfig(Section):
    """The value function. Without a mode: `shared` where the algorithm needs one, else `none`."""

    mode: Literal["shared", "none"] | None = None
    lr: Annotated[float, Field(gt=0)] | None = None  # None: optimizer.lr
    warmup: Annotated[int, Field(ge=0)] = 0  # iterations in which only the critic learns


class ScheduleConfig(Section):
    mode: Literal["joint"] = "joint"


class LoraConfig(Section):
    rank: Annotated[int, Field(ge=1)] = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"


class OptimizerConfig(Section):
    """One AdamW an adapter, all with these settings."""

    lr: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    warmup: Annotated[int, Field(ge=0)] = 0  # iterations of rising learning rate
    decay: Literal["constant", "linear"] = "constant"


class TrainConfig(Section):
    iterations: Annotated[int, Field(ge=1)] = 20
    tasks: Annotated[int, Field(ge=1)] = 64  # per iteration
    samples: Annotated[int, Field(ge=1)] = 4  # episodes per task
    epochs: Annotated[int, Field(ge=1)] = 1
    minibatches: Annotated[int, Field(ge=1)] = 2  # optimizer steps per epoch
    tokens: Annotated[int, Field(ge=64)] = 8192  # most tokens in one forward and backward pass


class EngineConfig(Section):
    slots: Annotated[int, Field(ge=1)] = 256  # rows generated at once


class EvalConfig(Section):
    tasks: Annotated[int, Field(ge=0)] = 512  # 0: no evaluation
    every: Annotated[int, Field(ge=0)] = 0  # iterations between evaluations; 0: only before and after
    temperature: Annotated[float, Field(ge=0)] | None = None  # None: each agent's own
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0


class CheckpointConfig(Section):
    every: Annotated[int, Field(ge=1)] = 5
    keep: Annotated[int, Field(ge=2)] = 5  # the newest ones; older are deleted


class TrackConfig(Section):
    tensorboard: bool = True
    wandb: str | None = None  # project name
    trackio: str | None = None  # project name
    episodes: Annotated[int, Field(ge=0)] = 8  # written to episodes.jsonl an iteration


class Config(Section):
    """Everything a run is made of."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    model: str = "nano"
    init_from: str | None = None
    env: EnvConfig = EnvConfig()
    team: TeamConfig
    algorithm: AlgorithmConfig
    credit: CreditConfig = CreditConfig()
    critic: CriticConfig = CriticConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    lora: LoraConfig = LoraConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    engine: EngineConfig = EngineConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    track: TrackConfig = TrackConfig()

    @model_validator(mode="after")
    def check(self) -> Config:
        grouped = isinstance(self.algorithm, GrpoConfig)
        if grouped and self.critic.mode == "shared":
            raise ValueError("critic.mode: grpo uses no critic and would ignore it; drop it or say critic=none")
        if not grouped and self.critic.mode == "none":
            raise ValueError(
                f"critic.mode: {self.algorithm.name} estimates advantages with a critic; say critic=shared or algorithm=grpo"
            )
        if grouped and self.train.samples < 2:
            raise ValueError("train.samples: grpo compares samples of one task, so it needs at least 2")
        if grouped and (self.critic.warmup or self.critic.lr):
            raise ValueError("critic: grpo has no critic; drop critic.warmup and critic.lr")
        if self.critic.warmup >= self.train.iterations:
            raise ValueError("critic.warmup: the agents would never learn; lower it or raise train.iterations")
        if self.train.minibatches > self.train.tasks * self.train.samples:
            raise ValueError("train.minibatches: more minibatches than episodes; lower it or raise train.tasks")
        return self

    @property
    def has_critic(self) -> bool:
        return not isinstance(self.algorithm, GrpoConfig)


# --- reading ---------------------------------------------------------------------------------------------------------
SHORTHANDS = {"env": "name", "algorithm": "name", "credit": "name", "critic": "mode", "schedule": "mode"}


def recipes() -> dict[str, str]:
    """Every embedded recipe: its name, and the first line of its file, which says what it is."""
    folder = resources.files("marft") / "recipes"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return {f.name.removesuffix(".yaml"): f.read_text().splitlines()[0].removeprefix("# ") for f in files}


def load_config(source: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """The config of a YAML file or a recipe (default: `duo`), with `key.path=value` overrides on top."""
    return parse(merge(read_source(source or "duo"), overrides))


def read_source(source: str) -> dict[str, Any]:
    path = Path(source)
    if path.suffix in {".yaml", ".yml"}:
        try:
            return parse_yaml(path.read_text(), str(path))
        except OSError as error:
            raise MarftError(f"cannot read {path}: {error.strerror}") from None
    known = recipes()
    if source not in known and os.sep in source:
        raise MarftError(f"there is no run and no config in {source}; give a run's folder, a .yaml file or a recipe")
    if source not in known:
        raise MarftError(
            f"unknown recipe {source!r}{nearest(source, known)}; 'marft recipes' lists them, or give a .yaml file"
        )
    return parse_yaml((resources.files("marft") / "recipes" / f"{source}.yaml").read_text(), source)


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise MarftError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise MarftError(f"{where} must hold 'key: value' lines, not a {type(data).__name__}")
    return data


def merge(base: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`key.path=value` overrides on top of a base."""
    for override in overrides:
        if "=" not in override:
            raise MarftError(f"{override!r} is not an override; write key=value")
    on_top: dict[str, Any] = {}
    try:
        for override in overrides:  # one by one: `env=gsm8k` and `env.path=DIR` add up, in either order
            one = OmegaConf.to_container(OmegaConf.from_dotlist([override]))
            assert isinstance(one, dict)
            on_top = laid_over(on_top, spell_out({str(key): value for key, value in one.items()}))
    except OmegaConfBaseException as error:
        raise MarftError(f"cannot apply {' '.join(overrides)}: {str(error).splitlines()[0]}") from None
    except yaml.YAMLError as error:
        raise MarftError(f"cannot read {' '.join(overrides)}: {' '.join(str(error).split())}") from None
    return merge_settings(base, on_top)


def merge_settings(base: Mapping[str, Any], on_top: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings on top of a base. A new name of an algorithm or environment drops the old one's own settings."""
    below, above = spell_out(base), spell_out(on_top)
    for section in ("env", "algorithm"):
        old, new = below.get(section), above.get(section)
        if (
            isinstance(old, Mapping)
            and isinstance(new, Mapping)
            and new.get("name", old.get("name")) != old.get("name")
        ):
            del below[section]
    return laid_over(below, above)


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = laid_over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def spell_out(data: Mapping[str, Any]) -> dict[str, Any]:
    """`algorithm: grpo` → `algorithm: {name: grpo}`, and the like; an agent given as a string is its prompt."""
    spelled: dict[str, Any] = {
        k: {SHORTHANDS[k]: v} if k in SHORTHANDS and isinstance(v, str) else v for k, v in data.items()
    }
    team = spelled.get("team")
    if isinstance(team, dict) and isinstance(team.get("agents"), dict):
        agents = {name: {"prompt": a} if isinstance(a, str) else a for name, a in team["agents"].items()}
        spelled["team"] = {**team, "agents": agents}
    return spelled


def parse(data: Mapping[str, Any]) -> Config:
    """Check plain data; the first mistake becomes one line."""
    try:
        return Config.model_validate(spell_out(data))
    except ValidationError as error:
        raise MarftError(explain(error)) from None


def to_yaml(config: Config) -> str:
    data = config.model_dump(mode="json")
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    # PyYAML reads U+0085 back as a line break unless it is written as an escape
    return yaml.safe_dump(data, sort_keys=False) if "\x85" in text else text


# --- explaining mistakes ---------------------------------------------------------------------------------------------
ALGORITHMS: dict[str, type[BaseModel]] = {
    "marft-token": MarftTokenConfig,
    "marft-action": MarftActionConfig,
    "grpo": GrpoConfig,
}


def explain(error: ValidationError) -> str:
    """One line for the first mistake: where it is, what is wrong, what was probably meant."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if str(part) not in ALGORITHMS and str(part) != "[key]"]
    where = ".".join(path)
    match first["type"]:
        case "extra_forbidden":
            siblings = fields_at(tuple(str(part) for part in first["loc"][:-1]))
            return f"unknown key {where!r}{nearest(path[-1], siblings, prefix=path[:-1])}"
        case "union_tag_invalid":
            given = str(first["ctx"]["tag"])
            return f"unknown algorithm {given!r}{nearest(given, ALGORITHMS)}; known: {', '.join(ALGORITHMS)}"
        case "union_tag_not_found":
            return f"algorithm.name is missing; choose one of {', '.join(ALGORITHMS)}"
        case "missing":
            return f"{where} is missing"
        case "value_error":
            message = str(first["ctx"]["error"])
            return message if message.startswith(where) or not where or where == "team" else f"{where}: {message}"
    extra = f" (the file or override says {first['input']!r})" if not isinstance(first["input"], dict) else ""
    return f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}{extra}"


def fields_at(path: tuple[str, ...]) -> list[str]:
    """The keys that are valid under `path`."""
    model: type[BaseModel] = Config
    for part in path:
        if part in ALGORITHMS:
            model = ALGORITHMS[part]
        elif part in model.model_fields:
            annotation = model.model_fields[part].annotation
            if get_origin(annotation) is dict:
                annotation = get_args(annotation)[1]
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                model = annotation
    return list(model.model_fields)


def nearest(word: str, known: Sequence[str] | Mapping[str, Any], prefix: Sequence[str] = ()) -> str:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {'.'.join([*prefix, found[0]])!r}?" if found else ""
