"""Adapters on disk in PEFT's format, so that peft and vLLM load them as they are; value heads beside a critic's adapter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from marft.files import Damaged, Finite, Natural, open_file, read_json
from marft.models.team import TeamModel
from marft.types import MarftError

WEIGHTS, CONFIG, VALUE_HEAD = "adapter_model.safetensors", "adapter_config.json", "value_head.safetensors"
HIGHEST_RANK = 8192  # of an adapter: a higher one is damage, and memory would be taken for it


def save_adapter(team: TeamModel, name: str, folder: Path) -> None:
    """Write adapter `name` (and its value head, if it is a critic's) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = team.lora.specs[name]
    tensors = {key: side.detach().cpu().contiguous() for key, side in to_peft(team, name).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": team.name,
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted({layer.rpartition(".")[2] for layer in team.lora.stacks}),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    if name in team.value_heads:
        head = {n: p.detach().cpu().contiguous() for n, p in team.value_heads[name].named_parameters()}
        save_file(head, folder / VALUE_HEAD)


def load_adapter(team: TeamModel, name: str, folder: Path) -> None:
    """Copy an adapter from `folder` into the team's tensors, where it stays trainable; all of it or nothing."""
    sources = {folder / WEIGHTS: to_peft(team, name)}
    if name in team.value_heads:
        sources[folder / VALUE_HEAD] = dict(team.value_heads[name].named_parameters())
    given: dict[Path, dict[str, Tensor]] = {}
    for path, own in sources.items():
        with open_tensors(path) as file:
            given[path] = read_fitting(file, path, {key: each.shape for key, each in own.items()}, f"adapter {name!r}")
    alpha, rank = read_scaling(folder / CONFIG)
    if alpha / rank != team.lora.specs[name].scaling:
        raise MarftError(f"{folder / CONFIG}: lora_alpha {alpha:g} differs from this run's; set lora.alpha to it")
    with torch.no_grad():
        for path, own in sources.items():
            for key, target in own.items():
                target.copy_(given[path][key])


def to_peft(team: TeamModel, name: str) -> dict[str, Tensor]:
    """PEFT's name and shape of each of the adapter's tensors, as views: A [r, in], B [out, r]."""
    i = team.lora.index[name]
    views: dict[str, Tensor] = {}
    for layer, stack in team.lora.stacks.items():
        views[f"base_model.model.{layer}.lora_A.weight"] = stack.a[i]
        views[f"base_model.model.{layer}.lora_B.weight"] = stack.b[i].T
    return views


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What is read of an adapter's config."""

    r: Natural
    lora_alpha: Finite

    def __post_init__(self) -> None:
        if self.r > HIGHEST_RANK or self.lora_alpha <= 0:
            raise ValueError(f"r is at most {HIGHEST_RANK} and lora_alpha above 0")


def read_scaling(path: Path) -> tuple[float, int]:
    """alpha and rank"""
    try:
        found = read_json(path, Scaling)
    except Damaged as error:
        raise MarftError(f"cannot read {path}: it {error.reason}; give a folder that export wrote") from None
    return found.lora_alpha, found.r


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """A file of safetensors, whose tensors are not read before they are asked for."""
    open_file(path).close()  # safetensors would wait for a FIFO
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise Damaged(path, f"is damaged: {error}") from None


def read_fitting(file: Any, path: Path, shapes: Mapping[str, Sequence[int]], what: str) -> dict[str, Tensor]:
    """The tensors of an open file, which must be those of `shapes` by name and shape: of numbers, all of them finite."""
    if odd := min(shapes.keys() ^ set(file.keys()), default=None):
        side = "lacks" if odd in shapes else "also has"
        raise MarftError(f"{path} does not fit {what}: it {side} {odd}; check model, lora.targets")
    found: dict[str, Tensor] = {}
    for key, shape in shapes.items():
        there = file.get_slice(key).get_shape()  # known before any memory is taken for it
        if there != list(shape):
            raise MarftError(
                f"{path} does not fit {what}: {key} is {there} instead of {list(shape)}; check model, lora.rank"
            )
        found[key] = file.get_tensor(key)
        if not (found[key].is_floating_point() and found[key].isfinite().all()):
            raise Damaged(path, f"is damaged: {key} holds what is no finite number")
    return found
