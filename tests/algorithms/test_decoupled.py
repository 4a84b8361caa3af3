"""What another policy said: figures and weights by hand, and weights that give back the importance-weighted gradient."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from math import exp, log
from pathlib import Path

import pytest
import torch
from experience import Experience
from lessons import Lesson, episodes, joint, make_batch, make_learner, make_team, seat
from quick import batch_of, plays_of, trainer_of
from samples import ACTION, AT_TURNS, GRPO, GSPO, METHODS, experience, name

from marft.algorithms.base import Algorithm
from marft.algorithms.batch import Batch, Estimate, TrainingBatch
from marft.algorithms.decoupled import Decoupled, Mismatch, combine_plays, decouple
from marft.config import ALGORITHMS
from marft.training.metrics import iteration_row
from marft.training.trainer import Trainer
from marft.types import Episode

RATIOS = torch.tensor([1.25, 0.5, 4.0, 1.0])  # π_prox/μ of four tokens, two turns of two
BY_SUM, BY_WORD = (ACTION.model_copy(update={"normalise": by}) for by in ("sum", "word"))
EVERY = (*METHODS, BY_SUM, BY_WORD)


def label(method: Algorithm) -> str:
    return "-".join([name(method), *([method.normalise] if method.name == "marft-action" else [])])  # type: ignore[attr-defined]


def two_turns() -> Batch:
    """Agent 0 says two tokens, agent 1 answers with two, which are three words."""
    played: Experience = experience([[2, 2]], [1.0])
    return replace(played.batch, old_N=torch.tensor([-1.0, -2.0, -3.0, -0.5]), words_K=torch.tensor([1, 3]))


def compared(correction: float | None, method: Algorithm = GRPO) -> Decoupled:
    batch = two_turns()
    return decouple(batch, batch.old_N + RATIOS.log(), method.ratio, correction)


def test_figures_by_hand() -> None:
    """k3 of a token is ρ − ln ρ − 1 with ρ = π/μ."""
    found = compared(None)
    kl = [0.25 - log(1.25), -0.5 + log(2), 3 - log(4), 0.0]
    assert found.mismatch.figures == pytest.approx(
        {"tokens": 4, "kl": sum(kl) / 4, "mean": (log(1.25) + log(2) + log(4)) / 4, "max": log(4)}
    )
    first, second = (found.mismatch.agents[agent] for agent in "01")
    assert first == pytest.approx(
        {"tokens": 2, "kl": (kl[0] + kl[1]) / 2, "mean": (log(1.25) + log(2)) / 2, "max": log(2)}
    )
    assert second == pytest.approx({"tokens": 2, "kl": kl[2] / 2, "mean": log(2), "max": log(4)})
    assert found.weight_N is None
    assert found.batch.old_N.tolist() == [-1.0, -2.0, -3.0, -0.5]
    estimate = Estimate(advantages_N=torch.ones(4))
    assert found.weighted(estimate) is estimate


def test_weights_of_tokens_by_hand() -> None:
    found = compared(2.0)
    assert found.weight_N is not None
    assert found.weight_N.tolist() == pytest.approx([1.25, 0.5, 2.0, 1.0])
    assert found.mismatch.figures["weight"] == pytest.approx(4.75 / 4)
    assert found.mismatch.figures["truncated"] == 0.25
    for agent, weight, truncated in (("0", 0.875, 0.0), ("1", 1.5, 0.5)):
        own = found.mismatch.agents[agent]
        assert (own["weight"], own["truncated"]) == pytest.approx((weight, truncated))
    assert found.batch.old_N.tolist() == pytest.approx([-1 + log(1.25), -2 - log(2), -3 + log(4), -0.5])
    estimate = Estimate(
        advantages_N=torch.tensor([1.0, -2.0, 3.0, 4.0]),
        returns=torch.tensor([7.0]),
        baseline_A=torch.tensor([0.5]),
        lone_K=torch.tensor([True, False]),
    )
    weighted = found.weighted(estimate)
    assert weighted.advantages_N.tolist() == pytest.approx([1.25, -1.0, 6.0, 4.0])
    for untouched in ("returns", "baseline_A", "lone_K"):
        assert getattr(weighted, untouched) is getattr(estimate, untouched)


@pytest.mark.parametrize(
    ("method", "correction", "first", "second"),
    [
        (BY_SUM, 1e9, 0.625, 4.0),  # 1.25 · 0.5 and 4 · 1
        (ACTION, 1e9, 0.625**0.5, 2.0),  # over two tokens; the mean of the tokens' weights would be 0.875 and 2.5
        (GSPO, 1e9, 0.625**0.5, 2.0),
        (BY_WORD, 1e9, 0.625, 4.0 ** (1 / 3)),  # over one word, and over three
        (BY_SUM, 3.0, 0.625, 3.0),
        (ACTION, 1.5, 0.625**0.5, 1.5),
        (BY_WORD, 1.5, 0.625, 1.5),
    ],
    ids=lambda x: label(x) if isinstance(x, Algorithm) else None,
)
def test_weights_of_turns_by_hand(method: Algorithm, correction: float, first: float, second: float) -> None:
    """One weight a turn, normalised as its ratio is; a turn is cut as a whole."""
    found = compared(correction, method)
    assert found.weight_N is not None
    assert found.weight_N.tolist() == pytest.approx([first, first, second, second])
    assert found.mismatch.figures["truncated"] == (0.5 if second == correction else 0.0)


def test_a_turn_without_words_has_one() -> None:
    batch = replace(two_turns(), words_K=torch.tensor([0, 1]))
    assert BY_WORD.ratio(RATIOS.log(), batch.turn_N, batch.words_K).tolist() == pytest.approx([0.625] * 2 + [4.0] * 2)


@pytest.mark.parametrize("method", EVERY, ids=label)
def test_no_gap_is_weight_one(method: Algorithm) -> None:
    batch = two_turns()
    found = decouple(batch, batch.old_N.clone(), method.ratio, 2.0)
    assert found.weight_N is not None
    assert torch.equal(found.weight_N, torch.ones(4))
    assert torch.equal(found.batch.old_N, batch.old_N)


def test_the_figures_of_several_plays_by_hand() -> None:
    first = {"tokens": 1.0, "kl": 0.5, "mean": 0.25, "max": 0.75, "weight": 1.0, "truncated": 0.0}
    second = {"tokens": 3.0, "kl": 0.1, "mean": 0.05, "max": 0.5, "weight": 2.0, "truncated": 1.0}
    expected = {"kl": 0.2, "mean": 0.1, "max": 0.75, "weight": 1.75, "truncated": 0.75}
    plays = [Mismatch(figures=figures, agents={}) for figures in (first, second)]
    assert combine_plays(plays) == pytest.approx(expected)
    assert combine_plays(plays[:1]) == {key: value for key, value in first.items() if key != "tokens"}


@pytest.mark.parametrize("tokens", [8192, 64])
def test_the_learner_s_own_log_probs_are_found_again(tokens: int) -> None:
    """The batch holds them, off by what the test takes off."""
    members = seat(make_team(), temperature=0.7)
    batch = make_batch(members, episodes(members))
    off_N = torch.linspace(-0.5, 0.5, len(batch.old_N))
    own_N = make_learner(members, tokens=tokens).logprobs(batch)
    found = decouple(replace(batch, old_N=batch.old_N - off_N), own_N, GRPO.ratio, 1e6)
    assert torch.allclose(found.batch.old_N, batch.old_N, atol=1e-5)
    assert found.weight_N is not None
    assert torch.allclose(found.weight_N, off_N.exp(), rtol=1e-4)


def test_every_algorithm_is_here() -> None:
    assert {method.name for method in METHODS} == set(ALGORITHMS)


@pytest.mark.parametrize("method", EVERY, ids=label)
def test_a_correction_without_limit_is_the_importance_weighted_gradient(method: Algorithm) -> None:
    """∇ of ρ A at π, ρ = π/μ as the algorithm forms it, is ρ A ∇ log ρ: the surrogate from μ without a clip, and weights
    with one."""

    def after_one_step(correction: float | None) -> list[torch.Tensor]:
        wide = method.model_copy(update={"clip_low": 1.0, "clip_high": 1e6}) if correction is None else method
        valued = wide.values_at is not None
        members = seat(make_team(critics=("critic",) if valued else ()), critic="critic" if valued else None)
        learner = make_learner(members, wide)
        batch = make_batch(members, episodes(members))
        torch.manual_seed(0)
        drawn = replace(batch, old_N=batch.old_N + 0.5 * torch.randn(len(batch.old_N)))
        found = decouple(drawn, learner.logprobs(batch), wide.ratio, correction)
        per_turn = torch.randn(len(batch.length_K))[batch.turn_N]
        advantages = per_turn if method in (*AT_TURNS, BY_SUM, BY_WORD) else torch.randn(len(batch.old_N))
        estimate = found.weighted(Estimate(advantages_N=advantages))
        data = TrainingBatch(batch=found.batch, scores=learner.score(found.batch), estimate=estimate)
        once, turns = torch.ones(len(batch.task_E)), torch.arange(len(batch.length_K))
        learner._accumulate(data, Lesson(data=data, kl={}).plan(learner), once, turns, joint(learner)[0])
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
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-6 * float(other.abs().max()) + 1e-6)


# --- in a run ---------------------------------------------------------------------------------------------------------
def played(trainer: Trainer, *offs: float) -> list[Episode]:
    """Episodes whose engine was sure of each token by `offs`, over and over, more than the learner is."""

    def shifted(episode: Episode) -> Episode:
        turns = [
            replace(
                t,
                completion=replace(
                    t.completion,
                    logprobs=tuple(
                        x + off for x, off in zip(t.completion.logprobs, cycle(offs or (0.0,)), strict=False)
                    ),
                ),
            )
            for t in episode.turns
        ]
        return replace(episode, turns=tuple(turns))

    return [shifted(episode) for episode in trainer.source.next_batch(0).episodes]


def test_our_own_engine_agrees_with_the_learner(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", engine={"mismatch": True})
    [play] = plays_of(trainer)
    row = iteration_row([play])
    assert row["mismatch"].keys() == {"kl", "mean", "max"}
    assert row["mismatch"]["kl"] <= 1e-10
    assert row["mismatch"]["max"] <= 1e-5
    for agent in row["agents"].values():
        assert agent["behaviour_kl"] <= 1e-10
        assert "weight" not in agent
    plain = iteration_row(plays_of(trainer_of(tmp_path / "plain")))
    assert "mismatch" not in plain
    assert all("behaviour_kl" not in agent for agent in plain["agents"].values())


@pytest.mark.parametrize(
    ("off", "weight", "truncated"), [(log(4), 0.25, 0.0), (-log(1.5), 1.5, 0.0), (-log(8), 2.0, 1.0)]
)
def test_an_estimate_is_weighted_and_measured_from_the_learner(
    tmp_path: Path, off: float, weight: float, truncated: float
) -> None:
    plain = trainer_of(tmp_path / "plain")
    expected, _ = plain.estimate(batch_of(plain, played(plain)))
    trainer = trainer_of(tmp_path / "run", algorithm={"name": "grpo", "correction": 2})
    found, mismatch = trainer.estimate(batch_of(trainer, played(trainer, off)))
    assert torch.allclose(found.batch.old_N, expected.batch.old_N, atol=1e-5)
    assert expected.estimate.advantages_N.abs().max() > 0
    assert torch.allclose(found.estimate.advantages_N, weight * expected.estimate.advantages_N, rtol=1e-4, atol=1e-6)
    assert mismatch is not None
    figures = {"max": abs(off), "mean": abs(off), "weight": weight, "truncated": truncated, "kl": exp(-off) + off - 1}
    for one in (mismatch.figures, *(mismatch.agents[agent] for agent in ("ann", "bob"))):
        assert {key: one[key] for key in figures} == pytest.approx(figures, abs=1e-4)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_with_a_lag_every_algorithm_weights_what_it_learns_from(tmp_path: Path, algorithm: str) -> None:
    """Values, returns and what is compared with what stay; the trust region begins at the learner."""
    offs = (log(3), -log(2), 0.25, -1.5)
    plain = trainer_of(tmp_path / "plain", algorithm=algorithm)
    expected, _ = plain.estimate(batch_of(plain, played(plain)))
    trainer = trainer_of(tmp_path / "run", algorithm=algorithm, train={"lag": 2})
    found, mismatch = trainer.estimate(batch_of(trainer, played(trainer, *offs)))
    weights: list[float] = []
    for length in found.batch.length_K.tolist():
        gaps = [-off for off, _ in zip(cycle(offs), range(length), strict=False)]
        mean = [sum(gaps) / length] * length
        weights += [min(exp(gap), 2.0) for gap in (mean if algorithm in ("marft-action", "gspo") else gaps)]
    assert len(set(weights)) > 1
    assert expected.estimate.advantages_N.abs().max() > 0
    wanted = torch.tensor(weights) * expected.estimate.advantages_N
    assert torch.allclose(found.estimate.advantages_N, wanted, rtol=1e-4, atol=1e-5)
    assert torch.allclose(found.batch.old_N, expected.batch.old_N, atol=1e-5)
    for one, other in (
        (found.estimate.returns, expected.estimate.returns),
        (found.estimate.lone_K, expected.estimate.lone_K),
    ):
        assert (one is None) is (other is None)
        assert one is None or other is None or torch.equal(one, other)
    assert mismatch is not None
    assert mismatch.figures["weight"] == pytest.approx(sum(weights) / len(weights), abs=1e-4)
    row = iteration_row(plays_of(trainer))
    for agent in row["agents"].values():
        assert agent["weight"] == pytest.approx(1, abs=1e-4)  # here the policy that plays is the one that learns
        assert agent["weight_truncated"] == 0
        assert abs(agent["behaviour_kl"]) <= 1e-8


@pytest.mark.parametrize("lag", [0, 1])
def test_without_a_correction_an_estimate_stays_as_it_was(tmp_path: Path, lag: int) -> None:
    plain = trainer_of(tmp_path / "plain")
    off = {"algorithm": {"name": "grpo", "correction": None}, "train": {"lag": lag}, "engine": {"mismatch": True}}
    watched = trainer_of(tmp_path / "run", **off)
    one, unseen = plain.estimate(batch_of(plain, played(plain, 1.0)))
    other, seen = watched.estimate(batch_of(watched, played(watched, 1.0)))
    assert torch.equal(one.batch.old_N, other.batch.old_N)
    assert torch.equal(one.estimate.advantages_N, other.estimate.advantages_N)
    assert unseen is None
    assert seen is not None
    assert seen.figures["mean"] == pytest.approx(1.0, abs=1e-4)


def test_a_penalty_of_stale_turns_is_no_rounding(tmp_path: Path) -> None:
    """What an older version said differs from the learner by more than the engine rounds."""
    algorithm = {"name": "grpo", "kl": {"weight": 0.1, "where": "reward"}}
    trainer = trainer_of(tmp_path / "run", algorithm=algorithm, train={"lag": 1})
    batch = batch_of(trainer, played(trainer, 0.08, -0.02, 0.05))
    fresh, _ = trainer.estimate(batch)
    trainer.position = replace(trainer.position, version=1)
    stale, _ = trainer.estimate(batch)
    assert fresh.scores.noise > 0
    assert stale.scores.noise == 0
    assert fresh.scores.penalty_N is not None
    assert stale.scores.penalty_N is not None
    assert torch.equal(fresh.scores.penalty_N, stale.scores.penalty_N)
