"""Agents updated one after the other on one batch: what the updates before mean for the next agent's advantages."""

from __future__ import annotations

import math

from torch import Tensor


def sequential_factor(factor_E: Tensor, log_ratio_N: Tensor, episode_N: Tensor, clip: float) -> Tensor:
    """M^{m+1} = M^m · ρ_e, ρ_e = exp(Σ (ℓ_new − ℓ_old) over agent m's tokens N in episode e), within 1/clip … clip.

    The factor on the next agent's advantages (HAPPO, arXiv 2109.11251): how much likelier the episode became. It is the
    product over all tokens, whatever their number: a mean would make it 1 on long texts, as if nobody had moved. The
    bound holds the few episodes that became very likely or unlikely. Episodes without a token of the agent keep theirs.
    """
    total_E = log_ratio_N.new_zeros(len(factor_E)).index_add(0, episode_N, log_ratio_N)
    bound = math.log(clip)
    return factor_E * total_E.clamp(-bound, bound).exp()
