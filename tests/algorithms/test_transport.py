"""Plain data as bytes and back: every field as it was, and nothing that could run on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from lessons import GRPO, TOKEN, episodes, lesson_of, make_batch, make_learner, make_team, seat
from samples import experience, layouts, seeds
from torch import Tensor

from marft.algorithms.batch import Batch, Estimate, Member, Scores
from marft.algorithms.transport import Data, from_bytes, to_bytes


def assert_equal(one: Any, other: Any) -> None:
    """Bit for bit, with the same kinds of numbers."""
    assert type(one) is type(other)
    for field in fields(one):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        assert type(ours) is type(theirs), field.name
        if isinstance(ours, Tensor):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), field.name
            assert ours.numpy().tobytes() == theirs.numpy().tobytes(), field.name
        else:
            assert ours == theirs, field.name


def there_and_back(data: Data) -> Data:
    packed = to_bytes(data)
    assert type(packed) is bytes
    found = from_bytes(type(data), packed)
    assert to_bytes(found) == packed
    return found


def everything() -> Iterator[Batch | Scores | Estimate]:
    for algorithm, critic in ((TOKEN, "critic"), (GRPO, None)):
        members = seat(make_team(), critic=critic)
        learner = make_learner(members, algorithm)
        lesson = lesson_of(learner, make_batch(members, episodes(members)), kl=0.1)
        yield from (lesson.batch, lesson.data.scores, lesson.estimate)


def test_what_a_learner_works_with_comes_back_as_it_was() -> None:
    for data in everything():
        assert_equal(there_and_back(data), data)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(layout=layouts, seed=seeds)
def test_batches_of_any_lengths_come_back_as_they_were(layout: list[list[int]], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    data = experience(layout, torch.randn(len(layout), generator=g).tolist(), gamma=0.7)
    assert_equal(there_and_back(data.batch), data.batch)


def test_numbers_that_are_none_and_fields_that_are_not_there() -> None:
    scores = Scores(
        final_E=torch.tensor([0.0, -0.0, float("inf")]), noise=0.1 + 0.2, baseline_A=torch.tensor([float("nan"), 1.0])
    )
    found = there_and_back(scores)
    assert_equal(found, scores)
    assert (found.values, found.reference_N, found.proximal_N, found.penalty_N) == (None,) * 4
    assert found.noise == 0.1 + 0.2
    estimate = Estimate(advantages_N=torch.zeros(0), lone_K=torch.tensor([True, False]))
    assert_equal(there_and_back(estimate), estimate)
    assert there_and_back(estimate).lone_K is not None


def test_a_part_of_a_tensor_and_one_that_is_turned_over_are_written_as_they_look() -> None:
    grid = torch.arange(12.0).reshape(3, 4)
    estimate = Estimate(advantages_N=grid.T[1], returns=grid[1:, ::2])
    found = there_and_back(estimate)
    assert found.advantages_N.tolist() == [1.0, 5.0, 9.0]
    assert found.returns is not None
    assert found.returns.tolist() == [[4.0, 6.0], [8.0, 10.0]]


def test_two_fields_may_be_one_tensor() -> None:
    both = torch.tensor([1.0, 2.0])
    estimate = Estimate(advantages_N=both, returns=both)
    assert_equal(there_and_back(estimate), estimate)


def test_names_may_hold_any_characters() -> None:
    members = (Member(agent='a "b"\n{é}', adapter="x", critic=None), Member(agent="", adapter="🙂", critic="critic"))
    batch = experience([[1, 1]], [1]).batch
    assert there_and_back(replace(batch, members=members)).members == members


def test_nothing_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are those of safetensors: a length, a header in JSON, and plain numbers."""

    def forbidden(*arguments: object, **named: object) -> None:
        raise AssertionError("pickled")

    for module, name in (("pickle", "dumps"), ("pickle", "loads"), ("torch", "save"), ("torch", "load")):
        monkeypatch.setattr(f"{module}.{name}", forbidden)
    estimate = Estimate(advantages_N=torch.tensor([1.0, 2.0]))
    packed = to_bytes(estimate)
    size = int.from_bytes(packed[:8], "little")
    header = json.loads(packed[8 : 8 + size])
    assert header["advantages_N"] == {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert packed[8 + size :] == torch.tensor([1.0, 2.0]).numpy().tobytes()
    assert_equal(from_bytes(Estimate, packed), estimate)


def test_bytes_of_something_else_are_refused() -> None:
    packed = to_bytes(Estimate(advantages_N=torch.zeros(2)))
    with pytest.raises(TypeError):
        from_bytes(Scores, packed)
    with pytest.raises(Exception):  # noqa: B017, PT011
        from_bytes(Estimate, packed[:-1])
