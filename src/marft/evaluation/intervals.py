"""95 % intervals: of a proportion, of a mean over seeds or tasks, and of a difference that is paired by them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# The 0.975 quantile of Student's t with 1, 2, … 30 degrees of freedom.
T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
AGREE = 1e-9  # a smaller spread than this is rounding
ANY = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalEstimate:
    """A figure with its 95 % interval, or None where nothing tells how far off it may be."""

    value: float
    interval: tuple[float, float] | None = None


def mean_estimate(seeds: Sequence[IntervalEstimate], within: tuple[float, float] = ANY) -> IntervalEstimate:
    """The seeds' mean, with Student's t on their values; `within` is what the figure can be at all.

    One seed, and seeds that agree to the digit, show no spread: then its own interval, that on its tasks, stands.
    """
    return estimate_mean([seed.value for seed in seeds], seeds[0].interval, within)


def paired_difference(
    ours: Sequence[IntervalEstimate], theirs: Sequence[IntervalEstimate], within: tuple[float, float] = ANY
) -> IntervalEstimate:
    """Ours minus theirs, seed by seed, so that what a seed does to both cancels out."""
    gaps = [one.value - two.value for one, two in zip(ours, theirs, strict=True)]
    return estimate_mean(gaps, newcombe_interval(ours[0], theirs[0]), within)


def estimate_mean(
    values: Sequence[float], of_one: tuple[float, float] | None, within: tuple[float, float]
) -> IntervalEstimate:
    """The mean of `values` with Student's t, cut to `within`; `of_one` stands where they show no spread."""
    mean = statistics.fmean(values)
    if len(values) == 1 or statistics.stdev(values) < AGREE:
        return IntervalEstimate(value=mean, interval=of_one)
    low, high = t_interval(values)
    return IntervalEstimate(value=mean, interval=(max(low, within[0]), min(high, within[1])))


def wilson_interval(right: float, total: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion: honest near 0 and 1, where the normal one is not."""
    p = right / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """mean ± t(n - 1) · s / √n, for n ≥ 2."""
    n = len(values)
    t = T975[min(n - 1, len(T975)) - 1]  # past the table its last quantile: a little too wide, never too narrow
    mean, half = statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(n)
    return mean - half, mean + half


def newcombe_interval(one: IntervalEstimate, two: IntervalEstimate) -> tuple[float, float] | None:
    """The interval of one minus two, from the Wilson intervals of both (Newcombe 1998, method 10).

    It takes the two for independent. Answers to the same tasks go together, so it is rather too wide.
    """
    if one.interval is None or two.interval is None:
        return None
    gap = one.value - two.value
    down = math.hypot(one.value - one.interval[0], two.interval[1] - two.value)
    up = math.hypot(one.interval[1] - one.value, two.value - two.interval[0])
    return gap - down, gap + up
