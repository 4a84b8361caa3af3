"""Whole runs in a fraction of a second: two agents, ann and bob, with a model of a dozen words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from known_answers.tiny import load_again, model_folder

from marft.algorithms.batch import Batch
from marft.commands.train import resume_run, start_run
from marft.config import Config, merge_settings, parse
from marft.evaluation.held_out import HeldOut
from marft.rollouts.batching import build_batch
from marft.rollouts.credit import Credit
from marft.rollouts.source import is_learnt
from marft.runs.directory import RunDirectory
from marft.training.build import Assembly, assemble
from marft.training.loading import load_initial_adapters
from marft.training.metrics import Play
from marft.training.trainer import Trainer
from marft.types import Episode

SETTINGS: Mapping[str, Any] = {
    "device": "cpu",
    "env": "toys:Echo",
    "team": {"agents": {name: {"prompt": name, "max_tokens": 4} for name in ("ann", "bob")}},
    "algorithm": "grpo",
    "lora": {"rank": 2, "alpha": 4, "targets": ["v_proj", "down_proj"]},
    "optimizer": {"lr": 0.05, "decay": "linear"},
    "train": {"iterations": 4, "tasks": 2, "samples": 2, "minibatches": 2},
    "eval": {"tasks": 0},
    "checkpoint": {"every": 2},
    "track": {"tensorboard": False},
}


class Silent:
    """A watcher that nobody hears."""

    def evaluated(self, when: str, row: dict[str, Any]) -> None: ...
    def warned(self, line: str) -> None: ...
    def iterated(self, row: dict[str, Any], before: float, progress: float) -> None: ...


@contextmanager
def models_in_memory() -> Iterator[None]:
    with patch("marft.training.build.load", load_again):
        yield


def settings_of(**changes: Any) -> dict[str, Any]:
    """The settings above with these on top; agents that are None are gone."""
    merged = merge_settings({"model": str(model_folder()), **SETTINGS}, changes)
    agents = merged["team"]["agents"]
    return {**merged, "team": {**merged["team"], "agents": {k: v for k, v in agents.items() if v is not None}}}


def config_of(**changes: Any) -> Config:
    return parse(settings_of(**changes))


def start(path: Path, **changes: Any) -> Path:
    with models_in_memory():
        start_run(config_of(**changes), path)
    return path


def resume(path: Path, at: int | None = None, *overrides: str) -> Path:
    with models_in_memory():
        resume_run(path, overrides, at)
    return path


def seated(**changes: Any) -> Assembly:
    """The parts of a run, with the adapters that it would begin with."""
    config = config_of(**changes)
    with models_in_memory():
        parts = assemble(config)
        load_initial_adapters(config, parts)
    return parts


def trainer_of(path: Path, **changes: Any) -> Trainer:
    """A trainer in the middle of an iteration, of which nothing has happened yet."""
    config, parts = config_of(**changes), seated(**changes)
    trainer = Trainer(config, parts, RunDirectory(path), HeldOut(config, parts, ""), Silent())
    trainer.seconds = dict.fromkeys(("rollout", "credit", "update", "eval"), 0.0)
    return trainer


def plays_of(trainer: Trainer) -> list[Play]:
    """One iteration: its plays and updates. Nothing is written down of it, and nobody looks at it."""
    found: list[Play] = []
    with patch.object(trainer, "report", lambda done, before, progress: found.extend(done)):
        trainer.iterate()
    return found


def batch_of(trainer: Trainer, episodes: Sequence[Episode]) -> Batch:
    """The batch that the trainer's source would make of these episodes."""
    credit = trainer.config.credit
    assert isinstance(credit, Credit)
    learnt = [episode for episode in episodes if is_learnt(episode)]
    return build_batch(learnt, members=trainer.learner.members, agents=trainer.parts.runner.team, credit=credit)
