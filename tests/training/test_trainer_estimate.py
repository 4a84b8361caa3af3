"""What the trainer makes of episodes before the learner sees them, and what it carries from one play to the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from quick import batch_of, plays_of, trainer_of

from marft.algorithms.batch import TrainingBatch
from marft.training.checkpoint import Position
from marft.training.trainer import Trainer
from marft.types import Episode, Turn

UNIFORM = -log(16)  # the log-prob that the untrained tiny base gives each of its tokens


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Trainer]:
    """A trainer whose adapters are away from the base."""

    def trainer(**changes: Any) -> Trainer:
        made = trainer_of(tmp_path / "run", **changes)
        g = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for team in made.parts.teams:
                for name in team.agents:
                    for parameter in team.trainable_parameters(name).values():
                        parameter.add_(0.3 * torch.randn(parameter.shape, generator=g))
        return made

    return trainer


def estimate(trainer: Trainer) -> tuple[Sequence[Episode], TrainingBatch]:
    rollout = trainer.source.next_batch(trainer.position.iteration)
    data, _ = trainer.estimate(rollout.batch)
    return rollout.episodes, data


def loss_weights(trainer: Trainer) -> list[float]:
    """The weights of a KL in the loss of the next update, ann's and bob's."""
    plan = trainer.plan(0, trainer.plays()[0])
    return [plan.kl_weights.get(name, 0.0) for name in ("ann", "bob")]


def centred(episodes: Sequence[Episode], penalty: Callable[[Turn], float]) -> list[float]:
    """dr_grpo by hand: each turn's return-to-go (the team's reward comes last) less the mean of its group."""
    scores: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    each = []
    for episode in episodes:
        for k, turn in enumerate(episode.turns):
            score = episode.reward.team - sum(penalty(later) for later in episode.turns[k:])
            key = (episode.task.id, turn.agent, turn.nth)
            scores[key].append(score)
            each.append((key, score, len(turn.completion.token_ids)))
    return [score - mean(scores[key]) for key, score, tokens in each for _ in range(tokens)]


# --- KL in the reward -------------------------------------------------------------------------------------------------
KINDS: dict[str, Callable[[float], float]] = {
    "k1": lambda d: -d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: exp(d) - d - 1,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kl_in_the_reward_is_taken_off_every_token_s(kind: str, make: Callable[..., Trainer]) -> None:
    """Each agent with the weight it has come to; and nothing of it is left for the loss."""
    kl = {"weight": 0.5, "estimator": kind, "where": "reward", "target": 0.1}
    trainer = make(algorithm={"name": "dr_grpo", "kl": kl})
    trainer.position = replace(trainer.position, kl_weights={"bob": 2.0})  # ann's is still what the config says
    weights = {"ann": 0.5, "bob": 2.0}
    episodes, data = estimate(trainer)

    def penalty(turn: Turn) -> float:
        return weights[turn.agent] * sum(KINDS[kind](UNIFORM - old) for old in turn.completion.logprobs)

    expected = centred(episodes, penalty)
    assert data.estimate.advantages_N.tolist() == pytest.approx(expected, abs=1e-4)
    assert max(map(abs, expected)) > 0.1
    assert expected != pytest.approx(centred(episodes, lambda turn: 0.0), abs=0.05)
    assert loss_weights(trainer) == [0.0, 0.0]


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "reinforce++", "marft-token", "marft-action", "rloo"])
def test_where_an_engine_rounds_otherwise_nothing_is_learnt_from_that(algorithm: str, tmp_path: Path) -> None:
    """Untrained adapters, so the KL is 0, and equal rewards: what is left are the engine's log-probs, off as in bfloat16."""
    kl = {"weight": 0.5, "estimator": "k1", "where": "reward"}
    trainer = trainer_of(tmp_path / "run", algorithm={"name": algorithm, "kl": kl})
    g = torch.Generator().manual_seed(0)

    def rounded(turn: Turn) -> Turn:
        logprobs = [x + 0.02 * float(torch.randn((), generator=g)) for x in turn.completion.logprobs]
        return replace(turn, completion=replace(turn.completion, logprobs=tuple(logprobs)))

    episodes = [
        replace(episode, turns=tuple(map(rounded, episode.turns)), reward=replace(episode.reward, team=1.0, turns={}))
        for episode in trainer.source.next_batch(0).episodes
    ]
    data, _ = trainer.estimate(batch_of(trainer, episodes))
    assert data.estimate.advantages_N.abs().max() < 0.02


def test_a_kl_in_the_loss_leaves_the_reward_alone(make: Callable[..., Trainer]) -> None:
    trainer = make(algorithm={"name": "dr_grpo", "kl": {"weight": 0.5, "target": 0.1}})
    trainer.position = replace(trainer.position, kl_weights={"bob": 2.0})
    episodes, data = estimate(trainer)
    assert data.estimate.advantages_N.tolist() == pytest.approx(centred(episodes, lambda turn: 0.0), abs=1e-5)
    assert loss_weights(trainer) == [0.5, 2.0]
    reference_N = data.scores.reference_N
    assert reference_N is not None
    assert reference_N.tolist() == pytest.approx([UNIFORM] * len(data.batch.old_N), abs=1e-5)


