"""Hand-made episodes and the learners that take them. Log-probs are the model's own, so that ratios start at 1."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch, Estimate, Member, TrainingBatch
from marft.algorithms.grpo import Grpo
from marft.algorithms.marft_action import MarftAction
from marft.algorithms.marft_token import MarftToken
from marft.engines.scripted import ScriptedEngine
from marft.game.agent import Agent
from marft.learners.base import Steps, Update, UpdatePlan
from marft.learners.local import LearnerSettings, LocalLearner
from marft.models.chat import render
from marft.models.loading import load
from marft.models.lora import AdapterSpec
from marft.models.scoring import action_span, hidden_states, logprobs
from marft.models.team import TeamModel
from marft.rollouts.batching import build_batch
from marft.rollouts.credit import Credit, Equal
from marft.types import Completion, Episode, Message, Reward, Sampling, Task, Turn

TOKEN = MarftToken(
    lam=0.95, token_gamma=1.0, token_lam=1.0, whiten=False,
    clip_low=0.2, clip_high=0.2, dual_clip=None, aggregation="turn",
)  # fmt: skip
ACTION = MarftAction(
    lam=0.95, whiten=False, clip_low=0.2, clip_high=0.2, dual_clip=None, aggregation="turn", normalise="token"
)
GRPO = Grpo(std_floor=1e-4, clip_low=0.2, clip_high=0.2, dual_clip=None, aggregation="turn")
DUO = ("planner", "solver")
Script = Sequence[tuple[str, str]]  # who says what
SCRIPTS: Sequence[tuple[Script, float]] = (
    ((("planner", "17+5, *3"), ("solver", "17+5=22, 22*3=66. Answer: 66")), 1.0),
    ((("planner", "Be careful."), ("solver", "Answer: 7")), 0.0),
    ((("planner", "12-4"), ("solver", "12-4=8. Answer: 8"), ("planner", "good")), 0.5),
)


# --- who learns -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Seat(Member):
    """A member, and what these tests play with."""

    team: TeamModel
    encode: Callable[[Sequence[Message]], tuple[int, ...]]
    temperature: float

    @property
    def plain(self) -> Member:
        return Member(agent=self.agent, adapter=self.adapter, critic=self.critic)

    @property
    def playing(self) -> Agent:
        engine = ScriptedEngine(lambda messages: "", ids=False)
        engine.encode = self.encode  # type: ignore[method-assign]
        sampling = Sampling(temperature=self.temperature)
        return Agent(name=self.agent, prompt="", sees=None, adapter=self.adapter, sampling=sampling, engine=engine)


def make_team(
    agents: Sequence[str] = DUO,
    *,
    critics: Sequence[str] = ("critic",),
    dtype: str = "float32",
    stir: float = 0.05,
    model: str = "nano",
) -> TeamModel:
    """A small team; `stir` is the spread of B and value heads, which start at 0 and would hide half the gradients."""
    team = TeamModel(
        load(model, "cpu", dtype),
        agents=[AdapterSpec(name=name, rank=4, alpha=8.0) for name in agents],
        critics=[AdapterSpec(name=name, rank=4, alpha=8.0) for name in critics],
        targets=("q_proj", "down_proj"),
        seed=0,
    )
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name in team.adapters:
            for key, parameter in team.trainable_parameters(name).items():
                if key.endswith(".b") or key.startswith("value_head"):
                    parameter.copy_(stir * torch.randn(parameter.shape, generator=g))
    return team


def seat(
    team: TeamModel,
    agents: Sequence[str] | Mapping[str, str] | None = None,
    *,
    critic: str | Mapping[str, str] | None = "critic",
    temperature: float = 1.0,
) -> list[Seat]:
    """Members on one base: `agents` may name each one's adapter, `critic` each one's critic."""
    names = list(team.agents if agents is None else agents)
    adapters = agents if isinstance(agents, Mapping) else {name: name for name in names}
    return [
        Seat(
            agent=name,
            adapter=adapters[name],
            critic=critic[name] if isinstance(critic, Mapping) else critic,
            team=team,
            encode=lambda messages: render(team.tokenizer, messages),
            temperature=temperature,
        )
        for name in names
    ]


# --- what they played -------------------------------------------------------------------------------------------------
def score(
    team: TeamModel, adapter: str | None, prompt: tuple[int, ...], ids: tuple[int, ...], temperature: float = 1.0
) -> Tensor:
    with torch.no_grad():
        hidden = hidden_states(team, [action_span(adapter, prompt, ids)])
        return logprobs(team, hidden, torch.tensor(ids), torch.full((len(ids),), temperature))[0]


def episode(
    members: Sequence[Seat],
    script: Script,
    reward: float,
    *,
    end: bool = True,
    task: str = "t",
    sample: int = 0,
    rewards: Mapping[int, float] | None = None,
) -> Episode:
    """An agent that is no member says its text without tokens, as scripts and endpoints do."""
    speakers = {member.agent: member for member in members}
    turns: list[Turn] = []
    for k, (agent, text) in enumerate(script):
        told = Message(role="system", content=f"You are {agent}.")
        said = "\n\n".join(["Start with 17.", *(f"{t.agent}: {t.text}" for t in turns)])
        observation = (told, Message(role="user", content=said))
        prompt: tuple[int, ...] = ()
        ids: tuple[int, ...] = ()
        old: tuple[float, ...] = ()
        if member := speakers.get(agent):
            prompt = member.encode(observation)
            ids = tuple(member.team.tokenizer.encode(text, add_special_tokens=False))
            ids += (min(member.team.end_ids),) if end else ()
            old = tuple(score(member.team, member.adapter, prompt, ids, member.temperature).tolist())
        finish: Literal["stop", "length"] = "stop" if end else "length"
        turns.append(
            Turn(
                agent=agent,
                index=k,
                nth=sum(t.agent == agent for t in turns),
                shown="",
                observation=observation,
                prompt_ids=prompt,
                completion=Completion(text=text, token_ids=ids, logprobs=old, finish=finish, version=0),
            )
        )
    return Episode(
        task=Task(id=task, prompt="Start with 17."),
        sample=sample,
        turns=tuple(turns),
        reward=Reward(team=reward, turns=rewards or {}),
    )


def episodes(members: Sequence[Seat]) -> list[Episode]:
    return [episode(members, script, reward) for script, reward in SCRIPTS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A turn of a batch: who said what on reading what, and how likely it was then."""

    agent: str
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: Tensor


