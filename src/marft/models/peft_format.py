"""Adapters on disk in PEFT's format, so that peft and vLLM load them as they are; value heads beside a critic's adapter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from marft.models.team import TeamModel
from marft.types import MarftError

WEIGHTS, CONFIG, VALUE_HEAD = "adapter_model.safetensors", "adapter_config.json", "value_head.safetensors"


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
        "target_modules": sorted({layer.rpartition(".")[2] for layer in team.lora.layers}),
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
    given = {path: read_fitting(path, own, name) for path, own in sources.items()}
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
    for layer, wrapped in team.lora.layers.items():
        views[f"base_model.model.{layer}.lora_A.weight"] = wrapped.stack.a[i]
        views[f"base_model.model.{layer}.lora_B.weight"] = wrapped.stack.b[i].T
    return views


def read_fitting(path: Path, own: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of a file, which must be those of `own` by name and shape."""
    given = read_tensors(path)
    if odd := min(given.keys() ^ own.keys(), default=None):
        side = "lacks" if odd in own else "also has"
        raise MarftError(f"{path} does not fit adapter {name!r}: it {side} {odd}; check model, lora.targets")
    for key, target in own.items():
        if given[key].shape != target.shape:
            shapes = f"{list(given[key].shape)} instead of {list(target.shape)}"
            raise MarftError(f"{path} does not fit adapter {name!r}: {key} is {shapes}; check model, lora.rank")
    return given


def read_scaling(path: Path) -> tuple[float, int]:
    """alpha and rank"""
    try:
        config = json.loads(path.read_text())
        return float(config["lora_alpha"]), int(config["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MarftError(
            f"cannot read {path}: {type(error).__name__} {error}; give a folder that export wrote"
        ) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise MarftError(f"cannot read {path}: {error}") from None
