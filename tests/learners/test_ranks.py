"""Two ranks against one process: each algorithm, schedule, critic and KL learns the same, however the tasks are dealt out.

Ranks are threads here, each with a team of its own: all that they have in common goes through their group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import pytest
import torch
from lessons import ACTION, DUO, GRPO, SCRIPTS, TOKEN, Seat, episode, make_batch, make_learner, make_team, seat
from torch import Tensor

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch, TrainingBatch
from marft.algorithms.dr_grpo import DrGrpo
from marft.algorithms.gspo import Gspo
from marft.algorithms.kl_penalty import kl_penalty
from marft.algorithms.rae import Rae
from marft.algorithms.reinforce_pp import ReinforcePP
from marft.algorithms.rloo import Rloo
from marft.learners.base import NotFinite, State, Steps, Update, UpdatePlan
from marft.learners.local import LocalLearner
from marft.learners.microbatches import Sample
from marft.learners.ranks import Ranks, dist
from marft.rollouts.credit import Credit, Tree

Result = TypeVar("Result")
JOINT: Steps = (frozenset(DUO),)
SEQUENTIAL: Steps = (frozenset({"planner"}), frozenset({"solver"}))
STEPS = 10  # of an optimizer, in which rounding adds up
CLOSE = 5e-6  # relative L2 of all weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How a team learns from which tasks."""

    algorithm: Algorithm
    steps: Steps = JOINT
    critics: str | Mapping[str, str] | None = None
    kl: float = 0.0  # in the loss
    penalty: float = 0.0  # of a KL in the reward
    tasks: Sequence[str] = ("a", "b", "c", "d")
    credit: Credit | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


PER_AGENT = {"planner": "critic-planner", "solver": "critic-solver"}
CASES = {
    "marft-token": Case(algorithm=TOKEN, critics="critic"),
    "marft-action": Case(algorithm=ACTION, critics="critic"),
    "grpo": Case(algorithm=GRPO),
    "dr_grpo": Case(algorithm=DrGrpo()),
    "rloo": Case(algorithm=Rloo()),
    "gspo": Case(algorithm=Gspo()),
    "reinforce++": Case(algorithm=ReinforcePP()),
    "rae": Case(algorithm=Rae()),
    "sequential": Case(algorithm=TOKEN, critics="critic", steps=SEQUENTIAL),
    "critics of their own": Case(algorithm=TOKEN, critics=PER_AGENT),
    "KL in the loss": Case(algorithm=ACTION, critics="critic", kl=0.1),
    "KL in the reward": Case(algorithm=TOKEN, critics="critic", penalty=0.1),
    "tree credit": Case(algorithm=GRPO, credit=Tree()),
    "one task": Case(algorithm=TOKEN, critics="critic", tasks=("a",)),
    "a trust region that is reached": Case(algorithm=TOKEN, critics="critic", changes={"trust_region": 1e-4}),
    "passes of few tokens": Case(algorithm=GRPO, changes={"tokens": 128, "entropy": 0.01}),
}  # fmt: skip


def learner_of(case: Case) -> tuple[LocalLearner, Sequence[Seat]]:
    """The same on every rank."""
    names = list(dict.fromkeys(PER_AGENT.values())) if isinstance(case.critics, Mapping) else ["critic"]
    members = seat(make_team(critics=names if case.critics else []), critic=case.critics)
    settings = {"epochs": STEPS // 2, "minibatches": 2, "trust_region": 0.5, **case.changes}
    return make_learner(members, case.algorithm, **settings), members


def batch_for(case: Case, members: Sequence[Seat]) -> Batch:
    """Every task has a fork, a cut-off episode and turns of different length, and one task is longer than the others."""
    played = [
        episode(members, script * (2 if task == "b" else 1), reward + 0.1 * t, task=task, sample=i)
        for t, task in enumerate(case.tasks)
        for i, (script, reward) in enumerate(SCRIPTS)
    ]
    for first in range(0, len(played), len(SCRIPTS)):
        turns = (played[first].turns[0], *played[first + 1].turns[1:])
        played[first + 1] = replace(played[first + 1], turns=turns, trunk=first, forked_at=1)
    played[2] = replace(played[2], ended="cut_off", cut_before="planner")
    if case.credit is not None:  # what play-outs would have found
        played = [
            replace(each, credits=tuple(0.3 * k - 0.2 * each.sample for k in range(len(each.turns)))) for each in played
        ]
    return make_batch(members, played, case.credit)


def taught(learner: LocalLearner, members: Sequence[Seat], case: Case) -> Update:
    """One update of `STEPS` steps of every adapter."""
    batch = batch_for(case, members)
    scores = learner.score(batch, reference=bool(case.kl or case.penalty), proximal=bool(case.penalty))
    if case.penalty:
        assert scores.proximal_N is not None
        assert scores.reference_N is not None
        weights = torch.full((2,), case.penalty)
        found = kl_penalty(batch, weights, scores.proximal_N, scores.reference_N, "k1", version=0)
        scores = replace(scores, penalty_N=found.amount_N, noise=found.noise)
    scores = replace(scores, baseline_A=torch.full((2,), math.nan))
    data = TrainingBatch(batch=batch, scores=scores, estimate=case.algorithm.estimate(batch, scores))
    rates, kl = dict.fromkeys(learner.optimizers, 1.0), dict.fromkeys(DUO, case.kl)
    return learner.update(data, UpdatePlan(steps=case.steps, rates=rates, seed=0, kl_weights=kl))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    before: dict[str, Tensor]
    weights: dict[str, Tensor]
    optimizers: dict[str, Tensor]
    update: Update


def outcome_of(case: Case, learner: LocalLearner, members: Sequence[Seat]) -> Outcome:
    before = flat(learner.adapters())
    update = taught(learner, members, case)
    weights, optimizers = flat(learner.adapters()), flat(learner.state_dict())
    return Outcome(before=before, weights=weights, optimizers=optimizers, update=update)


def flat(state: State) -> dict[str, Tensor]:
    return {f"{name}/{key}": tensor.detach().clone() for name, own in state.items() for key, tensor in own.items()}


def on_two_ranks(case: Case, work: Callable[[LocalLearner, Sequence[Seat]], Result]) -> list[Result]:
    """What each rank makes of the same work."""
    store, learners = dist.HashStore(), [learner_of(case) for _ in range(2)]  # transformers loads in one thread only

    def run(rank: int) -> Result:
        learner, members = learners[rank]
        learner.group = Ranks(store, rank, 2, torch.device("cpu"))
        return work(learner, members)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(2), timeout=120))


