"""Sums over an update: what it did to every agent and critic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from marft.algorithms.batch import Member
from marft.algorithms.losses import kl_estimate
from marft.algorithms.trust_region import moved_kl


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

    def to_vector(self, critics: Sequence[str]) -> Tensor:
        """The sums as one vector; of these critics, seen here or not."""
        own = [float(self.tokens), *(self.critics.get(name, 0.0) for name in critics)]
        return torch.cat([torch.tensor(own, dtype=torch.float64), self.by_agent.flatten().double()])

    def read_vector(self, vector: Tensor, critics: Sequence[str]) -> None:
        """Sums that `to_vector` has laid out, of the same critics."""
        tokens, *losses = vector[: 1 + len(critics)].tolist()
        self.tokens = int(tokens)
        self.critics |= dict(zip(critics, losses, strict=True))
        self.by_agent = vector[1 + len(critics) :].float().view_as(self.by_agent)

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
        """Add another tally's sums to these."""
        self.by_agent += other.by_agent
        self.tokens += other.tokens
        for critic, loss in other.critics.items():
            self.critics[critic] = self.critics.get(critic, 0.0) + loss
            self.looks[critic] += 1


def statistics(
    members: Sequence[Member],
    tally: Tally,
    final: Tally,
    norms: Mapping[str, Sequence[float]],
    *,
    referenced: bool,
) -> dict[str, dict[str, float]]:
    """Of each agent and critic: means over the tokens of all minibatches, each seen before its step; `final` after the last."""
    found: dict[str, dict[str, float]] = {}
    for i, member in enumerate(members):
        kl, _, clipped, entropy, reference_kl, tokens = tally.by_agent[i].tolist()
        count, seen, last = max(tokens, 1.0), norms.get(member.adapter, ()), final.moved([i])
        found[member.agent] = {
            "kl": kl / count,
            **({"kl_final": last} if last is not None else {}),
            "clip_fraction": clipped / count,
            "entropy": entropy / count,
            **({"reference_kl": reference_kl / count} if referenced and tokens else {}),
            "grad_norm": sum(seen) / len(seen) if seen else 0.0,
            "steps": len(seen),
        }
    for critic, loss in tally.critics.items():
        seen = norms[critic]
        found[critic] = {"loss": loss / tally.looks[critic], "grad_norm": sum(seen) / len(seen)}
    return found
