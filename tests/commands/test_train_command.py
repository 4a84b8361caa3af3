"""`marft train` itself: what it takes of the machine, and that it gives it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from quick import resume, start

from marft.training.trainer import Trainer


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What trainers had, one after the other."""
    found: list[int] = []
    train = Trainer.train

    def observed(self: Trainer) -> dict[str, Any]:
        found.append(torch.get_num_threads())
        return train(self)

    monkeypatch.setattr(Trainer, "train", observed)
    return found


def test_a_learner_without_workers_has_the_threads_that_it_was_given(tmp_path: Path, threads: list[int]) -> None:
    before = torch.get_num_threads()
    run = start(tmp_path / "run", rollout={"threads": before + 1}, train={"iterations": 1})
    assert torch.get_num_threads() == before
    resume(run, None, "train.iterations=2", f"rollout.threads={before + 2}")
    assert torch.get_num_threads() == before
    assert threads == [before + 1, before + 2]


def test_nobody_sets_threads_that_were_not_given(
    tmp_path: Path, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: pytest.fail("set"))
    start(tmp_path / "run", train={"iterations": 1})
    assert threads == [torch.get_num_threads()]


def test_a_learner_with_workers_shares_the_cores_and_gives_them_back(
    tmp_path: Path, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    before = torch.get_num_threads()
    start(tmp_path / "run", train={"iterations": 1}, rollout={"workers": 1})
    assert threads == [3]
    assert torch.get_num_threads() == before
