"""pass@k, maj@k and Wilson's interval: by hand, against all subsets, and what must hold for any samples."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.evaluation.intervals import wilson_interval
from marft.evaluation.pass_at_k import majority_at_k, pass_at_k, winning_chances

samples = st.lists(st.tuples(st.sampled_from([None, "1", "2", "3", "4"]), st.booleans()), min_size=1, max_size=7)


def test_wilson_by_hand() -> None:
    """1 of 4 with z² = 4: centre (¼ + ½) / 2, half-width √(3/64 + 1/16) · 2 / 2 = √(7/64)."""
    low, high = wilson_interval(1, 4, z=2.0)
    assert (low, high) == pytest.approx((3 / 8 - math.sqrt(7) / 8, 3 / 8 + math.sqrt(7) / 8))
    assert wilson_interval(0, 9)[0] == 0
    assert wilson_interval(9, 9)[1] == 1
    assert wilson_interval(9, 9)[0] == pytest.approx(1 - wilson_interval(0, 9)[1])


# --- pass@k -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 1, 1, 1 / 4),
        (4, 1, 2, 1 / 2),  # 3 of the 6 pairs hold the right one
        (4, 2, 2, 5 / 6),  # all pairs but the one of the two wrong ones
        (5, 2, 3, 9 / 10),  # 10 triples, one without a right sample
        (4, 3, 2, 1.0),  # two samples, one wrong at most
        (4, 0, 4, 0.0),
        (8, 8, 1, 1.0),
    ],
)
def test_pass_at_k_by_hand(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_grows_with_k_from_the_accuracy(counts: tuple[int, int]) -> None:
    n, c = counts
    found = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert found[0] == pytest.approx(c / n)
    assert found == sorted(found)
    assert found[-1] == (c > 0)


# --- maj@k ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("answers", "right", "k", "expected"),
    [
        ("775-", "7", 2, 4 / 6),  # 77 7- 7- won, 75 75 tied
        ("7755", "7", 4, 1 / 2),  # a tie
        ("775", "7", 3, 1.0),
        ("755", "7", 3, 0.0),
        ("755", "7", 1, 1 / 3),
        ("123", "1", 3, 1 / 3),  # three tied
        ("7--", "7", 3, 1.0),  # who has no answer does not vote
        ("7---", "7", 2, 3 / 6),
        ("---", "7", 2, 0.0),
        ("77755", "7", 3, 7 / 10),  # 777, and 6 of two 7s
    ],
)
def test_majority_by_hand(answers: str, right: str, k: int, expected: float) -> None:
    given = [None if answer == "-" else answer for answer in answers]
    assert majority_at_k(given, [answer == right for answer in given], k) == pytest.approx(expected)


def test_where_nobody_votes_one_is_drawn() -> None:
    assert majority_at_k([None, None, None, None], [True, False, False, False], 3) == pytest.approx(1 / 4)


def test_an_answer_that_is_right_in_half_of_its_samples_is_half_right() -> None:
    assert majority_at_k(["7", "7", "5"], [True, False, True], 3) == pytest.approx(1 / 2)


def by_enumeration(answers: list[str | None], right: list[bool], k: int) -> float:
    found = []
    for subset in combinations(range(len(answers)), k):
        votes = Counter(answers[i] for i in subset if answers[i] is not None)
        winners = [answer for answer in votes if votes[answer] == max(votes.values())]
        hits = [[right[i] for i in range(len(answers)) if answers[i] == answer] for answer in winners]
        found.append(fmean(map(fmean, hits)) if hits else fmean(right[i] for i in subset))
    return fmean(found)


@settings(max_examples=200, deadline=None)
@given(samples.flatmap(lambda s: st.tuples(st.just(s), st.integers(1, len(s)))))
def test_it_is_the_mean_over_all_subsets(case: tuple[list[tuple[str | None, bool]], int]) -> None:
    found, k = case
    answers, right = [answer for answer, _ in found], [correct for _, correct in found]
    assert majority_at_k(answers, right, k) == pytest.approx(by_enumeration(answers, right, k))


@given(samples)
def test_the_majority_of_one_is_the_accuracy(found: list[tuple[str | None, bool]]) -> None:
    answers, right = [answer for answer, _ in found], [correct for _, correct in found]
    assert majority_at_k(answers, right, 1) == pytest.approx(fmean(right))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 20), max_size=6), st.integers(0, 20), st.data())
def test_somebody_wins_or_nobody_votes(counts: list[int], silent: int, data: st.DataObject) -> None:
    total = sum(counts) + silent
    if total:
        k = data.draw(st.integers(1, total))
        unsaid = math.comb(silent, k) / math.comb(total, k)
        assert sum(winning_chances(tuple(counts), silent, k)) + unsaid == pytest.approx(1)


def test_many_samples_are_no_trouble() -> None:
    assert winning_chances((1,) * 128, 0, 64) == pytest.approx([1 / 128] * 128)
    assert winning_chances((100, 28), 0, 64)[0] == pytest.approx(1)
