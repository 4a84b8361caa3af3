"""A trust region that holds: how much of a step is kept, and how the learning rate follows.

A step goes too far where what it did, measured on the batch, passes its limit: an agent's KL from the policy that played
(TRPO, arXiv 1502.05477; HATRPO, arXiv 2109.11251), a critic's loss. It is then shortened until it is within.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SHORTEST, LONGEST = 0.1, 0.9  # of one shortening
FALL, RISE, FLOOR = 0.7, 1.2, 1e-3  # of a learning rate's factor


def moved_kl(old: Tensor, new: Tensor) -> Tensor:
    """KL(old ‖ new) per token drawn from the old policy, d = ℓ_new − ℓ_old: e^d − d − 1 where d < 0 (k3), ½d² elsewhere (k2).

    To second order both are the same. k3 alone weighs a token that became likelier with e^d: one token whose log-prob the
    engine rounded by 7 outweighs 30,000 others.
    """
    d = new - old
    return torch.where(d < 0, d.exp() - d - 1, 0.5 * d.square())


def shortening(excess: float) -> float:
    """By which ratio to shorten a step whose figure is `excess` times its limit: a KL grows with the square of the way.

    0.9/√excess, within [0.1, 0.9]; what is not finite is as far as can be.
    """
    if not math.isfinite(excess):
        return SHORTEST
    return max(SHORTEST, min(LONGEST, LONGEST / math.sqrt(excess)))


def adapted_rate(factor: float, excess: float) -> float:
    """The factor of a learning rate after an update that went `excess` times as far as its limit, in KL.

    Past the limit it falls as the way must, by 1/√excess (by 0.7 at least, to a tenth at most); below half of it, it rises
    by a fifth, up to 1; between them it stays.
    """
    if not excess <= 1:
        return max(FLOOR, factor * min(FALL, shortening(excess)))
    return min(1.0, factor * RISE) if excess < 0.5 else factor
