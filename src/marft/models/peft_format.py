"""Adapters on disk in PEFT's format, so that peft and vLLM load them as they are; value heads beside a critic's adapter."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from marft.models.team import TeamModel
from marft.types import MarftError

WEIGHTS, CONFIG, VALUE_HEAD = "adapter_model.safetensors", "adapter_config.json", "value_head.safetensors"


def save_adapter(team: TeamModel, name: str, folder: Path, base: str) -> None:
    """Write adapter `name` (and its value head, if it is a critic's) into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = team.lora.specs[name]
    tensors = {key: side.detach().cpu().contiguous() for key, side in to_peft(team, name).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
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
    """Copy an adapter from `folder` into the team's tensors, where it stays trainable."""
    own = to_peft(team, name)
    given = read_tensors(folder / WEIGHTS)
    if given.keys() != own.keys():
        odd = min(given.keys() ^ own.keys())
        side = "lacks" if odd in own else "also has"
        raise MarftError(
            f"{folder / WEIGHTS} does not fit adapter {name!r}: it {side} {odd}; check model, lora.targets"
        )
    for key, target in own.items():
        if given[key].shape != target.shape:
            shapes = f"{list(given[key].shape)} instead of {list(target.shape)}"
            raise MarftError(f"{folder / WEIGHTS} does not fit adapter {name!r}: {key} is {shapes}; check lora.rank")
    scaling = json.loads((folder / CONFIG).read_text())
    if scaling["lora_alpha"] / scaling["r"] != team.lora.specs[name].scaling:
        raise MarftError(
            f"{folder / CONFIG}: lora_alpha {scaling['lora_alpha']} differs from this run's; set lora.alpha to it"
        )
    with torch.no_grad():
        for key, target in own.items():
            target.copy_(given[key])
        if name in team.value_heads:
            head = read_tensors(folder / VALUE_HEAD)
            for n, parameter in team.value_heads[name].named_parameters():
                parameter.copy_(head[n])


def to_peft(team: TeamModel, name: str) -> dict[str, Tensor]:
    """PEFT's name and shape of each of the adapter's tensors, as views: A [r, in], B [out, r]."""
    i = team.lora.index[name]
    views: dict[str, Tensor] = {}
    for layer, wrapped in team.lora.layers.items():
        views[f"base_model.model.{layer}.lora_A.weight"] = wrapped.stack.a[i]
        views[f"base_model.model.{layer}.lora_B.weight"] = wrapped.stack.b[i].T
    return views


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise MarftError(f"cannot read {path}: {error}") from None
