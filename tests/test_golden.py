"""The library against `examples/single_file_marft.py`: two programs that share no code agree on every number.

Both get the same adapters, value head and episodes; then prompts, values, advantages, losses and gradients are
compared.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from lessons import Lesson, Seat, lesson_of, make_batch
from torch import Tensor
from torch.testing import assert_close

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch, Surrogate
from marft.config import load_config
from marft.game.observation import transcript_text
from marft.learners.local import LocalLearner
from marft.models.chat import render
from marft.models.loading import load
from marft.models.lora import AdapterSpec
from marft.models.registry import NANO
from marft.models.team import TeamModel
from marft.training.build import CRITIC, learner_settings
from marft.types import Completion, Episode, Message, Reward, Task, Turn

FILE = Path(__file__).parents[1] / "examples" / "single_file_marft.py"
TEMPERATURE = 0.9
CONFIG = load_config("duo", ["algorithm.clip_low=0.1", "algorithm.clip_high=0.15"])
ADAPTERS = ("planner", "solver", CRITIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """Both programs after the same preparation. `played` are the file's episodes, `batch` is the library's view."""

    file: Any
    args: Any
    theirs: Any
    played: list[Any]
    learner: LocalLearner
    batch: Batch
    lesson: Lesson


def load_file() -> ModuleType:
    spec = importlib.util.spec_from_file_location("single_file_marft", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def stir(theirs: Any) -> None:
    """B and the value head start at 0, which would hide half the gradients."""
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for layer in theirs.layers.values():
            for b in layer.b.values():
                b.copy_(0.03 * torch.randn(b.shape, generator=g))
        for parameter in theirs.value_head.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=g))


def copy_weights(theirs: Any, ours: TeamModel) -> None:
    assert theirs.layers.keys() == ours.lora.stacks.keys()
    with torch.no_grad():
        for name, layer in theirs.layers.items():
            for adapter in ADAPTERS:
                mine = ours.lora.adapter_parameters(adapter)
                mine[f"{name}.a"].copy_(layer.a[adapter])
                mine[f"{name}.b"].copy_(layer.b[adapter].T)
        for key, parameter in theirs.value_head.named_parameters():
            ours.trainable_parameters(CRITIC)[f"value_head.{key}"].copy_(parameter)


def play(file: Any, theirs: Any) -> list[Any]:
    """Three tasks, twice each, tokens drawn by the file; rewards set so that both kinds occur, and log-probs moved so
    that ratios are not 1 and some are clipped."""
    rng = random.Random(0)
    tasks = [file.draw_task(rng, 2) for _ in range(3)]
    played = [file.Episode(task.task, task.answer) for task in tasks for _ in range(2)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        file.play(theirs, played, TEMPERATURE)
    for i, episode in enumerate(played):
        episode.reward = (1.0, 0.0, 0.5)[i % 3]
        for turn in episode.turns:
            turn.logprobs = [logprob + rng.gauss(0, 0.15) for logprob in turn.logprobs]
    cut = played[0].turns[-1]  # as if it had run into its limit
    cut.action, cut.logprobs = cut.action[:-1], cut.logprobs[:-1]
    return played


def to_library(played: list[Any], tokenizer: Any) -> list[Episode]:
    episodes = []
    for i, one in enumerate(played):
        task = Task(id=f"task {i // 2}", prompt=one.task, data={"answer": one.answer})
        turns: list[Turn] = []
        for k, turn in enumerate(one.turns):
            observation = (
                Message(role="system", content=CONFIG.team.agents[turn.agent].prompt),
                Message(role="user", content=transcript_text(task, "", turns, named=True)),
            )
            completion = Completion(
                text=turn.text,
                token_ids=tuple(turn.action),
                logprobs=tuple(turn.logprobs),
                finish="stop" if turn.action[-1] == tokenizer.eos_token_id else "length",
                version=0,
            )
            ids = render(tokenizer, observation)
            turns.append(
                Turn(
                    agent=turn.agent,
                    index=k,
                    nth=0,
                    shown="",
                    observation=observation,
                    prompt_ids=ids,
                    completion=completion,
                )
            )
        episodes.append(Episode(task=task, sample=i % 2, turns=tuple(turns), reward=Reward(team=one.reward)))
    return episodes


@pytest.fixture(scope="module")
def golden() -> Iterator[Golden]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    file: Any = load_file()
    args = file.Args(model=str(NANO), temperature=TEMPERATURE, clip_low=0.1, clip_high=0.15)
    theirs = file.Team(args)
    stir(theirs)
    specs = [AdapterSpec(name=name, rank=CONFIG.lora.rank, alpha=CONFIG.lora.alpha) for name in ADAPTERS]
    ours = TeamModel(
        load("nano", "cpu", "float32"),
        agents=specs[:-1],
        critics=specs[-1:],
        targets=CONFIG.lora.targets,
        seed=0,
    )
    copy_weights(theirs, ours)
    played = play(file, theirs)
    members = [
        Seat(
            agent=name,
            adapter=name,
            critic=CRITIC,
            team=ours,
            encode=lambda messages: render(ours.tokenizer, messages),
            temperature=TEMPERATURE,
        )
        for name in ours.agents
    ]
    batch = make_batch(members, to_library(played, ours.tokenizer))
    plain = [member.plain for member in members]
    assert isinstance(CONFIG.algorithm, Algorithm)
    learner = LocalLearner(plain, dict.fromkeys(ADAPTERS, ours), CONFIG.algorithm, learner_settings(CONFIG, plain))
    lesson = lesson_of(learner, batch)
    assert lesson.data.scores.final_E.tolist() == [0.0] * len(played)
    yield Golden(
        file=file,
        args=args,
        theirs=theirs,
        played=played,
        learner=learner,
        batch=batch,
        lesson=lesson,
    )
    torch.set_num_threads(threads)


def test_both_have_the_same_settings(golden: Golden) -> None:
    """What defines the method is the same by default; batch sizes and learning rates are each one's own."""
    default, config = golden.file.Args(), load_config("duo")
    algorithm: Any = config.algorithm
    assert {name: (p.prompt, p.max_tokens) for name, p in golden.file.AGENTS.items()} == {
        name: (a.prompt, a.max_tokens) for name, a in config.team.agents.items()
    }
    assert (default.rank, default.alpha) == (config.lora.rank, config.lora.alpha)
    assert {default.temperature} == {agent.temperature for agent in config.team.agents.values()}
    for name in ("token_gamma", "token_lam", "clip_low", "clip_high"):
        assert getattr(default, name) == getattr(algorithm, name), name
    assert default.lam == algorithm.turn_lam
    assert (algorithm.aggregation, algorithm.whiten, algorithm.value_loss) == ("token", True, "mse")
    assert set(golden.batch.discount_K.tolist()) == {default.gamma}


