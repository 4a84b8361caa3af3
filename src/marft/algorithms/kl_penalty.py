"""The KL to the untrained base that is taken off the reward, and how far it is no more than rounding."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from marft.algorithms.batch import Batch
from marft.algorithms.losses import KlKind, kl_estimate, sum_by_turn

MARGIN = 3.0  # deviations of the rounding: what differs by less does not count as a difference
LARGEST = 0.1  # gap of a token that is rounding; a larger one is a single mishap, and says nothing of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """Of each token, and how much turns must differ in their sums before it means anything."""

    amount_N: Tensor
    noise: float


def kl_penalty(
    batch: Batch, weight_A: Tensor, own_N: Tensor, reference_N: Tensor, kind: KlKind, *, version: int
) -> Penalty:
    """weight · KL(π || base) a token, both read by the learner: an engine in bfloat16 rounds otherwise than the learner does,
    and where rewards are equal, estimators that divide by the spread would learn from that alone.

    How far the penalties of turns would be off, some more than others, had the engine's log-probs been taken, tells the
    rounding; but not of what another `version` than the learner's said, which differs by more than that.
    """
    turn_N = batch.turn_N
    weight_N = weight_A[batch.agent_K[turn_N]]
    amount_N = weight_N * kl_estimate(own_N, reference_N, kind)
    off_N = own_N + (batch.old_N - own_N).clamp(-LARGEST, LARGEST)
    gap_N = amount_N - weight_N * kl_estimate(off_N, reference_N, kind)
    gap_K = sum_by_turn(gap_N, turn_N, len(batch.length_K)).double()[batch.version_K == version]
    noise = MARGIN * float(gap_K.std(correction=0)) if len(gap_K) else 0.0
    return Penalty(amount_N=amount_N, noise=noise)
