"""How far a run is: by iterations or by the tokens it may generate, and what the learning rate makes of that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from quick import plays_of, resume, start, trainer_of
from toys import files, rows

from marft.algorithms.batch import TrainingBatch
from marft.learners.base import Update, UpdatePlan
from marft.learners.local import LocalLearner
from marft.training.checkpoint import Position


@pytest.fixture
def factors(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rate of every update, as a share of the configured one."""
    seen: list[float] = []
    real = LocalLearner.update

    def update(self: LocalLearner, data: TrainingBatch, plan: UpdatePlan) -> Update:
        seen.append(plan.rates[next(iter(plan.rates))])
        return real(self, data, plan)

    monkeypatch.setattr(LocalLearner, "update", update)
    return seen


def rollouts(run: Path) -> list[int]:
    return [row["tokens"]["rollout"] for row in rows(run / "metrics.jsonl")]


# --- the end ----------------------------------------------------------------------------------------------------------
def test_the_iteration_that_passes_the_budget_is_the_last(tmp_path: Path) -> None:
    free = start(tmp_path / "free", optimizer={"decay": "constant"})
    tokens = rollouts(free)
    assert len(tokens) == 4
    for budget, last in ((sum(tokens[:2]), 2), (sum(tokens[:2]) + 1, 3), (1, 1), (10_000, 4)):
        run = start(tmp_path / f"{budget}", optimizer={"decay": "constant"}, train={"budget": budget})
        assert rollouts(run) == tokens[:last]
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["iterations"], summary["tokens"]["generated"]) == (last, sum(tokens[:last]))
        newest = max((run / "checkpoints").iterdir())
        assert newest.name == f"{last:06d}"  # whatever checkpoint.every says
        if last in (2, 4):
            assert files(newest) == files(free / "checkpoints" / newest.name)


def test_looking_costs_no_budget_and_playing_on_does(tmp_path: Path) -> None:
    plain = rollouts(start(tmp_path / "plain"))
    budget = sum(plain[:3])
    looking = start(tmp_path / "looking", train={"budget": budget}, eval={"tasks": 3, "every": 1})
    assert len(rollouts(looking)) == 3
    playing = start(tmp_path / "playing", train={"budget": budget}, credit="difference")
    assert rollouts(playing)[0] > plain[0]


def test_a_run_that_spent_its_budget_stays_finished(tmp_path: Path) -> None:
    run = start(tmp_path / "run", train={"budget": 1})
    before = files(run)
    resume(run)
    assert files(run) == before


# --- the learning rate ------------------------------------------------------------------------------------------------
UNHELD = {"trust_region": None}  # which would lower the rates of these hasty agents too


def test_the_learning_rate_falls_with_the_iterations(tmp_path: Path, factors: list[float]) -> None:
    start(tmp_path / "run", algorithm=UNHELD)
    assert factors == pytest.approx([1.0, 1 - 0.9 / 4, 1 - 0.9 / 2, 1 - 0.9 * 3 / 4])
    factors.clear()
    start(tmp_path / "warm", algorithm=UNHELD, optimizer={"warmup": 3})
    assert factors == pytest.approx([1 / 4, (1 - 0.9 / 4) / 2, (1 - 0.9 / 2) * 3 / 4, 1 - 0.9 * 3 / 4])
    factors.clear()
    start(tmp_path / "constant", algorithm=UNHELD, optimizer={"decay": "constant"})
    assert factors == [1.0] * 4


def test_the_learning_rate_falls_with_the_budget_where_that_ends_the_run(tmp_path: Path, factors: list[float]) -> None:
    run = start(tmp_path / "run", algorithm=UNHELD, train={"iterations": 1000, "budget": 120})
    tokens = rollouts(run)
    spent = [sum(tokens[:i]) for i in range(len(tokens))]
    assert len(factors) > 2
    assert factors == pytest.approx([1 - 0.9 * max(before / 120, i / 1000) for i, before in enumerate(spent)])


def test_a_budget_passed_in_the_middle_of_an_iteration_turns_no_rate_around(
    tmp_path: Path, factors: list[float]
) -> None:
    """The second play of `resample` comes when far more than the budget is spent: a tenth of the rate is the least."""
    start(tmp_path / "run", algorithm=UNHELD, schedule="resample", train={"budget": 1})
    assert factors == pytest.approx([1.0, 0.1])


def test_the_learning_rate_reaches_the_optimizers(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", team={"agents": {"ann": {"lr": 0.5}}})
    trainer.position = Position(iteration=2)
    plays_of(trainer)
    rates = {name: o.param_groups[0]["lr"] for name, o in trainer.parts.learner.optimizers.items()}
    assert rates == pytest.approx({"ann": 0.5 * 0.55, "bob": 0.05 * 0.55})


def test_progress_is_whichever_is_further(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", train={"iterations": 10, "budget": 100})
    for iteration, tokens, progress in ((0, 0, 0.0), (5, 0, 0.5), (5, 80, 0.8), (10, 3, 1.0), (1, 250, 2.5)):
        trainer.position = Position(iteration=iteration, tokens_generated=tokens)
        assert trainer.progress == progress
        assert trainer.finished == (progress >= 1)
