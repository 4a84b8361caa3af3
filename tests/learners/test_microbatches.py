"""Passes over what a minibatch reads: first tokens that sequences share are computed once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from lessons import (
    ACTION,
    GRPO,
    SCRIPTS,
    TOKEN,
    assert_same,
    episode,
    gradients,
    lesson_of,
    make_batch,
    make_learner,
    make_team,
    seat,
    update,
)

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch
from marft.learners import microbatches
from marft.learners.group import Alone
from marft.learners.local import LocalLearner
from marft.learners.microbatches import Passes, Sample, pack_microbatches
from marft.models import scoring
from marft.models.scoring import Span

NEVER = 2.0  # nobody shares more than all tokens


def group(algorithm: Algorithm, **changes: float) -> tuple[LocalLearner, Batch]:
    """Each script played twice: samples with the same prompts, and half of them with the same answers."""
    members = seat(make_team(), critic="critic" if algorithm.values_at else None)
    played = [episode(members, script, reward, sample=i) for i in range(2) for script, reward in SCRIPTS]
    return make_learner(members, algorithm, **changes), make_batch(members, played)


@pytest.mark.parametrize("algorithm", [TOKEN, ACTION, GRPO], ids=lambda a: type(a).__name__)
def test_sharing_changes_no_value_and_no_gradient(monkeypatch: pytest.MonkeyPatch, algorithm: Algorithm) -> None:
    learner, batch = group(algorithm, entropy=0.01)
    found = []
    for worth in (scoring.WORTH, NEVER):
        monkeypatch.setattr(scoring, "WORTH", worth)
        values = learner.values(batch)
        lesson = lesson_of(learner, batch, kl=0.1)
        reference_N = lesson.data.scores.reference_N
        assert reference_N is not None
        found.append((values, reference_N, gradients(learner, lesson)))
    (values, reference, shared), (plain_values, plain_reference, plain) = found
    if values is not None:
        assert plain_values is not None
        torch.testing.assert_close(values, plain_values, atol=1e-5, rtol=0)
    torch.testing.assert_close(reference, plain_reference, atol=1e-5, rtol=1e-5)
    assert_same(shared, plain)


def test_tokens_trained_are_those_of_the_sequences_however_few_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for worth in (scoring.WORTH, NEVER):
        monkeypatch.setattr(scoring, "WORTH", worth)
        learner, batch = group(TOKEN)
        samples = learner.samples(batch, torch.arange(len(batch.length_K)), set(learner.optimizers))
        computed = sum(one.tokens for one in pack_microbatches(samples, 8192))
        found.append((update(learner, lesson_of(learner, batch)).tokens, computed))
    (shared, fewer), (plain, every) = found
    assert shared == plain == every == sum(len(one.span.ids) for one in samples)
    assert fewer < every / 2


def test_a_budget_counts_what_is_computed() -> None:
    learner, batch = group(TOKEN)
    samples = learner.samples(batch, torch.arange(len(batch.length_K)), set(learner.optimizers))
    [whole] = pack_microbatches(samples, sum(len(one.span.ids) for one in samples) // 2)
    assert len(whole.samples) == len(samples)
    for one in pack_microbatches(samples, 128):
        assert one.tokens <= 128


class Further(Alone):
    """Others who need more passes on each base than anybody does here."""

    def passes(self, needed: Sequence[int]) -> Sequence[int]:
        return [count + 2 for count in needed]


@pytest.mark.parametrize("order", [1, -1])
def test_passes_that_others_need_are_made_base_by_base(monkeypatch: pytest.MonkeyPatch, order: int) -> None:
    """In the order of the bases, whoever's samples come first: at the same time all ranks must gather the same layers."""
    bases = [make_team(["planner"]), make_team(["solver"]), make_team(["nobody"])]
    samples = [
        Sample(span=Span(adapter=name, ids=(5, 6, 7), asked=1), team=team, turn=i)
        for i, (name, team) in enumerate(zip(("planner", "solver"), bases, strict=False))
    ]
    made: list[tuple[str, int]] = []
    monkeypatch.setattr(microbatches, "idle_pass", lambda team: made.append(("idle", bases.index(team))))
    for micro in Passes(bases, Further(), 64).over(samples[::order]):
        made.append(("read", bases.index(micro.team)))
    idle = [("idle", i) for i in range(3) for _ in range(2)]
    assert made == [("read", 0), *idle[:2], ("read", 1), *idle[2:]]
