"""Everything a run is made of, and which combinations have no meaning."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    field_validator,
    model_validator,
)

from marft.config.algorithm import (
    DEFAULT_CORRECTION,
    AlgorithmConfig,
    CreditConfig,
    CriticConfig,
    GaeConfig,
    ScheduleConfig,
)
from marft.config.choices import choice_validator
from marft.config.evaluation import EvalConfig
from marft.config.section import Section, Text, check_class
from marft.config.team import TeamConfig, check_url

ENGINES = ("local", "vllm")
KEPT_TURNS = 1024  # at least, unless `engine.keep` says how many


class EnvConfig(Section):
    """Which environment, how it is hosted, and its own settings (checked by the environment itself)."""

    model_config = ConfigDict(extra="allow")
    name: str = "arithmetic"
    deadline: Annotated[float, Field(gt=0)] = 60.0  # seconds, of one call; past it the process is killed
    tasks_deadline: Annotated[float, Field(gt=0)] | None = None  # seconds, to list a split's tasks; None: 5 deadlines
    workers: Annotated[int, Field(ge=1)] | None = None  # processes; None: one a core, 8 at most

    @property
    def settings(self) -> dict[str, Any]:
        """The environment's own settings: all keys that are not ours."""
        return dict(self.model_extra or {})


class LoraConfig(Section):
    """The low-rank adapters: their rank, scale and the layers they are on."""

    rank: Annotated[int, Field(ge=1)] = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0
    targets: tuple[str, ...] | Literal["all-linear"] = "all-linear"

    @field_validator("targets", mode="before")
    @classmethod
    def check_targets(cls, targets: Any) -> Any:
        """Raise a ValueError for targets that name no layers."""
        names = targets if isinstance(targets, list | tuple) else ()
        if targets != "all-linear" and not (names and all(isinstance(name, str) and name for name in names)):
            raise ValueError("it names no layers; give all-linear, or a list such as [q_proj, v_proj]")
        return targets


class OptimizerConfig(Section):
    """One AdamW an adapter, all with these settings."""

    lr: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] | None = None  # Adam's momentum; None: 0.9, with a lag 0.5
    eps: Annotated[float, Field(gt=0)] = 1e-8  # Adam's
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    warmup: Annotated[int, Field(ge=0)] = 0  # iterations of rising learning rate
    decay: Literal["constant", "linear"] = "constant"


class TrainConfig(Section):
    """How long a run is, and how its batches are made and learnt from."""

    iterations: Annotated[int, Field(ge=1)] = 20
    budget: Annotated[int, Field(ge=1)] | None = None  # tokens to generate; the iteration that passes it is the last
    tasks: Annotated[int, Field(ge=1)] = 64  # per iteration
    samples: Annotated[int, Field(ge=1)] = 4  # episodes per task
    epochs: Annotated[int, Field(ge=1)] = 1
    minibatches: Annotated[int, Field(ge=1)] = 2  # optimizer steps per epoch
    tokens: Annotated[int, Field(ge=64)] = 8192  # most tokens in one forward and backward pass
    recompute: bool = False  # activations of a layer in the backward pass, instead of keeping them
    failures: Annotated[float, Field(ge=0, le=1)] = 0.5  # most episodes of a play that may fail; past it the run stops
    on_collapse: Literal["stop", "back", "warn"] = "stop"  # back: to the last good checkpoint, at a lower rate
    lag: Annotated[int, Field(ge=0)] = 0  # iterations by which the policy that plays is behind the one that learns


class RolloutConfig(Section):
    """Who plays: this process, or workers of their own beside it."""

    workers: Annotated[int, Field(ge=0)] | None = None  # processes that play; None: one with lag, else this one plays
    shards: Annotated[int, Field(ge=1)] | None = None  # parts of a batch, played one at a time; None: one a worker
    threads: Annotated[int, Field(ge=1)] | None = None  # of each process; None: the machine's, shared evenly
    gpus: tuple[Annotated[int, Field(ge=0)], ...] = ()  # of the workers, in turn; none given: the run's own device
    patience: Annotated[float, Field(gt=0)] = 45.0  # seconds without a sign of life after which a worker is replaced
    swap: Literal["turn", "token"] = "turn"  # token: newer versions enter a play under way, in the middle of turns too
    replay: Text | None = None  # a run with `swap: token`: versions enter where they entered there


class LearnerConfig(Section):
    """Which processes learn."""

    ranks: Annotated[int, Field(ge=1)] = 1  # processes that share a minibatch, on GPUs one a GPU
    shard: bool = False  # each of them holds only a part of the base's layers (FSDP2)


