"""The engine's log-probs against the learner's: figures by hand, and weights that give back the learner's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path

import pytest
import torch
from lessons import GRPO, episodes, joint, lesson_of, make_batch, make_learner, make_team, seat
from quick import batch_of, plays_of, trainer_of

from marft.algorithms.batch import Estimate
from marft.algorithms.mismatch import Mismatch, combine_plays, find_mismatch
from marft.training.metrics import iteration_row
from marft.training.trainer import Trainer
from marft.types import Episode

RATIOS = torch.tensor([1.25, 0.5, 4.0, 1.0])  # π/μ of four tokens


def compared(correction: float | None) -> Mismatch:
    batch = replace(make_batch([], []), old_N=torch.tensor([-1.0, -2.0, -3.0, -0.5]))
    return find_mismatch(batch, batch.old_N + RATIOS.log(), correction)


def test_figures_by_hand() -> None:
    """k3 of a token is ρ − ln ρ − 1 with ρ = π/μ."""
    found = compared(None)
    expected = [0.25 - log(1.25), -0.5 + log(2), 3 - log(4), 0.0]
    assert found.figures == pytest.approx(
        {"tokens": 4, "kl": sum(expected) / 4, "mean": (log(1.25) + log(2) + log(4)) / 4, "max": log(4)}
    )
    assert found.weight_N is None
    assert found.batch.old_N.tolist() == [-1.0, -2.0, -3.0, -0.5]
    estimate = Estimate(advantages_N=torch.ones(4))
    assert found.corrected(estimate) is estimate


def test_weights_by_hand() -> None:
    found = compared(2.0)
    assert found.weight_N is not None
    assert found.weight_N.tolist() == pytest.approx([1.25, 0.5, 2.0, 1.0])
    assert found.figures["weight"] == pytest.approx(4.75 / 4)
    assert found.figures["truncated"] == 0.25
    assert found.batch.old_N.tolist() == pytest.approx([-1 + log(1.25), -2 - log(2), -3 + log(4), -0.5])
    estimate = Estimate(advantages_N=torch.tensor([1.0, -2.0, 3.0, 4.0]), returns=torch.tensor([7.0]))
    corrected = found.corrected(estimate)
    assert corrected.advantages_N.tolist() == pytest.approx([1.25, -1.0, 6.0, 4.0])
    assert corrected.returns is estimate.returns


def test_the_figures_of_several_plays_by_hand() -> None:
    first = {"tokens": 1.0, "kl": 0.5, "mean": 0.25, "max": 0.75, "weight": 1.0, "truncated": 0.0}
    second = {"tokens": 3.0, "kl": 0.1, "mean": 0.05, "max": 0.5, "weight": 2.0, "truncated": 1.0}
    expected = {"kl": 0.2, "mean": 0.1, "max": 0.75, "weight": 1.75, "truncated": 0.75}
    assert combine_plays([first, second]) == pytest.approx(expected)
    assert combine_plays([first]) == {key: value for key, value in first.items() if key != "tokens"}


@pytest.mark.parametrize("tokens", [8192, 64])
def test_the_learner_s_own_log_probs_are_found_again(tokens: int) -> None:
    """The batch holds them, off by what the test takes off."""
    members = seat(make_team(), temperature=0.7)
    batch = make_batch(members, episodes(members))
    off_N = torch.linspace(-0.5, 0.5, len(batch.old_N))
    own_N = make_learner(members, tokens=tokens).logprobs(batch)
    found = find_mismatch(replace(batch, old_N=batch.old_N - off_N), own_N, 1e6)
    assert torch.allclose(found.batch.old_N, batch.old_N, atol=1e-5)
    assert found.weight_N is not None
    assert torch.allclose(found.weight_N, off_N.exp(), rtol=1e-4)


def test_a_correction_without_limit_is_the_importance_weighted_gradient() -> None:
    """∇ of (π/μ) A at π is (π/μ) A ∇ log π: the surrogate from μ without a trust region, and weights with one."""

    def after_one_step(correction: float | None) -> list[torch.Tensor]:
        wide = GRPO.model_copy(update={"clip_low": 1.0, "clip_high": 1e6}) if correction is None else GRPO
        members = seat(make_team(critics=()), critic=None)
        learner = make_learner(members, wide)
        batch = make_batch(members, episodes(members))
        torch.manual_seed(0)
        drawn = replace(batch, old_N=batch.old_N + 0.5 * torch.randn(len(batch.old_N)))
        found = find_mismatch(drawn, learner.logprobs(batch), correction)
        lesson = lesson_of(learner, found.batch, advantages=torch.randn(len(batch.old_N)))
        data = replace(lesson.data, estimate=found.corrected(lesson.estimate))
        once, turns = torch.ones(len(batch.task_E)), torch.arange(len(batch.length_K))
        learner._accumulate(data, lesson.plan(learner), once, turns, joint(learner)[0])
        team = members[0].team
        return [
            p.grad.clone()
            for name in team.agents
            for p in team.trainable_parameters(name).values()
            if p.grad is not None
        ]

    weighted, plain = after_one_step(1e9), after_one_step(None)
    assert len(weighted) == len(plain) > 0
    for one, other in zip(weighted, plain, strict=True):
        assert one.abs().max() > 0
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-6)


# --- in a run ---------------------------------------------------------------------------------------------------------
def played(trainer: Trainer, off: float = 0.0) -> list[Episode]:
    """Episodes whose engine was sure of each token by `off` more than the learner is."""

    def shifted(episode: Episode) -> Episode:
        turns = [
            replace(t, completion=replace(t.completion, logprobs=tuple(x + off for x in t.completion.logprobs)))
            for t in episode.turns
        ]
        return replace(episode, turns=tuple(turns))

    return [shifted(episode) for episode in trainer.source.next_batch(0).episodes]


def test_our_own_engine_agrees_with_the_learner(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", engine={"mismatch": True})
    [play] = plays_of(trainer)
    row = iteration_row([play])["mismatch"]
    assert row.keys() == {"kl", "mean", "max"}
    assert row["kl"] <= 1e-10
    assert row["max"] <= 1e-5
    plain = trainer_of(tmp_path / "plain")
    assert "mismatch" not in iteration_row(plays_of(plain))


@pytest.mark.parametrize(
    ("off", "weight", "truncated"), [(log(4), 0.25, 0.0), (-log(1.5), 1.5, 0.0), (-log(8), 2.0, 1.0)]
)
def test_an_estimate_is_weighted_and_measured_from_the_learner(
    tmp_path: Path, off: float, weight: float, truncated: float
) -> None:
    plain = trainer_of(tmp_path / "plain")
    expected, _ = plain.estimate(batch_of(plain, played(plain)))
    trainer = trainer_of(tmp_path / "run", engine={"correction": 2})
    found, mismatch = trainer.estimate(batch_of(trainer, played(trainer, off)))
    assert torch.allclose(found.batch.old_N, expected.batch.old_N, atol=1e-5)
    assert expected.estimate.advantages_N.abs().max() > 0
    assert torch.allclose(found.estimate.advantages_N, weight * expected.estimate.advantages_N, rtol=1e-4, atol=1e-6)
    assert mismatch is not None
    figures: Sequence[tuple[str, float]] = [
        ("max", abs(off)), ("mean", abs(off)), ("weight", weight), ("truncated", truncated), ("kl", exp(-off) + off - 1)
    ]  # fmt: skip
    for key, value in figures:
        assert mismatch[key] == pytest.approx(value, abs=1e-4), key


def test_without_a_correction_an_estimate_stays_as_it_was(tmp_path: Path) -> None:
    plain, watched = trainer_of(tmp_path / "plain"), trainer_of(tmp_path / "run", engine={"mismatch": True})
    one, unseen = plain.estimate(batch_of(plain, played(plain, 1.0)))
    other, seen = watched.estimate(batch_of(watched, played(watched, 1.0)))
    assert torch.equal(one.batch.old_N, other.batch.old_N)
    assert torch.equal(one.estimate.advantages_N, other.estimate.advantages_N)
    assert unseen is None
    assert seen is not None
    assert seen["mean"] == pytest.approx(1.0, abs=1e-4)
