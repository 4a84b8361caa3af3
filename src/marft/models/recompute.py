"""Activations of a layer recomputed in the backward pass instead of being kept: less memory for about half more time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from marft.models.lora import TeamLora
from marft.models.team import TeamModel
from marft.types import MarftError


def recompute_layers(team: TeamModel) -> None:
    """From now on; passes without gradient are as before."""
    if team.decoder is not None:
        team.decoder.recompute = True
        return
    layers: list[Any] = [layer for layer in team.base.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        raise MarftError(f"train.recompute: model {team.name!r} has no layers that can be recomputed; drop it")
    for layer in layers:
        layer.forward = partial(checkpointed, layer.forward, team.lora)


def checkpointed(forward: Callable[..., Any], lora: TeamLora, *inputs: Any, **others: Any) -> Any:
    """The layer as a checkpoint. It runs again when its pass is long over, so it takes the pass's routing along;
    transformers' own checkpoints would find none, and exist only in training mode, which brings dropout."""
    if not torch.is_grad_enabled():
        return forward(*inputs, **others)
    routing = lora.routing

    def routed(*inputs: Any, **others: Any) -> Any:
        with lora.route(routing):
            return forward(*inputs, **others)

    return checkpoint(routed, *inputs, use_reentrant=False, **others)