def check_address(address: str) -> str:
    """`local`, `auto`, `HOST:PORT` or `ray://HOST:PORT`; ValueError for any other."""
    if address not in ("local", "auto") and not re.fullmatch(r"(ray://)?[^\s/:@]+:[0-9]{1,5}", address):
        raise ValueError(f"{address!r} is no cluster; give local, auto, HOST:PORT or ray://HOST:PORT")
    return address


class ClusterConfig(Section):
    """Where workers and the learner's other ranks run: as processes of this machine, or as actors of a Ray cluster."""

    address: Annotated[Text, AfterValidator(check_address)] | None = None  # None: processes, without Ray


class EngineConfig(Section):
    """What generates: our own engine, vLLM in this process or, at `url`, as servers on this machine, or yours."""

    name: Annotated[str, check_class(*ENGINES)] = "local"  # local, vllm, or a class of your own
    options: dict[str, Any] = Field(default_factory=dict)  # keyword arguments of a class of your own
    slots: Annotated[int, Field(ge=1)] = 256  # rows generated at once
    memory: Annotated[float, Field(gt=0, lt=1)] | None = None  # of a GPU's: what is free for keys, or vLLM's part
    keep: Annotated[int, Field(ge=0)] | None = None  # turns whose keys stay for those that go on from them
    url: str | tuple[str, ...] | None = None  # of a vLLM server, or of several
    mismatch: bool = False  # compare the engine's log-probs with the learner's; with vLLM always

    @field_validator("url", mode="before")
    @classmethod
    def check_urls(cls, url: Any) -> Any:
        """Raise a ValueError for what is neither an address nor a list of different ones."""
        urls = [url] if isinstance(url, str) else url
        if url is None:
            return None
        if not isinstance(urls, list | tuple) or not urls or not all(isinstance(each, str) for each in urls):
            raise ValueError("it names no server; give http://127.0.0.1:8000, or a list of such addresses")
        for each in urls:
            check_url(each, key="VLLM_API_KEY")
        if len({each.rstrip("/").removesuffix("/v1") for each in urls}) < len(urls):
            raise ValueError("it names one server twice; drop one of the two")
        return url

    @property
    def urls(self) -> tuple[str, ...]:
        """All servers; none where vLLM runs in this process."""
        return (self.url,) if isinstance(self.url, str) else self.url or ()

    @property
    def share(self) -> float:
        """Of the memory; the rest is the learner's."""
        return 0.4 if self.memory is None else self.memory


class CheckpointConfig(Section):
    """How often checkpoints are written, in iterations, and how many are kept."""

    every: Annotated[int, Field(ge=1)] = 5
    keep: Annotated[int, Field(ge=2)] = 5  # the newest ones; older are deleted


class TrackConfig(Section):
    """Where metrics go beside the run's own files, and how many transcripts are written."""

    tensorboard: bool = True
    wandb: Text | None = None  # project name
    trackio: Text | None = None  # project name
    episodes: Annotated[int, Field(ge=0)] = 8  # written to episodes.jsonl an iteration
    held_out: Annotated[int, Field(ge=0)] = 64  # written to held_out.jsonl an evaluation: failed, wrong, lowest first

    @field_validator("wandb", "trackio")
    @classmethod
    def check_project(cls, project: str | None) -> str | None:
        """Raise a ValueError for a truth value where a project's name is needed."""
        if project is not None and project.casefold() in ("true", "false", "yes", "no", "on", "off"):
            raise ValueError(f"{project!r} is no project; give the project's name, or null for none")
        return project


