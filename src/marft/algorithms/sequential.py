"""Agents updated one after the other on one batch: what the updates before mean for the next agent's advantages."""

from __future__ import annotations

from torch import Tensor


def sequential_factor(factor_E: Tensor, log_ratio_N: Tensor, episode_N: Tensor, clip: float) -> Tensor:
    """M^{m+1} = M^m · clip(ρ_e, 1 ± clip), ρ_e = exp(mean of ℓ_new − ℓ_old over agent m's tokens N in episode e).

    The factor on the next agent's advantages (HAPPO, arXiv 2109.11251), length-normalised and clipped: a product over
    all tokens of a text would be 0 or huge. Episodes without a token of the agent keep theirs.
    """
    total_E = log_ratio_N.new_zeros(len(factor_E)).index_add(0, episode_N, log_ratio_N)
    count_E = log_ratio_N.new_zeros(len(factor_E)).index_add(0, episode_N, log_ratio_N.new_ones(len(episode_N)))
    ratio_E = (total_E / count_E.clamp(min=1)).exp()
    return factor_E * ratio_E.clamp(1 - clip, 1 + clip)
