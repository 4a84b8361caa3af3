"""An update that is done in another process, which knows the team and is given everything else as bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from lessons import ACTION, GRPO, TOKEN, Lesson, Seat, make_learner, make_team, seat
from safetensors.torch import save

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch, Estimate, Scores, TrainingBatch
from marft.algorithms.transport import from_bytes, to_bytes
from marft.learners.base import Steps, Update
from marft.learners.local import LocalLearner

ALGORITHMS: dict[str, Algorithm] = {"marft-token": TOKEN, "marft-action": ACTION, "grpo": GRPO}
SETTINGS: dict[str, Any] = {"epochs": 2, "minibatches": 2, "trust_region": 0.5, "entropy": 0.01}
JOINT: tuple[tuple[str, ...], ...] = (("planner", "solver"),)
SEQUENTIAL: tuple[tuple[str, ...], ...] = (("planner",), ("solver",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What another process is told: who learns by which algorithm in which steps, and from what."""

    algorithm: str
    steps: tuple[tuple[str, ...], ...]
    kl: float
    batch: bytes
    scores: bytes
    estimate: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of an update, in bytes: the weights and Adam's state of everybody, its figures, and the factors between steps."""

    weights: bytes
    optimizers: bytes
    figures: bytes


def team(algorithm: str) -> tuple[LocalLearner, Sequence[Seat]]:
    """The same in every process."""
    critic = "critic" if ALGORITHMS[algorithm].values_at else None
    members = seat(make_team(), critic=critic)
    return make_learner(members, ALGORITHMS[algorithm], **SETTINGS), members


def order_of(algorithm: str, steps: tuple[tuple[str, ...], ...], kl: float, data: TrainingBatch) -> Order:
    return Order(
        algorithm=algorithm, steps=steps, kl=kl,
        batch=to_bytes(data.batch), scores=to_bytes(data.scores), estimate=to_bytes(data.estimate),
    )  # fmt: skip


def updated(learner: LocalLearner, data: TrainingBatch, steps: Sequence[Sequence[str]], kl: float) -> Result:
    weights = {member.agent: kl for member in learner.members}
    order: Steps = tuple(frozenset(step) for step in steps)
    done = learner.update(data, Lesson(data=data, kl=weights).plan(learner, order, seed=3))
    return Result(weights=flat(learner.adapters()), optimizers=flat(learner.state_dict()), figures=figures_of(done))


def flat(state: Any) -> bytes:
    return save(
        {f"{name}/{key}": tensor.detach().contiguous() for name, own in state.items() for key, tensor in own.items()}
    )


def figures_of(done: Update) -> bytes:
    factor = None if done.factor_E is None else done.factor_E.tolist()
    return json.dumps(asdict(done) | {"factor_E": factor}, sort_keys=True).encode()


def carry_out(order: Order) -> Result:
    """In the other process."""
    torch.set_num_threads(1)
    learner, _ = team(order.algorithm)
    data = TrainingBatch(
        batch=from_bytes(Batch, order.batch),
        scores=from_bytes(Scores, order.scores),
        estimate=from_bytes(Estimate, order.estimate),
    )
    return updated(learner, data, order.steps, order.kl)
