"""What a learner is: it scores batches and updates adapters, wherever these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Size, Tensor

from marft.algorithms.batch import Batch, Member, Scores, TrainingBatch
from marft.types import MarftError

Steps = tuple[frozenset[str], ...]  # one after another: the adapters that learn in each
State = Mapping[str, Mapping[str, Tensor]]  # of each adapter, by names


class NotFinite(MarftError):
    """A critic's value or an adapter's gradient is infinite or no number: nobody may step on it."""

    def __init__(self, adapter: str, what: str) -> None:
        super().__init__(f"{what} of {adapter!r} is not finite")
        self.adapter = adapter


class RankLost(MarftError):
    """A rank of the learner has ended or does not answer: what it had a part in cannot be finished, and may be tried again."""


class RankFailed(MarftError):
    """A rank of the learner has raised an error, and would do so again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatePlan:
    """Who learns in which step, how fast, and what decides the minibatches."""

    steps: Steps
    rates: Mapping[str, float]  # factors of the adapters' learning rates
    seed: int
    kl_weights: Mapping[str, float] = field(default_factory=dict)  # of the KL in the loss, by agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What an update did: figures by agent and critic, the episodes' factors after the last but one of several steps, the
    adapters' steps in units of their trust regions, and how many tokens were trained on."""

    statistics: Mapping[str, Mapping[str, float]]
    factor_E: Tensor | None
    excess: Mapping[str, float]
    tokens: int


class Learner(Protocol):
    """Holds the adapters that learn, their critics and optimizers."""

    @property
    def members(self) -> Sequence[Member]:
        """Who learns."""

    @property
    def rates(self) -> Mapping[str, float]:
        """The configured learning rate of every adapter and critic."""

    def score(self, batch: Batch, *, reference: bool = False, proximal: bool = False) -> Scores:
        """The critics' values; on demand log-probs of the untrained base, and of the agents as they are."""

    def update(self, data: TrainingBatch, plan: UpdatePlan) -> Update:
        """The steps one after another; critics learn in the first."""

    def adapters(self) -> State:
        """The weights of everything that learns."""

    def state_dict(self) -> State:
        """The optimizers' state, of every adapter that learns."""

    def state_shapes(self) -> Mapping[str, Mapping[str, Size]]:
        """The shapes of all that `state_dict` holds once every parameter has stepped."""

    def load_state_dict(self, state: State) -> None:
        """The optimizers as they were; a parameter that had not stepped by then has no state."""

    def start(self) -> None:
        """Begin with what takes time or may fail, before the first batch; without it, that comes with the first batch."""

    def close(self) -> None:
        """End what was started; once more is no harm."""