def said_in(batch: Batch) -> list[Said]:
    logprobs = batch.old_N.split(batch.length_K.tolist())
    return [
        Said(agent=batch.member(k).agent, prompt=batch.prompts[k], ids=batch.completions[k], logprobs=logprobs[k])
        for k in range(len(logprobs))
    ]


def make_batch(members: Sequence[Seat], played: Sequence[Episode], credit: Credit | None = None) -> Batch:
    agents = {member.agent: member.playing for member in members}
    plain = [member.plain for member in members]
    return build_batch(played, members=plain, agents=agents, credit=credit or Equal())


# --- what they learn from it ------------------------------------------------------------------------------------------
def make_learner(members: Sequence[Seat], algorithm: Algorithm = TOKEN, **changes: Any) -> LocalLearner:
    names = dict.fromkeys([*(m.adapter for m in members), *(m.critic for m in members if m.critic)])
    settings = LearnerSettings(
        lr=dict.fromkeys(names, 1e-3), beta1=0.9, weight_decay=0.1, eps=1e-8, grad_clip=1.0, epochs=1, minibatches=1, tokens=8192,
        entropy=0.0, kl_estimator="k3", trust_region=None, kl_stop=None, factor_clip=1.2, value_clip=None, huber_delta=None,
    )  # fmt: skip
    teams = {name: m.team for m in members for name in (m.adapter, m.critic) if name is not None}
    return LocalLearner([member.plain for member in members], teams, algorithm, replace(settings, **changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What is learnt from, and the weights of a KL in the loss, by agent."""

    data: TrainingBatch
    kl: Mapping[str, float]

    @property
    def batch(self) -> Batch:
        return self.data.batch

    @property
    def estimate(self) -> Estimate:
        return self.data.estimate

    @property
    def values(self) -> Tensor | None:
        return self.data.scores.values

    def plan(self, learner: LocalLearner, steps: Steps | None = None, seed: int = 0) -> UpdatePlan:
        return UpdatePlan(
            steps=joint(learner) if steps is None else steps,
            rates=dict.fromkeys(learner.optimizers, 1.0),
            seed=seed,
            kl_weights=self.kl,
        )


def lesson_of(
    learner: LocalLearner,
    batch: Batch,
    *,
    kl: float = 0.0,
    advantages: Tensor | None = None,
    values: Tensor | None = None,
) -> Lesson:
    """What the batch is worth to the learner; `kl` is the weight of a KL in the loss, of every agent."""
    scores = learner.score(batch, reference=bool(kl))
    scores = scores if values is None else replace(scores, values=values)
    estimate = learner.algorithm.estimate(batch, scores)
    if advantages is not None:
        estimate = Estimate(advantages_N=advantages, returns=estimate.returns)
    weights = {member.agent: kl for member in learner.members}
    return Lesson(data=TrainingBatch(batch=batch, scores=scores, estimate=estimate), kl=weights)


def joint(learner: LocalLearner) -> Steps:
    return (frozenset(member.adapter for member in learner.members),)


def update(learner: LocalLearner, lesson: Lesson, steps: Steps | None = None, *, seed: int = 0) -> Update:
    return learner.update(lesson.data, lesson.plan(learner, steps, seed))


def learn(learner: LocalLearner, batch: Batch, *, kl: float = 0.0) -> Mapping[str, Mapping[str, float]]:
    """One joint update: its figures."""
    return update(learner, lesson_of(learner, batch, kl=kl)).statistics


def gradients(
    learner: LocalLearner, lesson: Lesson, *, learning: Collection[str] | None = None, factor: Tensor | None = None
) -> dict[str, Tensor]:
    """Of all adapters on the whole batch as one minibatch; then cleared. Adapters without a gradient are absent."""
    turns = torch.arange(len(lesson.batch.length_K))
    once = torch.ones(len(lesson.batch.task_E)) if factor is None else factor
    everyone = set(learner.optimizers) if learning is None else learning
    learner._accumulate(lesson.data, lesson.plan(learner), once, turns, everyone)
    found = {}
    for name in learner.optimizers:
        for key, parameter in learner.parameters(name).items():
            if parameter.grad is not None:
                found[f"{name}/{key}"] = parameter.grad.clone()
                parameter.grad = None
    return found


def only(found: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """One adapter's."""
    return {key: tensor for key, tensor in found.items() if key.partition("/")[0] == name}


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    largest = max(tensor.abs().max().item() for tensor in one.values())
    assert largest > 1e-4
    for key in one:
        assert (one[key] - other[key]).abs().max().item() <= 1e-5 * max(largest, 1.0), key


def differ(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """By far more than rounding, in every tensor."""
    assert one.keys() == other.keys()
    return all((one[key] - other[key]).abs().max() > 1e-3 * one[key].abs().max() for key in one)


def snapshot(team: TeamModel, name: str) -> dict[str, Tensor]:
    return {key: parameter.detach().clone() for key, parameter in team.trainable_parameters(name).items()}


def changed(team: TeamModel, name: str, before: Mapping[str, Tensor]) -> bool:
    return any(not torch.equal(before[key], parameter) for key, parameter in team.trainable_parameters(name).items())