def relative_distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Of all weights together."""
    assert found.keys() == expected.keys()
    apart = sum(float((found[key] - expected[key]).double().square().sum()) for key in expected)
    return math.sqrt(apart / sum(float(t.double().square().sum()) for t in expected.values()))


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_learn_what_one_process_learns(name: str) -> None:
    case = CASES[name]
    alone = outcome_of(case, *learner_of(case))
    first, second = on_two_ranks(case, partial(outcome_of, case))
    for mine, other in ((first.weights, second.weights), (first.optimizers, second.optimizers)):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[key], other[key]) for key in mine)  # bit by bit
    assert first.update.statistics == second.update.statistics
    assert first.update.excess == second.update.excess
    assert (distance := relative_distance(first.weights, alone.weights)) <= CLOSE, distance
    if name == "a trust region that is reached":
        assert any(reach > 1 for reach in first.update.excess.values())
    assert relative_distance(alone.weights, alone.before) > 100 * CLOSE  # there was something to learn
    assert first.update.tokens == alone.update.tokens
    assert first.update.statistics.keys() == alone.update.statistics.keys()
    for who, figures in alone.update.statistics.items():
        assert first.update.statistics[who] == pytest.approx(figures, rel=2e-3, abs=1e-5)


def test_ranks_compute_only_their_share() -> None:
    """Else two of them would be no quicker than one."""
    case = replace(CASES["marft-token"], changes={"epochs": 1})

    def tokens_read(learner: LocalLearner, members: Sequence[Seat]) -> int:
        read, share = 0, learner._share

        def counted(samples: Sequence[Sample], task_I: Tensor) -> list[Sample]:
            nonlocal read
            own = share(samples, task_I)
            read += sum(len(sample.span.ids) for sample in own)
            return own

        learner._share = counted  # type: ignore[method-assign]
        taught(learner, members, case)
        return read

    whole, shares = tokens_read(*learner_of(case)), on_two_ranks(case, tokens_read)
    assert sum(shares) == whole
    assert max(shares) < 0.65 * whole


def test_a_value_that_is_no_number_is_found_by_all_ranks_alike() -> None:
    case = CASES["marft-token"]

    def score(learner: LocalLearner, members: Sequence[Seat]) -> str:
        assert isinstance(learner.group, Ranks)
        if learner.group.rank == 1:  # the other computes numbers
            with torch.no_grad():
                learner.parameters("critic")["value_head.bias"].fill_(math.inf)
        with pytest.raises(NotFinite) as found:
            learner.score(batch_for(case, members))
        return str(found.value)

    assert on_two_ranks(case, score) == ["the value of 'critic' is not finite"] * 2


def test_a_gradient_that_is_no_number_is_found_by_all_ranks_alike() -> None:
    case = CASES["grpo"]

    def learn(learner: LocalLearner, members: Sequence[Seat]) -> str:
        batch = batch_for(case, members)
        scores = learner.score(batch)
        estimate = case.algorithm.estimate(batch, scores)
        estimate.advantages_N[0] = math.nan  # in one rank's share
        data = TrainingBatch(batch=batch, scores=scores, estimate=estimate)
        plan = UpdatePlan(steps=JOINT, rates=dict.fromkeys(learner.optimizers, 1.0), seed=0)
        with pytest.raises(NotFinite) as found:
            learner.update(data, plan)
        return str(found.value)

    first, second = on_two_ranks(case, learn)
    assert first == second == "the gradient of 'planner' is not finite"