def test_without_a_kl_the_base_is_not_asked(make: Callable[..., Trainer]) -> None:
    _, data = estimate(make())
    assert data.scores.reference_N is None


def test_a_kl_weight_moves_towards_its_target(make: Callable[..., Trainer]) -> None:
    """By a tenth of how far the KL is off, a fifth at most: times 1.02 where it is far above, 0.98 far below."""
    for target, factor in ((1e-6, 1.02), (1e6, 0.98)):
        trainer = make(algorithm={"name": "grpo", "kl": {"weight": 0.5, "target": target}})
        for power in (1, 2):
            plays_of(trainer)
            assert trainer.position.kl_weights == pytest.approx(dict.fromkeys(("ann", "bob"), 0.5 * factor**power))


def test_a_kl_weight_follows_its_own_agent_s_kl(make: Callable[..., Trainer]) -> None:
    kl = {"weight": 0.5, "target": 0.2}
    trainer = make(algorithm={"name": "grpo", "kl": kl}, schedule="alternate")
    [done] = plays_of(trainer)
    measured = done.update.statistics["ann"]["reference_kl"]
    by = max(-0.2, min(0.2, measured / 0.2 - 1))
    assert trainer.position.kl_weights == pytest.approx({"ann": 0.5 * (1 + 0.1 * by)})  # bob has learnt nothing yet


def test_a_kl_weight_without_a_target_stays(make: Callable[..., Trainer]) -> None:
    trainer = make(algorithm={"name": "grpo", "kl": 0.5})
    plays_of(trainer)
    assert trainer.position.kl_weights == {}


# --- running baselines ------------------------------------------------------------------------------------------------
def test_baselines_are_used_before_they_move(make: Callable[..., Trainer]) -> None:
    """rae: A = c − b with the old b, then b ← ¾ b + ¼ mean c, of each agent. With equal credit c is the team's reward."""
    trainer = make(algorithm={"name": "rae", "decay": 0.75})
    known = {"ann": 0.5, "bob": -1.0}
    trainer.position = Position(baselines=known)
    [done] = plays_of(trainer)
    expected = [
        episode.reward.team - known[turn.agent]
        for episode in done.rollout.episodes
        for turn in episode.turns
        for _ in turn.completion.token_ids
    ]
    assert done.data.estimate.advantages_N.tolist() == pytest.approx(expected, abs=1e-5)
    average = mean(episode.reward.team for episode in done.rollout.episodes)
    assert trainer.position.baselines == pytest.approx({name: 0.75 * b + 0.25 * average for name, b in known.items()})


def test_baselines_begin_at_the_first_batch_s_mean(make: Callable[..., Trainer]) -> None:
    trainer = make(algorithm={"name": "rae", "decay": 0.75})
    [done] = plays_of(trainer)
    average = mean(episode.reward.team for episode in done.rollout.episodes)
    assert trainer.position.baselines == pytest.approx(dict.fromkeys(("ann", "bob"), average))


# --- whose turn it is -------------------------------------------------------------------------------------------------
def steps_at(trainer: Trainer, iterations: int) -> list[list[list[str]]]:
    found = []
    for iteration in range(iterations):
        trainer.position = Position(iteration=iteration)
        found.append([["+".join(sorted(step)) for step in steps] for steps in trainer.plays()])
    return found


def test_while_critics_warm_up_nobody_else_learns(make: Callable[..., Trainer]) -> None:
    """And the schedule begins after it."""
    changes: dict[str, Any] = {"algorithm": "marft-token", "critic": {"warmup": 2}, "train": {"iterations": 6}}
    assert steps_at(make(**changes), 4) == [[[""]], [[""]], [["ann+bob"]], [["ann+bob"]]]
    alternating = make(**changes, schedule="alternate")
    assert steps_at(alternating, 5) == [[[""]], [[""]], [["ann"]], [["bob"]], [["ann"]]]
    resampling = steps_at(make(**changes, schedule="resample"), 3)
    assert resampling[:2] == [[[""]], [[""]]]  # one play, as long as nobody learns
    assert sorted(resampling[2]) == [["ann"], ["bob"]]


def test_the_order_of_agents_changes_from_iteration_to_iteration(make: Callable[..., Trainer]) -> None:
    orders = [tuple(step for [step] in plays) for plays in steps_at(make(schedule="resample"), 12)]
    assert set(orders) == {("ann", "bob"), ("bob", "ann")}
    assert orders == [tuple(step for [step] in plays) for plays in steps_at(make(schedule="resample"), 12)]
    other = [tuple(step for [step] in plays) for plays in steps_at(make(schedule="resample", seed=1), 12)]
    assert orders != other


def test_each_play_raises_the_version_and_draws_new_tasks(make: Callable[..., Trainer]) -> None:
    trainer = make(schedule="resample")
    plays = plays_of(trainer)
    assert [play.version for play in plays] == [0, 1]
    assert (trainer.position.version, trainer.position.tasks_drawn, trainer.position.iteration) == (2, 4, 1)
    for play in plays:
        turns = [turn for episode in play.rollout.episodes for turn in episode.turns]
        assert {turn.completion.version for turn in turns} == {play.version}  # nobody plays with an old self
