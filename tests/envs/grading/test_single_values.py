"""Single values in their many spellings: numbers in words, units, times of day, sets of numbers, and what a prompt wants."""

from __future__ import annotations

from fractions import Fraction

import pytest

from marft.envs.grading import extract_answer
from marft.envs.grading.intervals import interval_notation
from marft.envs.grading.latex_normalization import normalize_latex
from marft.envs.grading.number_words import value_of_words
from marft.envs.grading.rationals import computed_value, rational_value
from marft.envs.grading.requested_unit import requested_unit
from marft.envs.grading.retraction import is_retracted
from marft.envs.grading.times_of_day import minutes_since_midnight
from marft.envs.grading.units import conversion_factor, split_unit


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("eighteen", 18), ("twenty-one", 21), ("one hundred and five", 105), ("two thousand three hundred", 2300),
        ("minus two", -2), ("two thirds", Fraction(2, 3)), ("three and a half", Fraction(7, 2)), ("a half", Fraction(1, 2)),
        ("2.5 million", 2_500_000), ("5 lakh", 500_000), ("3 dozen", 36), ("five six", None), ("twenty eleven", None),
        ("a", None), ("x", None), ("dozen", None), ("and", None), ("one and", 1),
    ],
)  # fmt: skip
def test_numbers_in_words(text: str, value: object) -> None:
    assert value_of_words(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"0.\overline{3}", Fraction(1, 3)), (r"0.1\bar{6}", Fraction(1, 6)), ("0.333...", Fraction(1, 3)), ("0.(36)", Fraction(4, 11)),
        (r"{3\over4}", None), (r"3\over4", Fraction(3, 4)), (r"3\div4", Fraction(3, 4)), ("⅔", Fraction(2, 3)), ("-(5)", -5), ("-(-5)", None),
    ],
)  # fmt: skip
def test_written_numbers(text: str, value: object) -> None:
    assert rational_value(normalize_latex(text)) == value


def test_calculations_are_bounded() -> None:
    assert computed_value(r"2\cdot 9 + 1/2") == Fraction(37, 2)
    assert computed_value("9^{99999999}") is None
    assert computed_value("1/0") is None
    assert computed_value("x+1") is None


def test_units_convert_within_their_kind() -> None:
    assert conversion_factor("h", "min") == 60
    assert conversion_factor("m^2", "cm^2") == 10_000
    assert conversion_factor("h", "m") is None
    assert conversion_factor("m", "cm^2") is None
    assert split_unit("-3 degrees", is_number=True) == ("-3", "degree")
    assert split_unit("5 lakh", is_number=True)[0] == "5 lakh"


def test_times_of_day() -> None:
    assert minutes_since_midnight("8:34", "pm") == 20 * 60 + 34 == minutes_since_midnight("20:34", "")
    assert minutes_since_midnight("12:00", "am") == 0 == minutes_since_midnight("midnight", "")
    assert minutes_since_midnight("8:75", "") is None
    assert minutes_since_midnight("13", "pm") is None
    assert minutes_since_midnight("8", "") is None


@pytest.mark.parametrize(
    ("text", "intervals"),
    [
        ("x < 1 or x > 3", r"(-\infty, 1) \cup (3, \infty)"),
        ("x > 1 and x <= 3", "(1, 3]"),
        (r"x \ne 3", r"(-\infty, 3) \cup (3, \infty)"),
        (r"\{x \mid |x| \le 2\}", "[-2, 2]"),
        (r"\mathbb{R} \setminus \{3, 1\}", r"(-\infty, 1) \cup (1, 3) \cup (3, \infty)"),
        ("x > 1 and x > 3", None),
        ("x + y < 3", None),
        ("3", None),
    ],
)
def test_sets_of_numbers(text: str, intervals: str | None) -> None:
    assert interval_notation(normalize_latex(text)) == intervals


def test_what_a_prompt_wants_counted() -> None:
    measure = requested_unit("A train goes 60 miles an hour. How many hours does it take?")
    assert measure.unit == "h"
    assert measure.allows("h")
    assert not measure.allows("min")
    assert measure.percent is False
    assert requested_unit("What percent is left?").percent
    assert requested_unit("Express it in base 6.").bases == {"6"}
    assert requested_unit("How many dozen eggs?").scale == "dozen"
    assert requested_unit("").percent is None
    assert not requested_unit("It costs $3.").allows("cent")


@pytest.mark.parametrize(
    ("text", "taken_back"),
    [
        ("It is @.", False), ("It isn't @.", True), ("It is not 5 but @.", False), ("It can't be @", True), ("so it is at least @", True),
        ("He does not swim, so there are @", False), ("@ of them do not swim", False), ("@ is wrong", True), ("@, but he lied", True),
        ("The determinant is @", False), ("The percent is @", False),
    ],
)  # fmt: skip
def test_what_takes_a_number_back(text: str, taken_back: bool) -> None:
    at = text.index("@")
    assert is_retracted(text, at, at + 1, "number") is taken_back


def test_thoughts_and_tags() -> None:
    assert extract_answer(r"<think>\boxed{3}</think> The answer is 4.") == "4"
    assert extract_answer("<answer>7</answer>") == "7"
    assert extract_answer(r"<answer>so \boxed{7}</answer>") == "7"
    assert extract_answer("<answer>" * 200 + "7") is None
