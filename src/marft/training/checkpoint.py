"""What a checkpoint holds: adapters and critics in PEFT's format, each one's Adam state, and where the run stood.

All randomness of a run is a function of (seed, iteration, task, sample, turn), so the position below is also the state of
every random generator.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save_file
from torch import Tensor

from marft.engines.base import Adapters
from marft.files import Count, Finite, is_folder, read_whole_json
from marft.learners.base import Learner
from marft.models.peft_format import load_adapter, open_tensors, read_fitting, save_adapter
from marft.models.team import TeamModel
from marft.types import MarftError

STATE = "state.json"
VERSIONS = "versions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """After `iteration` iterations: the policy's version, how many tasks were drawn, tokens so far, and what adapts."""

    iteration: Count = 0
    version: Count = 0
    tasks_drawn: Count = 0  # as the source counts them
    tokens_generated: Count = 0
    tokens_trained: Count = 0
    kl_weights: Mapping[str, Finite] = field(default_factory=dict)  # of agents, where the KL's weight adapts
    baselines: Mapping[str, Finite] = field(default_factory=dict)  # of agents, for `rae`
    rates: Mapping[str, Finite] = field(default_factory=dict)  # what the trust region left of adapters' learning rates
    returns: Count = 0  # to an earlier checkpoint, after a collapse: each lowers all rates


def write_checkpoint(
    folder: Path, teams: Sequence[TeamModel], learner: Learner, position: Position,
    behind: Mapping[int, Adapters] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write all adapters, the optimizers' states and the position into an empty folder; with lag also the agents' adapters of
    the versions that plays to come still need."""
    for team in teams:
        for name in team.adapters:  # frozen ones too: a checkpoint is the whole team
            save_adapter(team, name, adapter_folder(folder, team, name))
    (folder / "optimizers").mkdir(exist_ok=True)
    for name, tensors in learner.state_dict().items():
        save_file(dict(tensors), folder / "optimizers" / f"{name}.safetensors")
    for version, adapters in behind.items():
        (folder / VERSIONS).mkdir(exist_ok=True)
        flat = {f"{name}.{key}": tensor for name, tensors in adapters.items() for key, tensor in tensors.items()}
        save_file(flat, version_path(folder, version))
    (folder / STATE).write_text(json.dumps(asdict(position), indent=2) + "\n")


def read_checkpoint(folder: Path, teams: Sequence[TeamModel], learner: Learner) -> Position:
    """Put adapters, critics and Adam back as they were; they stay trainable."""
    position = read_whole_json(folder / STATE, Position)
    load_adapters(folder, teams)
    learner.load_state_dict(
        {
            name: read_optimizer(folder / "optimizers" / f"{name}.safetensors", name, shapes)
            for name, shapes in learner.state_shapes().items()
        }
    )
    return position


def read_versions(folder: Path, teams: Sequence[TeamModel], versions: Iterable[int]) -> dict[int, Adapters]:
    """The agents' adapters of earlier versions."""
    shapes = {
        name: {key: parameter.shape for key, parameter in team.trainable_parameters(name).items()}
        for team in teams
        for name in team.agents
    }
    expected = {f"{name}.{key}": shape for name, own in shapes.items() for key, shape in own.items()}
    found: dict[int, Adapters] = {}
    for version in versions:
        path = version_path(folder, version)
        with open_tensors(path) as file:
            flat = read_fitting(file, path, expected, f"the adapters of version {version}")
        found[version] = {name: {key: flat[f"{name}.{key}"] for key in own} for name, own in shapes.items()}
    return found


def version_path(folder: Path, version: int) -> Path:
    """Where a checkpoint keeps the agents' adapters of an earlier version."""
    return folder / VERSIONS / f"{version:06d}.safetensors"


def read_optimizer(path: Path, name: str, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Adam's state of one adapter; a parameter that had not stepped by then has none."""
    with open_tensors(path) as file:
        stepped = {key.removesuffix(".step") for key in file.keys() if key.endswith(".step")}  # noqa: SIM118
        expected = {key: shape for key, shape in shapes.items() if key.rpartition(".")[0] in stepped}
        return read_fitting(file, path, expected, f"Adam's state of {name!r}")


def load_adapters(folder: Path, teams: Sequence[TeamModel]) -> None:
    """Adapters and critics alone, from a checkpoint or from folders laid out like one."""
    for team in teams:
        for name in team.adapters:
            where = adapter_folder(folder, team, name)
            if not is_folder(where):
                raise MarftError(f"{folder} has no adapter for {name!r}: {where} is missing")
            load_adapter(team, name, where)


def adapter_folder(folder: Path, team: TeamModel, name: str) -> Path:
    """Where a checkpoint keeps an adapter: below `critics` or `agents`."""
    return folder / ("critics" if name in team.value_heads else "agents") / name


def initial_adapters(
    source: str, teams: Sequence[TeamModel], newest: Path | None, *, leave_out: Collection[str] = ()
) -> None:
    """`init_from`: the newest checkpoint of a run, or a folder with agents/NAME (or NAME) in PEFT's format."""
    folder = newest or Path(source)
    if not is_folder(folder):
        raise MarftError(f"init_from: {source} is neither a run nor a folder of adapters")
    plain = newest is None and not is_folder(folder / "agents")
    for team in teams:
        for name in team.agents if plain else team.adapters:
            if name in leave_out:
                continue
            where = folder / name if plain else adapter_folder(folder, team, name)
            if is_folder(where):
                load_adapter(team, name, where)
            elif name not in team.value_heads:  # other runs may have had no critic: ours starts afresh
                raise MarftError(f"init_from: {folder} has no adapter for {name!r}: {where} is missing")
