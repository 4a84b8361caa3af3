"""A team ready to play: with the adapters of a run, of another run or folder, or as it comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from marft.config import Config, load_config, merge, merge_settings, parse, recipes
from marft.envs.base import Split
from marft.files import is_folder
from marft.models.peft_format import load_adapter
from marft.runs.directory import RunDirectory
from marft.runs.export import checkpoint_folder
from marft.terminal.status import Status
from marft.training.build import Assembly, adapter_of, assemble, model_of
from marft.training.checkpoint import initial_adapters, load_adapters
from marft.types import MarftError

Overrides = Sequence[str] | Mapping[str, Any]  # `key=value` words, or nested settings


def load_team(
    source: str | None, overrides: Sequence[str], at: int | None = None, status: Status | None = None
) -> tuple[Config, Assembly]:
    """A team ready to play: trained, where `source` is a run's folder (as of checkpoint `at`), else as it comes."""
    if is_run(source):
        return load_trained_team(Path(source), overrides, at, status)
    if at is not None:
        raise MarftError(f"--at {at}: only a run has checkpoints; give a run's folder")
    config = load_config(source, overrides)
    return config, load_new_team(config, status)


def is_run(source: str | None) -> TypeGuard[str]:
    """Whether it names a folder, and no recipe."""
    return source is not None and source not in recipes() and is_folder(Path(source))


def load_trained_team(
    path: Path, overrides: Overrides, at: int | None = None, status: Status | None = None
) -> tuple[Config, Assembly]:
    """The team of a run, with the adapters of its newest checkpoint or of `at`."""
    run = RunDirectory.open(path)
    config, saved = read_run_config(run, overrides), checkpoint_folder(run, at)
    run.manifest()  # before the model is loaded
    parts = assemble(config.alone(), saved=saved, reads=evaluation_splits(config), status=status)
    check_base(run, parts)
    load_adapters(saved, parts.teams)
    parts.publish(0)
    return config, parts


def load_new_team(config: Config, status: Status | None = None) -> Assembly:
    """A team before training."""
    parts = assemble(config.alone(), reads=evaluation_splits(config), status=status)
    load_initial_adapters(config, parts)
    return parts


def load_initial_adapters(config: Config, parts: Assembly) -> None:
    """Adapters that agents bring along, and for the others those of `init_from`: a run's newest checkpoint, or a folder."""
    own = {name: agent.init_from for name, agent in config.team.agents.items() if agent.init_from}
    brought = {adapter_of(config, name): (name, Path(folder)) for name, folder in own.items()}
    for adapter, (name, folder) in brought.items():
        assert adapter is not None
        load_adapter(parts.bases[model_of(config, name)].team, adapter, folder)
    if config.init_from:
        run = RunDirectory(Path(config.init_from))
        newest = checkpoint_folder(run, None) if run.exists() else None
        initial_adapters(config.init_from, parts.teams, newest, leave_out=[name for name in brought if name])
    parts.publish(0)


def read_run_config(run: RunDirectory, overrides: Overrides) -> Config:
    """A run's config with overrides on top; raises a MarftError where the result is not valid."""
    own = run.config().model_dump(mode="json")
    return parse(merge_settings(own, overrides) if isinstance(overrides, Mapping) else merge(own, overrides))


def check_base(run: RunDirectory, parts: Assembly) -> None:
    """A run's adapters mean nothing on another base model."""
    base = run.manifest()["model"]
    if base["fingerprint"] != parts.fingerprint:
        raise MarftError(
            f"model {base['name']!r} is not what {run.path} was trained on: its weights, its dtype or its bits differ; "
            "give the same model, device, dtype and quantize"
        )


def evaluation_splits(config: Config) -> tuple[Split, ...]:
    """What an evaluation needs of the run's own environment: nothing where it has other benchmarks."""
    return () if config.eval.benchmarks else ("test",)
