"""A trust region that holds: how much of a step is kept, and how the learning rate follows.

A step goes too far where what it did, measured on the batch, passes its limit: an agent's KL from the policy that played
(TRPO, arXiv 1502.05477; HATRPO, arXiv 2109.11251), a critic's loss. It is then shortened until it is within.
"""

from __future__ import annotations

import math

SHORTEST, LONGEST = 0.1, 0.9  # of one shortening
FALL, RISE, FLOOR = 0.7, 1.2, 1e-3  # of a learning rate's factor


def shortening(excess: float) -> float:
    """By which ratio to shorten a step whose figure is `excess` times its limit: a KL grows with the square of the way.

    0.9/√excess, within [0.1, 0.9]; what is not finite is as far as can be.
    """
    if not math.isfinite(excess):
        return SHORTEST
    return max(SHORTEST, min(LONGEST, LONGEST / math.sqrt(excess)))


def adapted_rate(factor: float, kept: float) -> float:
    """The factor of a learning rate after an update in which the share `kept` of the shortest step was kept.

    A step that was shortened makes it fall by that share (by 0.7 at least, to a tenth at most); while all are kept whole it
    rises by a fifth each time, up to 1.
    """
    if kept >= 1:
        return min(1.0, factor * RISE)
    return max(FLOOR, factor * max(SHORTEST, min(FALL, kept)))
