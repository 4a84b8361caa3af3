"""What the ranks of a learner tell one another, as frames of bytes without pickle: a line of JSON, then blocks of tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from marft.algorithms.batch import Batch, Estimate, Scores, TrainingBatch
from marft.algorithms.transport import from_bytes, to_bytes
from marft.learners.base import State, UpdatePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A method that every rank calls, its plain arguments, and those that are tensors."""

    call: str
    arguments: Mapping[str, Any]
    blocks: tuple[bytes, ...] = ()

    def frames(self) -> list[bytes]:
        """The order as messages of a pipe."""
        head = {"call": self.call, "arguments": dict(self.arguments), "blocks": len(self.blocks)}
        return [json.dumps(head).encode(), *self.blocks]

    @classmethod
    def read(cls, next_frame: Callable[[], bytes]) -> Order:
        """The next order of a pipe."""
        head = json.loads(next_frame())
        blocks = tuple(next_frame() for _ in range(head["blocks"]))
        return cls(call=head["call"], arguments=head["arguments"], blocks=blocks)


def score_order(batch: Batch, *, reference: bool, proximal: bool) -> Order:
    """An order to score a batch."""
    return Order(call="score", arguments={"reference": reference, "proximal": proximal}, blocks=(to_bytes(batch),))


def update_order(data: TrainingBatch, plan: UpdatePlan) -> Order:
    """An order to learn from a batch."""
    arguments = asdict(plan) | {"steps": [sorted(step) for step in plan.steps]}
    blocks = to_bytes(data.batch), to_bytes(data.scores), to_bytes(data.estimate)
    return Order(call="update", arguments=arguments, blocks=blocks)


def read_update(order: Order) -> tuple[TrainingBatch, UpdatePlan]:
    """What `update_order` was given."""
    batch, scores, estimate = order.blocks
    data = TrainingBatch(
        batch=from_bytes(Batch, batch), scores=from_bytes(Scores, scores), estimate=from_bytes(Estimate, estimate)
    )
    steps = tuple(frozenset(step) for step in order.arguments["steps"])
    return data, UpdatePlan(**{**order.arguments, "steps": steps})


def checksum(state: State) -> int:
    """Of all bits: ranks whose weights are equal have the same."""
    sums = [
        tensor.detach().view(torch.int32).sum(dtype=torch.int64).cpu()
        for own in state.values()
        for tensor in own.values()
    ]
    return int(torch.stack(sums).sum())
