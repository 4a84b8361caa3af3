"""Bytes that a run holds on a device: weights, optimizers, the engine's cache, and what one training pass keeps."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marft.models.logprobs import MOST_LOGITS
from marft.models.team import TeamModel
from marft.training.passes import Pass
from marft.training.plan.passing import loss_of, made_up

TRAINED = 16  # bytes of a parameter that learns: itself, its gradient and two Adam moments in fp32
FROZEN = 4
SMALL = 256  # tokens of the pass that is weighed, and of one twice as large


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """In bytes; `activation` is of one token of a training pass."""

    weights: int
    adapters: int
    cache: int
    activation: float
    activations: int  # of a pass of train.tokens tokens
    logits: int

    @property
    def total(self) -> int:
        return self.weights + self.adapters + self.cache + self.activations + self.logits


def weights_of(team: TeamModel) -> int:
    return sum({p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in team.model.parameters()}.values())


def adapters_of(team: TeamModel, learning: Collection[str]) -> int:
    return sum(
        p.numel() * (TRAINED if name in learning else FROZEN)
        for name in team.adapters
        for p in team.parameters(name).values()
    )


def cache_of(team: TeamModel, rows: int, positions: int) -> int:
    """Keys and values of every layer for so many rows of so many positions."""
    config, model = team.config, team.model
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    size = next(iter(model.parameters())).element_size()
    return int(2 * config.num_hidden_layers * heads * width * size * rows * positions)


def logits_of(team: TeamModel, tokens: int) -> int:
    """Three tensors of vocabulary width at once, for as many rows as are computed together."""
    words = int(team.head.weight.shape[0])
    return 3 * 4 * words * min(tokens, max(1, MOST_LOGITS // words))


def activation_of(template: Pass) -> float:
    """Bytes a token that a pass like this one keeps until its backward pass, weighed on two small ones: what does not
    grow with the tokens cancels out."""
    small, large = (made_up(template, size, seed=0) for size in (SMALL, 2 * SMALL))
    return (kept(large) - kept(small)) / (large.tokens - small.tokens)


def kept(one: Pass) -> int:
    """Bytes of everything that autograd keeps of a pass, but parameters."""
    own = {p.untyped_storage().data_ptr() for p in one.team.model.parameters()}
    held: dict[int, Tensor] = {}  # the tensors stay alive, so that no address is seen twice

    def note(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own and not isinstance(x, torch.nn.Parameter):
            held[x.untyped_storage().data_ptr()] = x
        return x

    def back(x: Any) -> Any:
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, back):
        loss_of(one)
    return sum(x.untyped_storage().nbytes() for x in held.values())


def device_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
