"""What is learnt from is plain data: another process that is given its bytes makes the same update, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch
from elsewhere import JOINT, SEQUENTIAL, carry_out, flat, order_of, team, updated
from lessons import SCRIPTS, episode, lesson_of, make_batch


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """A process that has nothing of this one's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize(
    ("algorithm", "steps", "kl"),
    [
        ("marft-token", JOINT, 0.0),
        ("grpo", JOINT, 0.1),
        ("grpo", SEQUENTIAL, 0.0),
        ("marft-action", SEQUENTIAL, 0.1),
    ],
)
def test_the_same_update_is_made_elsewhere(
    elsewhere: ProcessPoolExecutor, algorithm: str, steps: tuple[tuple[str, ...], ...], kl: float
) -> None:
    """Two tasks, one of them with a fork, and an episode that was cut off."""
    learner, members = team(algorithm)
    played = [
        episode(members, script, reward, task=task, sample=i)
        for task in ("a", "b")
        for i, (script, reward) in enumerate(SCRIPTS)
    ]
    played[1] = replace(played[1], turns=(played[0].turns[0], *played[1].turns[1:]), trunk=0, forked_at=1)
    played[4] = replace(played[4], ended="cut_off", cut_before="planner")
    data = lesson_of(learner, make_batch(members, played), kl=kl).data
    order = order_of(algorithm, steps, kl, data)
    before = flat(learner.adapters())
    there = elsewhere.submit(carry_out, order).result(timeout=300)
    assert flat(learner.adapters()) == before  # it had a team of its own
    here = updated(learner, data, steps, kl)
    assert here.weights != before
    assert there == here


def test_another_batch_is_another_update(elsewhere: ProcessPoolExecutor) -> None:
    """The bytes above could agree for want of anything in them."""
    learner, members = team("grpo")
    data = lesson_of(learner, make_batch(members, [episode(members, *one) for one in SCRIPTS])).data
    other = replace(data, estimate=replace(data.estimate, advantages_N=torch.ones_like(data.estimate.advantages_N)))
    there = elsewhere.submit(carry_out, order_of("grpo", JOINT, 0.0, other)).result(timeout=300)
    here = updated(learner, data, JOINT, 0.0)
    assert there.weights != here.weights
    assert there.optimizers != here.optimizers
