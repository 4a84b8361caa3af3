"""The GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES has for them."""

from __future__ import annotations

import os

import torch

from marft.types import MarftError


def visible_gpus() -> list[str]:
    """All that this process sees, in the order of their numbers here."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not given:
        return [str(number) for number in range(torch.cuda.device_count())]
    return [name.strip() for name in given.split(",")]


def visible_gpu(number: int) -> str:
    """The one that has this number for us, whether it is there or not."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not given:
        return str(number)
    names = visible_gpus()
    if number >= len(names):
        raise MarftError(
            f"rollout.gpus: CUDA_VISIBLE_DEVICES={given} has no GPU {number}; name those it has, from 0 on"
        )
    return names[number]


def other_gpus(device: str) -> list[str]:
    """Those that this process does not compute on."""
    if not device.startswith("cuda"):
        return []
    own = torch.device(device).index or 0
    return [name for number, name in enumerate(visible_gpus()) if number != own]
