"""A batch and what it is worth, and what an update made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from marft.algorithms.experience import Estimate
from marft.training.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """All that an update needs."""

    batch: Batch
    estimate: Estimate
    values: Tensor | None  # the critics', before the update
    reference_N: Tensor | None  # log-probs of the untrained base, where a KL needs them
    kl_weight_A: Tensor  # of the KL in the loss; 0 where it is in the reward, or off
    mismatch: Mapping[str, float] | None = None  # of the engine's log-probs, where they were compared with our own


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What an update did: figures by agent and critic, the episodes' factors after the last but one of several steps, and
    how many tokens were trained on."""

    statistics: Mapping[str, Mapping[str, float]]
    factor_E: Tensor | None
    tokens: int


class Tally:
    """Sums over the tokens of an update, by agent: kl, clipped, entropy, KL to the reference, tokens; critics' losses."""

    COLUMNS = 5

    def __init__(self, agents: int) -> None:
        self.by_agent = torch.zeros(agents, self.COLUMNS)
        self.critics: dict[str, float] = {}
        self.tokens = 0  # that went through the bases

    def add(self, agent_N: Tensor, kl_N: Tensor, clipped_N: Tensor, entropy_N: Tensor, reference_kl_N: Tensor) -> None:
        columns = torch.stack([kl_N, clipped_N.to(kl_N), entropy_N, reference_kl_N, torch.ones_like(kl_N)], dim=1)
        self.by_agent.index_add_(0, agent_N, columns.detach().cpu())

    def add_all(self, other: Tally) -> None:
        self.by_agent += other.by_agent
        self.tokens += other.tokens
        for critic, loss in other.critics.items():
            self.critics[critic] = self.critics.get(critic, 0.0) + loss
