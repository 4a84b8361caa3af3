"""Plain data as bytes and back, without pickle: tensors in safetensors' format, all else as JSON in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor

from marft.algorithms.batch import Batch, Estimate, Member, Scores

Data = TypeVar("Data", Batch, Scores, Estimate)
State = Mapping[str, Mapping[str, Tensor]]  # of each adapter, by names
SEPARATOR = "\n"  # between an adapter's name and a tensor's; no name has one


def tensor_fields(data: Batch | Scores | Estimate) -> dict[str, Tensor]:
    """Its tensors by the names of their fields. Copies: safetensors refuses two that share memory."""
    found = {field.name: getattr(data, field.name) for field in fields(data)}
    return {
        name: value.clone(memory_format=torch.contiguous_format)
        for name, value in found.items()
        if isinstance(value, Tensor)
    }


def plain_fields(data: Batch | Scores | Estimate) -> dict[str, Any]:
    """All else, as JSON has it."""
    found = {field.name: getattr(data, field.name) for field in fields(data)}
    return {
        name: [asdict(member) for member in value] if name == "members" else value
        for name, value in found.items()
        if not isinstance(value, Tensor)
    }


def to_bytes(data: Batch | Scores | Estimate) -> bytes:
    """The data as bytes."""
    return save(tensor_fields(data), metadata={"data": json.dumps(plain_fields(data))})


def from_bytes(kind: type[Data], packed: bytes) -> Data:
    """The data again."""
    header = json.loads(packed[8 : 8 + int.from_bytes(packed[:8], "little")])
    names: Mapping[str, Any] = json.loads(header["__metadata__"]["data"])
    if "members" in names:
        names = {**names, "members": tuple(Member(**member) for member in names["members"])}
    values: dict[str, Any] = {**load(packed), **names}
    return kind(**values)


def state_to_bytes(state: State) -> bytes:
    """Tensors of several adapters as bytes."""
    flat = {
        f"{name}{SEPARATOR}{key}": tensor.detach().cpu().contiguous()
        for name, own in state.items()
        for key, tensor in own.items()
    }
    return save(flat)


def state_from_bytes(packed: bytes) -> dict[str, dict[str, Tensor]]:
    """The tensors again, by adapter; one without any is not there."""
    found: dict[str, dict[str, Tensor]] = {}
    for flat, tensor in load(packed).items():
        name, key = flat.split(SEPARATOR)
        found.setdefault(name, {})[key] = tensor
    return found
