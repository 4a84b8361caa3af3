"""From a config to the things it names: model, team, engine, learner, environment."""

from __future__ import annotations

from dataclasses import dataclass

from marft.algorithms import credit
from marft.algorithms.experience import Algorithm
from marft.algorithms.grpo import Grpo
from marft.algorithms.marft_action import MarftAction
from marft.algorithms.marft_token import MarftToken
from marft.config import AlgorithmConfig, Config, GaeConfig, GrpoConfig, MarftActionConfig, MarftTokenConfig
from marft.engines.local import LocalEngine
from marft.envs import make_env
from marft.game.play import Agent, seed_of
from marft.game.workflows import Workflow, find_workflow
from marft.models.loading import load
from marft.models.lora import AdapterSpec
from marft.models.team import TeamModel
from marft.training.evaluation import EvalSettings, Table
from marft.training.learner import Learner, LearnerSettings

CRITIC = "critic"
CREDITS = {"equal": credit.equal}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Everything a run works with."""

    team: TeamModel
    engine: LocalEngine
    learner: Learner
    table: Table
    fingerprint: str  # of the base model's weights


def assemble(config: Config, workflow: Workflow | None = None) -> Assembly:
    env = make_env(config.env.name, config.env.settings)
    chosen = workflow or find_workflow(config.team.workflow)
    loaded = load(config.model, config.device, config.dtype)
    team = TeamModel(
        loaded,
        agents=[adapter_spec(config, name) for name in config.team.agents],
        critics=[adapter_spec(config, CRITIC)] if config.has_critic else [],
        targets=config.lora.targets,
        seed=seed_of(config.seed, "adapters"),
    )
    engine = LocalEngine(team, config.engine.slots)
    agents = {
        name: Agent(name=name, prompt=a.prompt, sees=a.sees, adapter=name, sampling=a.sampling)
        for name, a in config.team.agents.items()
    }
    learner = Learner(team, make_algorithm(config.algorithm), CRITIC if config.has_critic else None, settings(config))
    table = Table(team=agents, env=env, engine=engine, workflow=chosen)
    return Assembly(team=team, engine=engine, learner=learner, table=table, fingerprint=loaded.fingerprint)


def adapter_spec(config: Config, name: str) -> AdapterSpec:
    return AdapterSpec(name=name, rank=config.lora.rank, alpha=config.lora.alpha)


def make_algorithm(config: AlgorithmConfig) -> Algorithm:
    match config:
        case MarftTokenConfig():
            return MarftToken(
                lam=config.lam, token_gamma=config.token_gamma, token_lam=config.token_lam, whiten=config.whiten,
                clip_low=config.clip_low, clip_high=config.clip_high, aggregation=config.aggregation,
            )  # fmt: skip
        case MarftActionConfig():
            return MarftAction(
                lam=config.lam, whiten=config.whiten, clip_low=config.clip_low, clip_high=config.clip_high,
                normalise=config.normalise,
            )  # fmt: skip
        case GrpoConfig():
            return Grpo(
                std_floor=config.std_floor, clip_low=config.clip_low, clip_high=config.clip_high,
                aggregation=config.aggregation,
            )  # fmt: skip


def settings(config: Config) -> LearnerSettings:
    algorithm, optimizer = config.algorithm, config.optimizer
    lr = {name: agent.lr or optimizer.lr for name, agent in config.team.agents.items()}
    if config.has_critic:
        lr[CRITIC] = config.critic.lr or optimizer.lr
    return LearnerSettings(
        lr=lr, weight_decay=optimizer.weight_decay, grad_clip=optimizer.grad_clip, epochs=config.train.epochs,
        minibatches=config.train.minibatches, tokens=config.train.tokens, entropy=algorithm.entropy, kl=algorithm.kl,
        value_clip=algorithm.value_clip if isinstance(algorithm, GaeConfig) else None,
        value_loss=algorithm.value_loss if isinstance(algorithm, GaeConfig) else "mse",
    )  # fmt: skip


def eval_settings(config: Config) -> EvalSettings:
    chosen = config.eval
    return EvalSettings(tasks=chosen.tasks, temperature=chosen.temperature, top_p=chosen.top_p, top_k=chosen.top_k)