def test_prompts_and_central_states_are_the_same_tokens(golden: Golden) -> None:
    theirs = [turn for episode in golden.played for turn in episode.turns]
    assert [list(prompt) for prompt in golden.batch.prompts] == [turn.prompt for turn in theirs]
    assert [list(state) for state in golden.batch.states] == [turn.state for turn in theirs]


def test_the_batch_is_worth_comparing(golden: Golden) -> None:
    """Turns of many lengths, ended and cut off; ratios on both sides of the clip; values that differ."""
    lengths = golden.batch.length_K
    assert len(lengths.unique()) > 4
    assert set(golden.batch.truncated_K.tolist()) == {False, True}
    assert golden.lesson.values is not None
    assert golden.lesson.values.std() > 0.01


def test_values_advantages_and_returns_agree(golden: Golden) -> None:
    turns = [turn for episode in golden.played for turn in episode.turns]
    with torch.no_grad():
        assert_close(golden.lesson.values, golden.file.state_values(golden.theirs, turns), atol=1e-5, rtol=0)
    whitened, returns = golden.file.estimate(golden.theirs, golden.played, golden.args)
    assert_close(golden.lesson.estimate.advantages_N, whitened, atol=1e-5, rtol=0)
    assert_close(golden.lesson.estimate.returns, returns, atol=1e-5, rtol=0)


def test_losses_and_gradients_agree(golden: Golden) -> None:
    file, learner, batch = golden.file, golden.learner, golden.batch
    whitened, returns = file.estimate(golden.theirs, golden.played, golden.args)
    found = file.losses(golden.theirs, golden.played, whitened, returns, golden.args)
    sum(found.values()).backward()

    once, everything = torch.ones(len(batch.task_E)), torch.arange(len(batch.length_K))
    tally = learner._accumulate(golden.lesson.data, golden.lesson.plan(learner), once, everything, set(ADAPTERS))
    assert tally.critics == {CRITIC: pytest.approx(found[CRITIC].item(), abs=1e-5)}
    assert (tally.by_agent[:, 2] > 0).all()  # some tokens of both agents are clipped
    for agent in [member.adapter for member in learner.members]:
        assert policy_loss(golden, agent).item() == pytest.approx(found[agent].item(), abs=1e-5)

    for adapter in ADAPTERS:
        pairs = paired_gradients(golden, adapter)
        largest = max(theirs.abs().max().item() for theirs, _ in pairs.values())
        assert largest > 1e-4
        for name, (theirs, ours) in pairs.items():
            assert theirs.abs().max() > 0, name
            assert (theirs - ours).abs().max().item() <= 2e-5 * largest, name


def policy_loss(golden: Golden, agent: str) -> Tensor:
    """The library's policy loss of one agent's turns: what its passes add up, where nothing else is in the loss."""
    learner, batch, found = golden.learner, golden.batch, list[Tensor]()
    assert (learner.settings.entropy, golden.lesson.data.scores.reference_N) == (0, None)
    kind = type(learner.algorithm)
    real = kind.surrogate

    def surrogate(*arguments: Any) -> Surrogate:
        one = real(*arguments)
        found.append(one.loss)
        return one

    with torch.no_grad(), patch.object(kind, "surrogate", surrogate):
        once, everything = torch.ones(len(batch.task_E)), torch.arange(len(batch.length_K))
        learner._accumulate(golden.lesson.data, golden.lesson.plan(learner), once, everything, {agent})
    return torch.stack(found).sum()


def paired_gradients(golden: Golden, adapter: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Each tensor's gradient in the file and in the library, the file's B laid out like the library's."""
    ours = {key: gradient(p) for key, p in golden.learner.parameters(adapter).items()}
    theirs: dict[str, Tensor] = {}
    for name, layer in golden.theirs.layers.items():
        theirs[f"{name}.a"] = gradient(layer.a[adapter])
        theirs[f"{name}.b"] = gradient(layer.b[adapter]).T
    if adapter == CRITIC:
        theirs |= {f"value_head.{key}": gradient(p) for key, p in golden.theirs.value_head.named_parameters()}
    assert theirs.keys() == ours.keys()
    return {key: (theirs[key], ours[key]) for key in theirs}


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
