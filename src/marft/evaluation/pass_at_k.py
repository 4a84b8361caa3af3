"""pass@k and maj@k of one task, as pure functions of what its samples answered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache


def pass_at_k(samples: int, right: int, k: int) -> float:
    """1 − C(n − c, k) / C(n, k): the chance that k of n samples, c of them right, hold a right one (arXiv 2107.03374)."""
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def majority_at_k(answers: Sequence[str | None], right: Sequence[bool], k: int) -> float:
    """The chance that the most frequent answer of k of these samples is right; ties are settled by lot.

    It is the exact mean over all subsets of k samples. A sample without an answer does not vote; where none of the k
    votes, one of them is drawn. Four samples with answers 7 7 5 –, of which 7 is right, and k = 2: of the six pairs
    77, 7– and 7– are won and 75 and 75 are ties, so it is (3 + 2/2) / 6.
    """
    silent = [correct for answer, correct in zip(answers, right, strict=True) if answer is None]
    votes = Counter(answer for answer in answers if answer is not None).most_common()
    hits = Counter(answer for answer, correct in zip(answers, right, strict=True) if correct)
    chances = winning_chances(tuple(count for _, count in votes), len(silent), k)
    won = sum(chance * hits[answer] / count for (answer, count), chance in zip(votes, chances, strict=True))
    unsaid = math.comb(len(silent), k) / math.comb(len(answers), k)
    return won + (unsaid * sum(silent) / len(silent) if silent else 0.0)


@lru_cache(maxsize=4096)
def winning_chances(counts: tuple[int, ...], silent: int, k: int) -> tuple[float, ...]:
    """How likely each answer is to win among k samples, where `counts` samples gave each and `silent` gave none."""
    subsets = math.comb(sum(counts) + silent, k)
    found: dict[int, float] = {}
    for own in set(counts):
        others = list(counts)
        others.remove(own)
        ways = sum(
            (math.comb(own, votes) * ways_to_win(votes, others, silent, k - votes) for votes in range(1, min(own, k) + 1)),
            start=Fraction(0),
        )  # fmt: skip
        found[own] = float(ways / subsets)
    return tuple(found[own] for own in counts)


def ways_to_win(votes: int, others: Sequence[int], silent: int, left: int) -> Fraction:
    """Ways to draw the `left` other samples so that no answer has more than `votes`; t ties count as 1 / (t + 1)."""
    ways = Counter({(left, 0): 1})  # by samples still to draw, and by ties
    for other in others:
        following: Counter[tuple[int, int]] = Counter()
        for (still, ties), number in ways.items():
            for drawn in range(min(other, votes, still) + 1):
                following[still - drawn, ties + (drawn == votes)] += number * math.comb(other, drawn)
        ways = following
    return sum(
        (Fraction(number * math.comb(silent, still), ties + 1) for (still, ties), number in ways.items()),
        start=Fraction(0),
    )
