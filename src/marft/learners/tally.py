"""A batch and what it is worth, and what an update made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marft.algorithms.experience import Estimate
from marft.algorithms.losses import kl_estimate
from marft.algorithms.trust_region import moved_kl
from marft.rollouts.batching import Batch
from marft.types import MarftError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """All that an update needs."""

    batch: Batch
    estimate: Estimate
    values: Tensor | None  # the critics', before the update
    reference_N: Tensor | None  # log-probs of the untrained base, where a KL needs them
    kl_weight_A: Tensor  # of the KL in the loss; 0 where it is in the reward, or off
    mismatch: Mapping[str, float] | None = None  # of the engine's log-probs, where they were compared with our own
    own_N: Tensor | None = None  # log-probs of the agents before the update by our own code, where they were read


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What an update did: figures by agent and critic, the episodes' factors after the last but one of several steps, the
    adapters' steps in units of their trust regions, and how many tokens were trained on."""

    statistics: Mapping[str, Mapping[str, float]]
    factor_E: Tensor | None
    excess: Mapping[str, float]
    tokens: int


class NotFinite(MarftError):
    """A critic's value or an adapter's gradient is infinite or no number: nobody may step on it."""

    def __init__(self, adapter: str, what: str) -> None:
        super().__init__(f"{what} of {adapter!r} is not finite")
        self.adapter = adapter


class Tally:
    """Sums over the tokens of an update, by agent: kl, how far the policy moved, clipped, entropy, KL to the reference,
    tokens; critics' losses."""

    COLUMNS = 6

    def __init__(self, agents: int) -> None:
        self.by_agent = torch.zeros(agents, self.COLUMNS)
        self.critics: dict[str, float] = {}
        self.looks: Counter[str] = Counter()  # minibatches in which each critic was seen
        self.tokens = 0  # that went through the bases

    def add(
        self,
        agent_N: Tensor,
        old_N: Tensor,
        new_N: Tensor,
        clipped_N: Tensor,
        entropy_N: Tensor,
        reference_kl_N: Tensor,
    ) -> None:
        """Log-probs of some tokens when they were drawn and now, and what else was found of them."""
        kl_N, moved_N = kl_estimate(old_N, new_N, "k3"), moved_kl(old_N, new_N)
        columns = torch.stack(
            [kl_N, moved_N, clipped_N.to(kl_N), entropy_N, reference_kl_N, torch.ones_like(kl_N)], dim=1
        )
        self.by_agent.index_add_(0, agent_N, columns.detach().cpu())

    def moved(self, agents: Sequence[int]) -> float | None:
        """How far these agents' policies moved, a token (`moved_kl`); None where they said nothing."""
        _, moved, *_, tokens = self.by_agent[list(agents)].sum(0).tolist()
        return moved / tokens if tokens else None

    def replaced(self, other: Tally, agents: Sequence[int], critics: Collection[str]) -> Tally:
        """The same with some agents and critics as `other` has them."""
        both = Tally(len(self.by_agent))
        both.by_agent = self.by_agent.clone()
        both.by_agent[list(agents)] = other.by_agent[list(agents)]
        both.critics = {name: other.critics[name] if name in critics else loss for name, loss in self.critics.items()}
        both.tokens = self.tokens
        return both

    def add_all(self, other: Tally) -> None:
        self.by_agent += other.by_agent
        self.tokens += other.tokens
        for critic, loss in other.critics.items():
            self.critics[critic] = self.critics.get(critic, 0.0) + loss
            self.looks[critic] += 1
