"""The decoupled objective: what policy μ said, learnt from by another (arXiv 2110.00641; AReaL, arXiv 2505.24298).

μ drew the tokens: an older version of the agent, or the same one computed by other kernels. π_prox is the learner's own
policy before the update, from which the trust region is measured. With ρ = π_θ / π_prox and w = min(π_prox / μ, C),
L = −Σ ω · w · min(ρA, clip(ρ)A). π_prox / μ is the ratio that the algorithm has, a token's or a turn's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from marft.algorithms.batch import Batch, Estimate
from marft.algorithms.losses import kl_estimate

Ratio = Callable[[Tensor, Tensor, Tensor], Tensor]  # an algorithm's, from log-ratios [N], turns [N] and words [K]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """How far π_prox lies from μ, over all tokens and over those of each agent that acted."""

    figures: Mapping[str, float]
    agents: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoupled:
    """A batch to learn from, the weight w of each of its tokens (None: no correction), and figures for the record."""

    batch: Batch
    weight_N: Tensor | None
    mismatch: Mismatch

    def weighted(self, estimate: Estimate) -> Estimate:
        """w · A in place of A: as w ≥ 0, that is w times the clipped surrogate. The critics' returns stay."""
        if self.weight_N is None:
            return estimate
        return replace(estimate, advantages_N=estimate.advantages_N * self.weight_N)


def decouple(batch: Batch, proximal_N: Tensor, ratio: Ratio, correction: float | None) -> Decoupled:
    """`proximal_N`: log π_prox of the batch's tokens, beside its old_N = log μ; `correction` is C.

    Without a correction the batch stays as it is: its ratios are π_θ / μ.
    """
    gap_N, weight_N, cut_N = proximal_N - batch.old_N, None, None
    if correction is not None:
        ratio_N = ratio(gap_N, batch.turn_N, batch.words_K)
        weight_N, cut_N = ratio_N.clamp(max=correction), ratio_N > correction
    figures_N = {
        "kl": kl_estimate(batch.old_N.double(), proximal_N.double(), "k3"),  # KL(μ ‖ π_prox), mostly tiny
        "mean": gap_N.abs(),
        **({} if weight_N is None or cut_N is None else {"weight": weight_N, "truncated": cut_N.float()}),
    }
    agent_N = batch.agent_K[batch.turn_N]
    own = {batch.members[i].agent: agent_N == i for i in agent_N.unique().tolist()}
    mismatch = Mismatch(
        figures=summed_up(figures_N, gap_N),
        agents={name: summed_up({key: x[of] for key, x in figures_N.items()}, gap_N[of]) for name, of in own.items()},
    )
    learnt = batch if correction is None else replace(batch, old_N=proximal_N)
    return Decoupled(batch=learnt, weight_N=weight_N, mismatch=mismatch)


def summed_up(figures_N: Mapping[str, Tensor], gap_N: Tensor) -> dict[str, float]:
    """The number of tokens, the mean of each figure over them, and the largest gap."""
    means = {key: float(figure.mean()) for key, figure in figures_N.items()}
    return {"tokens": float(len(gap_N)), **means, "max": float(gap_N.abs().max())}


def combine_plays(found: Sequence[Mismatch]) -> dict[str, float]:
    """The figures of several plays together: the largest of the largest, means over all tokens of the rest."""
    figures = [one.figures for one in found]
    total = sum(one["tokens"] for one in figures)
    means = {
        key: sum(one[key] * one["tokens"] for one in figures) / total
        for key in figures[0]
        if key not in ("tokens", "max")
    }
    return {**means, "max": max(one["max"] for one in figures)}
