"""What a checkpoint holds: adapters and critics in PEFT's format, each one's Adam state, and where the run stood.

All randomness of a run is a function of (seed, iteration, task, sample, turn), so the position below is also the state of
every random generator.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from marft.models.peft_format import load_adapter, read_tensors, save_adapter
from marft.training.learner import Learner
from marft.types import MarftError

STATE = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """After `iteration` iterations: the policy's version, how many tasks were drawn, tokens so far."""

    iteration: int = 0
    version: int = 0
    tasks_drawn: int = 0
    tokens_generated: int = 0
    tokens_trained: int = 0


def write_checkpoint(folder: Path, learner: Learner, position: Position, base: str) -> None:
    for name, optimizer in learner.optimizers.items():
        save_adapter(learner.team, name, adapter_folder(folder, name, learner.critic), base)
        tensors: dict[str, Tensor] = {}
        for key, parameter in learner.team.parameters(name).items():
            for field, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{key}.{field}"] = value.detach().cpu().contiguous()
        (folder / "optimizers").mkdir(exist_ok=True)
        save_file(tensors, folder / "optimizers" / f"{name}.safetensors")
    (folder / STATE).write_text(json.dumps(asdict(position), indent=2) + "\n")


def read_checkpoint(folder: Path, learner: Learner) -> Position:
    """Put adapters, critics and Adam back as they were; they stay trainable."""
    load_adapters(folder, learner)
    for name, optimizer in learner.optimizers.items():
        tensors = read_tensors(folder / "optimizers" / f"{name}.safetensors")
        for key, parameter in learner.team.parameters(name).items():
            fields = {k.removeprefix(f"{key}."): v for k, v in tensors.items() if k.startswith(f"{key}.")}
            if fields:
                optimizer.state[parameter] = {
                    field: value if field == "step" else value.to(parameter.device) for field, value in fields.items()
                }
    return Position(**json.loads((folder / STATE).read_text()))


def load_adapters(folder: Path, learner: Learner) -> None:
    """Adapters and critics alone, from a checkpoint or from folders laid out like one."""
    for name in learner.optimizers:
        where = adapter_folder(folder, name, learner.critic)
        if not where.is_dir():
            raise MarftError(f"{folder} has no adapter for {name!r}: {where} is missing")
        load_adapter(learner.team, name, where)


def adapter_folder(folder: Path, name: str, critic: str | None) -> Path:
    return folder / ("critics" if name == critic else "agents") / name


def initial_adapters(source: str, learner: Learner, newest: Path | None) -> None:
    """`init_from`: the newest checkpoint of a run, or a folder with agents/NAME (or NAME) in PEFT's format."""
    folder = newest or Path(source)
    if not folder.is_dir():
        raise MarftError(f"init_from: {source} is neither a run nor a folder of adapters")
    plain = newest is None and not (folder / "agents").is_dir()
    for name in learner.team.agents if plain else learner.optimizers:
        where = folder / name if plain else adapter_folder(folder, name, learner.critic)
        if where.is_dir():
            load_adapter(learner.team, name, where)
        elif name != learner.critic:  # other runs may have had no critic: ours starts afresh
            raise MarftError(f"init_from: {folder} has no adapter for {name!r}: {where} is missing")
