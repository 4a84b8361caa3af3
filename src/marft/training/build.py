"""From a config to the things it names: bases, agents and their engines, learner, environment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Member
from marft.config import AgentConfig, AlgorithmConfig, Config, EnvConfig, GaeConfig
from marft.engines.base import Adapters, Engine
from marft.envs.base import Split
from marft.envs.hosting import Host, open_env
from marft.files import is_folder
from marft.game.agent import Agent
from marft.game.lockstep import Lockstep
from marft.game.play import seed_of
from marft.game.workflows import Workflow, find_workflow
from marft.learners.local import LearnerSettings, LocalLearner
from marft.models.chat import ChatFormat
from marft.models.loading import Loaded, load, pick_device, pick_dtype
from marft.models.lora import AdapterSpec
from marft.models.peft_format import CONFIG, read_scaling
from marft.models.recompute import recompute_layers
from marft.models.sharding import place_around_layers
from marft.models.team import TeamModel
from marft.rollouts.runner import EpisodeRunner
from marft.runs.directory import RunDirectory
from marft.runs.export import checkpoint_folder
from marft.terminal import warn
from marft.terminal.status import Status
from marft.training.agents import OpenTools, make_agent, make_agent_engine, make_engine
from marft.training.packages import package_versions
from marft.training.ranks import rank_device
from marft.types import MarftError

CRITIC = "critic"
DEFAULT_FACTOR_CLIP = 5.0
AdapterSizes = Mapping[str, tuple[int, float]]  # rank and alpha
RANK_PROCESS = "marft.training.rank_process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """One base model with the adapters on it, and its engine."""

    team: TeamModel
    engine: Engine
    fingerprint: str  # of its weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Everything a run works with."""

    bases: Mapping[str, Base]  # by model name
    engines: Sequence[Engine]  # those of the bases, and of agents that speak with none
    learner: LocalLearner
    runner: EpisodeRunner
    lockstep: Lockstep  # of all that the team's engines wait for
    tools: OpenTools

    @property
    def fingerprint(self) -> str:
        """Of all bases' weights."""
        prints = [base.fingerprint for base in self.bases.values()]
        return prints[0] if len(prints) == 1 else hashlib.sha256(" ".join(prints).encode()).hexdigest()

    @property
    def teams(self) -> list[TeamModel]:
        """The base models with their adapters, in the order of `bases`."""
        return [base.team for base in self.bases.values()]

    @property
    def adapter_sizes(self) -> AdapterSizes:
        """Of every agent."""
        return adapter_sizes(self.teams)

    @property
    def device(self) -> str:
        """The first base's device, as torch names it; a phrase where no base is loaded."""
        return next((str(base.team.device) for base in self.bases.values()), "no device of ours")

    @property
    def tokens(self) -> int:
        """Generated so far."""
        return sum(engine.tokens for engine in self.engines)

    @property
    def vocabularies(self) -> dict[str, int]:
        """The number of tokens that each learning agent may say."""
        learner = self.learner
        return {m.agent: int(learner.teams[m.adapter].config.vocab_size) for m in learner.members}

    def publish(self, version: int, adapters: Adapters | None = None) -> None:
        """Engines speak with these adapters, which are this version's; None: with the team's as they are."""
        for engine in self.engines:
            own = [base.team.agents for base in self.bases.values() if base.engine is engine]
            given = None if adapters is None else {name: adapters[name] for names in own for name in names}
            engine.publish(version, given or None)

    def snapshot(self) -> Adapters:
        """A copy of all agents' adapters, in main memory."""
        return {
            name: {
                key: parameter.detach().to("cpu", copy=True)
                for key, parameter in team.trainable_parameters(name).items()
            }
            for team in self.teams
            for name in team.agents
        }

    def close(self) -> None:
        """Ends the environment's and the learner's processes, and frees what the engines hold."""
        with ExitStack() as stack:  # one that fails keeps none of the others
            stack.callback(self.runner.host.close)
            stack.callback(self.learner.close)
            stack.callback(self.tools.close)
            stack.callback(getattr(self.runner.workflow, "close", lambda: None))
            for engine in self.engines:
                stack.callback(engine.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def assemble(
    config: Config, saved: Path | None = None, reads: Sequence[Split] = (), status: Status | None = None,
    specs: AdapterSizes | None = None,
) -> Assembly:  # fmt: skip
    """`saved` is a checkpoint of the same run, where there is one: agents that brought adapters along have theirs there;
    `specs` are rank and alpha of every agent's adapter, where they are known. Tasks of the splits in
    `reads` are read and tools are opened before any model is read, which may be large and far away."""
    if config.engine.name == "vllm":
        from marft.engines.vllm.engine import check_available

        check_available(config.engine)
    status = status or Status()
    lockstep = Lockstep()
    status.begin(f"preparing the environment {config.env.name}")
    host = open_host(config.env, lockstep)
    for split in reads:
        status.begin(f"reading the tasks of {config.env.name} ({split})")
        host.tasks(split)
    workflow = make_workflow(config)
    with ExitStack() as opened:
        tools = OpenTools(config.team.agents, lockstep)
        opened.callback(tools.close)
        bases: dict[str, Base] = {}
        for name in base_names(config):
            status.begin(f"loading the model {name}")
            bases[name] = make_base(config, name, saved, lockstep, specs)
        own = {name: engine for name, agent in config.team.agents.items() if (engine := make_agent_engine(agent))}
        agents = {name: seat_agent(config, name, bases, own.get(name), tools) for name in config.team.agents}
        learner = make_learner(config, {name: base.team for name, base in bases.items()}, status)
        opened.pop_all()  # from here on they are the assembly's to close
    runner = EpisodeRunner(team=agents, host=host, workflow=workflow, status=status)
    engines = [*(base.engine for base in bases.values()), *own.values()]
    return Assembly(bases=bases, engines=engines, learner=learner, runner=runner, lockstep=lockstep, tools=tools)


def seat_agent(config: Config, name: str, bases: Mapping[str, Base], own: Engine | None, tools: OpenTools) -> Agent:
    """An agent that speaks with an engine of its `own`, or with that of its base model."""
    adapter, open_tools = adapter_of(config, name), tools.by_agent[name]
    if own is not None:
        return make_agent(config, name, adapter, own, open_tools)
    base = bases[model_of(config, name)]
    return make_agent(
        config, name, adapter, base.engine, open_tools, ChatFormat(base.team.tokenizer, base.team.end_ids)
    )


def make_workflow(config: Config) -> Workflow:
    """The team's workflow; a program's brings its endpoint along."""
    if config.team.program is None:
        return find_workflow(config.team.workflow, config.team.settings)
    try:
        from marft.programs.workflow import ProgramWorkflow  # its HTTP library is loaded by those who need it
    except ModuleNotFoundError as error:
        raise MarftError(f"team.workflow: program needs {error.name}; pip install 'marft[programs]'") from None
    return ProgramWorkflow(config.team.program)


def open_host(env: EnvConfig, lockstep: Lockstep) -> Host:
    """The environment of a config, hosted in its worker processes; close it after use."""
    return open_env(
        env.name, env.settings, deadline=env.deadline, tasks_deadline=env.tasks_deadline, workers=env.workers,
        lockstep=lockstep,
    )  # fmt: skip


def adapter_sizes(teams: Iterable[TeamModel]) -> AdapterSizes:
    """Of all agents on these bases."""
    specs = (spec for team in teams for spec in team.lora.specs.values() if spec.name in team.agents)
    return {spec.name: (spec.rank, spec.alpha) for spec in specs}


# --- bases and adapters ----------------------------------------------------------------------------------------------
def model_of(config: Config, agent: str) -> str:
    """The name of an agent's base model: its own, or the config's."""
    return config.team.agents[agent].model or config.model


def base_names(config: Config) -> list[str]:
    """Models that somebody speaks with, in the order of their first agent."""
    ours = (name for name, agent in config.team.agents.items() if agent.kind in ("trained", "frozen"))
    return list(dict.fromkeys(model_of(config, name) for name in ours))


def make_base(
    config: Config, model: str, saved: Path | None, lockstep: Lockstep, specs: AdapterSizes | None = None
) -> Base:
    """Load a base model, with the adapters and critics of every agent that uses it, and open its engine."""
    loaded = load_base(config, model)
    team = make_team(config, model, loaded, saved, specs)
    if line := describe_limits(config, model, team.longest):
        warn(line)
    engine = make_engine(config, team, lockstep, len(base_names(config)))
    return Base(team=team, engine=engine, fingerprint=loaded.fingerprint)


def load_base(config: Config, model: str, device: str | None = None) -> Loaded:
    """A base model on a rank's device, unless given that of rank 0; where its layers are to be sharded or quantised, in main
    memory until then."""
    device = device or rank_device(config, 0)
    if not config.learner.shard and config.quantize is None:
        return load(model, device, config.dtype)
    precision = pick_dtype(config.dtype, pick_device(device))
    loaded = load(model, "cpu", str(precision).removeprefix("torch."))
    return loaded if config.quantize is None else replace(loaded, fingerprint=f"{config.quantize}-{loaded.fingerprint}")


def make_team(
    config: Config, model: str, loaded: Loaded, saved: Path | None = None, specs: AdapterSizes | None = None,
    device: str | None = None,
) -> TeamModel:  # fmt: skip
    """A base model with the adapters and critics of every agent that uses it."""
    adapters: dict[str, AdapterSpec] = {}
    critics: dict[str, AdapterSpec] = {}
    for name, agent in config.team.agents.items():
        adapter = adapter_of(config, name)
        if adapter is None or model_of(config, name) != model:
            continue
        if specs is None:
            adapters.setdefault(adapter, adapter_spec(config, adapter, agent, saved))
        else:
            rank, alpha = specs[adapter]
            adapters[adapter] = AdapterSpec(name=adapter, rank=rank, alpha=alpha)
        if agent.kind == "trained" and (critic := critic_of(config, name)):
            critics[critic] = AdapterSpec(name=critic, rank=config.lora.rank, alpha=config.lora.alpha)
    team = TeamModel(
        loaded,
        agents=list(adapters.values()),
        critics=list(critics.values()),
        targets=config.lora.targets,
        seed=seed_of(config.seed, "adapters"),
    )
    if config.train.recompute:
        recompute_layers(team)
    if config.quantize is not None:
        team.quantize(config.quantize, pick_device(device or rank_device(config, 0)))
    if config.learner.shard:
        place_around_layers(team, pick_device(device or rank_device(config, 0)))
    return team


def describe_limits(config: Config, model: str, longest: int) -> str | None:
    """One line where agents may say more than their model reads, prompt and all; they would be cut off earlier."""
    over = {
        name: agent.max_tokens
        for name, agent in config.team.agents.items()
        if agent.kind in ("trained", "frozen") and model_of(config, name) == model and agent.max_tokens >= longest
    }
    if not over:
        return None
    given = ", ".join(f"team.agents.{name}.max_tokens={most}" for name, most in over.items())
    return (
        f"model {model} reads at most {longest} tokens, prompt and answer together, and {given} asks for more: "
        f"turns end when they are full; give less than {longest}"
    )


def adapter_of(config: Config, name: str) -> str | None:
    """A trained agent has an adapter; a frozen one only where there is one to start from, else it is the base alone."""
    agent = config.team.agents[name]
    given = agent.init_from or config.init_from
    return agent.adapter or name if agent.kind == "trained" or (agent.kind == "frozen" and given) else None


def adapter_spec(config: Config, adapter: str, agent: AgentConfig, saved: Path | None) -> AdapterSpec:
    """An adapter's rank and alpha: those it was saved with where it starts from a file, else the config's."""
    if agent.rank is None and (source := agent.init_from or (config.init_from if agent.kind == "frozen" else None)):
        # its rank is the one it was saved with
        folder = (
            saved / "agents" / adapter if saved else Path(source) if agent.init_from else adapter_path(source, adapter)
        )
        alpha, rank = read_scaling(folder / CONFIG)
        return AdapterSpec(name=adapter, rank=rank, alpha=alpha)
    return AdapterSpec(name=adapter, rank=agent.rank or config.lora.rank, alpha=config.lora.alpha)


def adapter_path(source: str, adapter: str) -> Path:
    """Where an adapter lies in a run, or in a folder of adapters."""
    run, folder = RunDirectory(Path(source)), Path(source)
    if run.exists():
        folder = checkpoint_folder(run, None)
    return folder / "agents" / adapter if is_folder(folder / "agents") else folder / adapter


def critic_of(config: Config, agent: str) -> str | None:
    """The critic that judges an agent's turns: it must read the agent's tokens, so every base has its own."""
    match config.critics:
        case "none":
            return None
        case "per_agent":
            return f"{CRITIC}-{agent}"
        case "shared":
            trained = dict.fromkeys(model_of(config, name) for name in config.team.trained)
            number = list(trained).index(model_of(config, agent))
            return CRITIC if number == 0 else f"{CRITIC}-{number}"


# --- the learner -----------------------------------------------------------------------------------------------------
def make_learner(config: Config, teams: Mapping[str, TeamModel], status: Status | None = None) -> LocalLearner:
    """Of this process alone, or its first rank of several; `teams` are by model name."""
    members = learning_members(config)
    own = adapter_teams(config, members, teams)
    assert isinstance(config.algorithm, Algorithm)
    settings, ranks = learner_settings(config, members), config.learner.ranks
    if ranks == 1:
        return LocalLearner(members, own, config.algorithm, settings, status)
    from marft.learners.replicated import RankPlan, ReplicatedLearner

    told = {
        "config": config.model_dump(mode="json"),
        "adapters": adapter_sizes(teams.values()),
        "versions": package_versions(),
    }
    devices = [rank_device(config, rank) for rank in range(ranks)]
    plan = RankPlan(
        devices=devices, module=RANK_PROCESS, arguments=told, threads=config.rollout.threads,
        load=partial(load_base, config) if config.learner.shard else None,
    )  # fmt: skip
    return ReplicatedLearner(members, own, config.algorithm, settings, plan, status)


def learning_members(config: Config) -> list[Member]:
    """Everybody who learns, with their adapters and critics."""
    return [
        Member(agent=name, adapter=adapter, critic=critic_of(config, name))
        for name, adapter in config.team.trained.items()
    ]


def adapter_teams(config: Config, members: Sequence[Member], teams: Mapping[str, TeamModel]) -> dict[str, TeamModel]:
    """The base that each adapter and critic lies on."""
    return {
        name: teams[model_of(config, member.agent)]
        for member in members
        for name in (member.adapter, member.critic)
        if name is not None
    }


def learner_settings(config: Config, members: list[Member]) -> LearnerSettings:
    """What the learner needs of the config; learning rates by adapter and critic."""
    algorithm, optimizer = config.algorithm, config.optimizer
    lr = {m.adapter: config.team.agents[m.agent].lr or optimizer.lr for m in members}
    lr |= {m.critic: config.critic.lr or optimizer.lr for m in members if m.critic is not None}
    return LearnerSettings(
        lr=lr, beta1=config.beta1, weight_decay=optimizer.weight_decay, eps=optimizer.eps, grad_clip=optimizer.grad_clip,
        epochs=config.train.epochs, minibatches=config.train.minibatches, tokens=config.train.tokens,
        entropy=algorithm.entropy, kl_estimator=algorithm.kl.estimator,
        trust_region=update_limit(config, algorithm.trust_region), kl_stop=update_limit(config, algorithm.kl_stop),
        factor_clip=config.schedule.clip or DEFAULT_FACTOR_CLIP,
        value_clip=algorithm.value_clip if isinstance(algorithm, GaeConfig) else None, huber_delta=huber_delta(algorithm),
    )  # fmt: skip


def update_limit(config: Config, limit: float | None) -> float | None:
    """What one update may make of a limit on the KL from the policy that played. With a lag of η > 1 iterations, η + 1 updates lie
    between that and what is made of it, and share what the config allows."""
    lag = config.train.lag
    return limit if limit is None or lag <= 1 else limit / (1 + lag)


def huber_delta(algorithm: AlgorithmConfig) -> float | None:
    """Of the critic's loss; None: it is the mean squared error."""
    if not isinstance(algorithm, GaeConfig) or algorithm.value_loss == "mse":
        return None
    return algorithm.huber_delta or 1.0
