"""Teams that only play: with all that they may have, whatever their run had beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from quick import config_of, models_in_memory, start

from marft.engines.local import LocalEngine
from marft.learners.local import LocalLearner
from marft.training.loading import load_new_team, load_trained_team

BESIDE = {"rollout": {"workers": 3}, "learner": {"ranks": 2}, "engine": {"memory": 0.6}, "train": {"lag": 1}}


def memory_of(engine: object) -> int:
    assert isinstance(engine, LocalEngine)
    return engine.memory


def test_who_only_plays_shares_its_memory_with_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.engines.local.free_memory", lambda device: 1000)
    run = start(tmp_path / "run", train={"iterations": 1})
    with models_in_memory():
        new = load_new_team(config_of(**BESIDE))
        config, trained = load_trained_team(run, BESIDE)
    assert config.workers == 3  # it is still the run's
    for parts in (new, trained):
        with parts:
            assert [memory_of(engine) for engine in parts.engines] == [600]
            assert type(parts.learner) is LocalLearner
