"""How far the engine's log-probs lie from the learner's own, and importance weights that make up for it.

Tokens are drawn from the engine's distribution μ and learnt under the learner's π, which rounds differently, or is
computed by other kernels. With a correction C, the gradient of a token is multiplied by min(π/μ, C) (truncated
importance sampling), and the trust region is measured from π.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from marft.algorithms.batch import Batch, Estimate
from marft.algorithms.losses import kl_estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A batch to learn from, the weight of each of its tokens (None: no correction), and figures for the record."""

    batch: Batch
    weight_N: Tensor | None
    figures: Mapping[str, float]

    def corrected(self, estimate: Estimate) -> Estimate:
        """Weighted advantages; where a turn has one ratio, its tokens' mean weight counts."""
        if self.weight_N is None:
            return estimate
        return replace(estimate, advantages_N=estimate.advantages_N * self.weight_N)


def find_mismatch(batch: Batch, own_N: Tensor, correction: float | None) -> Mismatch:
    """`own_N`: log π of the batch's tokens by the learner's own code, beside its old_N = log μ."""
    gap_N = own_N - batch.old_N
    figures = {
        "tokens": float(len(gap_N)),
        "kl": float(kl_estimate(batch.old_N.double(), own_N.double(), "k3").mean()),  # KL(μ ‖ π), mostly tiny
        "mean": float(gap_N.abs().mean()),
        "max": float(gap_N.abs().max()),
    }
    if correction is None:
        return Mismatch(batch=batch, weight_N=None, figures=figures)
    weight_N = gap_N.exp().clamp(max=correction)
    figures |= {"weight": float(weight_N.mean()), "truncated": float((gap_N.exp() > correction).float().mean())}
    return Mismatch(batch=replace(batch, old_N=own_N), weight_N=weight_N, figures=figures)


def combine_plays(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The figures of several plays together: the largest of the largest, means over all tokens of the rest."""
    total = sum(one["tokens"] for one in found)
    means = {
        key: sum(one[key] * one["tokens"] for one in found) / total for key in found[0] if key not in ("tokens", "max")
    }
    return {**means, "max": max(one["max"] for one in found)}