class Config(Section):
    """Everything a run is made of."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantize: Literal["int8", "nf4"] | None = None  # the base's linear layers, in 8 or 4 bits
    model: str = "nano"
    init_from: Text | None = None
    env: EnvConfig = EnvConfig()
    team: TeamConfig
    algorithm: Annotated[SerializeAsAny[AlgorithmConfig], BeforeValidator(choice_validator("algorithm"))]
    credit: Annotated[SerializeAsAny[CreditConfig], BeforeValidator(choice_validator("credit"))] = Field(
        default={"name": "equal"}, validate_default=True
    )
    critic: CriticConfig = CriticConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    lora: LoraConfig = LoraConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    rollout: RolloutConfig = RolloutConfig()
    learner: LearnerConfig = LearnerConfig()
    cluster: ClusterConfig = ClusterConfig()
    engine: EngineConfig = EngineConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    track: TrackConfig = TrackConfig()

    @property
    def critics(self) -> Literal["shared", "per_agent", "none"]:
        """The critic's mode, spelled out."""
        return self.critic.mode or ("shared" if self.algorithm.values_at is not None else "none")

    @property
    def workers(self) -> int:
        """Processes that play beside this one."""
        given = self.rollout.workers
        return given if given is not None else int(self.train.lag > 0)

    @property
    def only_learns(self) -> bool:
        """Whether this process generates nothing: its base lies in shards, and workers have whole ones."""
        return self.learner.shard and self.workers > 0

    def device_of(self, worker: int | None) -> str:
        """Where a worker computes; None: this process."""
        gpus = self.rollout.gpus
        return self.device if worker is None or not gpus else f"cuda:{gpus[worker % len(gpus)]}"

    @property
    def kept_turns(self) -> int:
        """Of how many turns the local engine keeps keys."""
        if self.engine.keep is None:
            under_way = self.train.tasks * self.train.samples * len(self.team.agents)
            return max(KEPT_TURNS, under_way) if self.team.speaks_again else 0
        return self.engine.keep

    def engines_beside(self, worker: int | None = None) -> int:
        """Engines on the same device as a worker's (None: this process's), its own included: every process that plays has
        one. Ray gives each worker a GPU of its own."""
        if self.cluster.address is not None:
            return 1
        first = {"auto": "cuda:0", "cuda": "cuda:0"}
        here = () if self.only_learns else (None,)
        devices = [self.device_of(each) for each in (*here, *range(self.workers))]
        own = self.device_of(worker)
        return sum(first.get(each, each) == first.get(own, own) for each in devices)

    def alone(self, device: str | None = None) -> Config:
        """The same team without processes beside it, for whoever only plays; on another device where one is given."""
        return self.model_copy(
            update={
                "device": device or self.device,
                "rollout": RolloutConfig(workers=0),
                "learner": LearnerConfig(),
                "cluster": ClusterConfig(),
            }
        )

    @property
    def shards(self) -> int:
        """Parts that a batch is played in."""
        return self.rollout.shards or max(self.workers, 1)

    @property
    def correction(self) -> float | None:
        """The largest weight of what another policy said, spelled out; None: nothing is weighted."""
        given = self.algorithm.correction
        if given == "auto":
            return DEFAULT_CORRECTION if self.train.lag > 1 else None
        return given

    @property
    def beta1(self) -> float:
        """Adam's momentum, spelled out. Gradients that come late act like more of it (arXiv 1605.09774)."""
        if self.optimizer.beta1 is not None:
            return self.optimizer.beta1
        return 0.5 if self.train.lag else 0.9

    @property
    def compares(self) -> bool:
        """Whether the learner reads what was said again, to measure how far the policy that spoke is from its own."""
        return self.engine.name != "local" or self.engine.mismatch or self.correction is not None

    @model_validator(mode="after")
    def check(self) -> Config:
        """Raise a ValueError where sections contradict one another."""
        self._check_team()
        self._check_critic()
        self._check_credit()
        self._check_train()
        self._check_schedule()
        self._check_engine()
        self._check_rollout()
        self._check_learner()
        return self

    def _check_team(self) -> None:
        for name, agent in self.team.agents.items():
            if agent.kind == "frozen" and agent.adapter is not None and not (agent.init_from or self.init_from):
                raise ValueError(
                    f"team.agents.{name}.adapter: a frozen agent without init_from is the base model alone; drop adapter "
                    "or give init_from"
                )
            if agent.kind == "remote" and self.eval.top_k:
                raise ValueError(f"eval.top_k: {name!r} is remote, and OpenAI's protocol has none; use eval.top_p")

    def _check_critic(self) -> None:
        name, valued = self.algorithm.name, self.algorithm.values_at is not None
        if valued and self.critics == "none":
            raise ValueError(
                f"critic.mode: {name} estimates advantages with a critic; say critic=shared or algorithm=grpo"
            )
        if not valued and self.critics != "none":
            raise ValueError(f"critic.mode: {name} uses no critic and would ignore it; drop it or say critic=none")
        if not valued and (given := [key for key in ("lr", "warmup") if getattr(self.critic, key)]):
            raise ValueError(f"critic.{given[0]}: {name} has no critic and would ignore it; drop it")
        if self.critic.warmup >= self.train.iterations:
            raise ValueError("critic.warmup: the agents would never learn; lower it or raise train.iterations")

    def _check_credit(self) -> None:
        if isinstance(self.algorithm, GaeConfig) and self.algorithm.lam is not None and not self.credit.chained:
            raise ValueError(
                f"algorithm.lam: with {self.credit.name} credit turns are not chained, and it would be ignored; drop it, or "
                "say algorithm.lam=null"
            )

    def _check_train(self) -> None:
        train = self.train
        if train.samples < (least := self.algorithm.least_samples):
            raise ValueError(f"train.samples: {self.algorithm.name} compares samples of one task; give {least} or more")
        if train.samples < (least := self.credit.least_samples):
            raise ValueError(
                f"train.samples: {self.credit.name} credit compares samples that fork from one; give {least} or more"
            )
        if train.minibatches > train.tasks * train.samples:
            raise ValueError("train.minibatches: more minibatches than episodes; lower it or raise train.tasks")

    def _check_schedule(self) -> None:
        mode, adapters = self.schedule.mode, set(self.team.trained.values())
        if mode != "joint" and len(adapters) == 1:
            raise ValueError(f"schedule.mode: {mode} orders several adapters and only one is trained; use joint")
        learning = self.train.iterations - self.critic.warmup
        if mode == "alternate" and (len(adapters) - 1) * (self.schedule.interval or 1) >= learning:
            raise ValueError(
                f"schedule.interval: the last of {len(adapters)} adapters would never learn; lower it or raise "
                "train.iterations"
            )
        if mode == "resample" and self.train.lag:
            raise ValueError(
                "train.lag: resample plays again with what was just learnt; use sequential, or drop the lag"
            )

    def _check_engine(self) -> None:
        engine = self.engine
        if engine.options and engine.name in ENGINES:
            raise ValueError(
                f"engine.options: they are for an engine of your own, and {engine.name} has none; drop them"
            )
        if engine.name == "local" and engine.url is not None:
            raise ValueError("engine.url: only vLLM has one; say engine.name=vllm or drop it")
        if engine.name != "local" and engine.keep is not None:
            raise ValueError("engine.keep: only the local engine's keys are ours to keep; drop it")
        if engine.url is not None and engine.memory is not None:
            raise ValueError("engine.memory: a server is told when it is started; drop it")
        ours = [agent for agent in self.team.agents.values() if agent.kind in ("trained", "frozen")]
        models = {agent.model or self.model for agent in ours}
        if engine.name == "vllm" and len(models) > 1:
            raise ValueError(f"engine.name: vllm serves one base model and this team has {len(models)}; use local")
        heat = [agent.temperature for agent in ours] + ([self.eval.temperature] if self.eval.temperature else [])
        if engine.name == "vllm" and self.quantize is not None:
            raise ValueError(
                "quantize: vLLM has a base of its own, which would not be the one that is trained on; use local, or drop it"
            )
        if engine.name == "vllm" and (odd := [t for t in heat if t and not 0.01 <= t <= 2]):
            raise ValueError(f"engine.name: vllm draws at temperatures from 0.01 to 2, not at {odd[0]:g}; use local")

    def _check_rollout(self) -> None:
        rollout = self.rollout
        if rollout.gpus and not self.workers:
            raise ValueError("rollout.gpus: they are the workers', and this process plays; give rollout.workers")
        if (address := self.cluster.address) is not None and not self.workers and self.learner.ranks == 1:
            raise ValueError(
                "cluster.address: workers and ranks of the learner run there, and there are none; give rollout.workers or "
                "learner.ranks"
            )
        if address is not None and rollout.gpus:
            raise ValueError("rollout.gpus: Ray gives each worker a GPU of its own; drop it, or cluster.address")
        if address is not None and address.startswith("ray://") and self.learner.ranks > 1:
            raise ValueError(
                "learner.ranks: ranks find one another by their addresses in the cluster, and who comes by ray:// has none; "
                "start on a node, with cluster.address=auto"
            )
        if self.workers and self.engine.name == "vllm" and self.engine.url is not None:
            raise ValueError("rollout.workers: a server is one engine for all; drop engine.url or the workers")
        if rollout.swap == "token" and self.engine.name != "local":
            raise ValueError("rollout.swap: only the local engine changes weights while it speaks; use turn")
        if rollout.swap == "token" and not (self.workers and self.train.lag):
            raise ValueError(
                "rollout.swap: no newer weights come while a play is under way; give train.lag and workers, or use turn"
            )
        if rollout.replay is not None and rollout.swap == "turn":
            raise ValueError("rollout.replay: without swaps a run repeats itself; say rollout.swap=token or drop it")

    def _check_learner(self) -> None:
        if not self.learner.shard:
            return
        if self.quantize is not None:
            raise ValueError("quantize: shards are gathered in the base's own dtype; drop it, or learner.shard")
        if self.learner.ranks == 1:
            raise ValueError("learner.shard: one rank has the whole base; give learner.ranks, or drop it")
        if not self.workers and not self.engine.urls:
            raise ValueError(
                "learner.shard: this process cannot play with a part of the base; give rollout.workers, or servers by "
                "engine.url"
            )
