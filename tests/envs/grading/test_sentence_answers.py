"""What a last sentence says where nothing is labelled, and which sentences say nothing."""

from __future__ import annotations

import re
import time
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.envs.grading import extract_answer, grade
from marft.envs.grading.answer_structure import parse_structure
from marft.envs.grading.extraction import AnswerKind, answer_kind
from marft.envs.grading.last_line import last_answer_line
from marft.envs.grading.latex_normalization import normalize_latex
from marft.envs.grading.sentence_answers import stated_value

WORDS = (
    "so",
    "it",
    "is",
    "not",
    "Tuesday",
    "or",
    "Alice",
    "has",
    "more",
    "after",
    "if",
    "yes",
    "no",
    ",",
    ".",
    "5",
    "3 PM",
    "2:3",
)


@pytest.mark.parametrize(
    ("gold", "sought"),
    [
        ("5", "number"), ("$5", "number"), ("60 mph", "number"), ("3:00 PM", "time"), ("9 PM", "time"), ("2:3", "ratio"),
        ("3 to 8", "ratio"), ("Yes", "verdict"), (r"\text{No}", "verdict"), ("Tuesday", "words"), ("4, 6", "words"), ("(2,-1)", "words"),
    ],
)  # fmt: skip
def test_what_is_sought(gold: str, sought: AnswerKind) -> None:
    assert answer_kind(parse_structure(normalize_latex(gold))) == sought


@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        ("It will be a Tuesday", "Tuesday"), ("The two numbers are 4 and 6", "4 and 6"), ("Alice has more money", "Alice"),
        ("So (C)", "(C)"), ("She should go with Plan A", "Plan A"), ("Ann is 12, so the oldest is Bob", "Bob"),
        ("It might be Tuesday", None), ("Since it is Tuesday", None), ("Bob gave Alice more", None), ("Let n be even", None),
    ],
)  # fmt: skip
def test_sentences_of_a_known_make_say_their_value(sentence: str, value: str | None) -> None:
    assert stated_value(sentence) == value


def test_checks_and_wishes_are_no_last_line() -> None:
    assert last_answer_line("She has 39.\n\nCheck: 39 + 11 = 50 ✓\nI hope this helps!") == (0, "She has 39.")
    assert last_answer_line("She has 39.\n\nCheck: 39 + 11 is not 49")[1].startswith("Check")


def test_what_only_says_how_a_number_came_about_is_left_out() -> None:
    assert extract_answer("They have 39 left after eating 35 of the 74.") == "39"
    assert extract_answer("The minimum is $18$, attained at $x=3$.") == "18"
    assert extract_answer("He had 39 and ate 35, so he has 4.") == "4"


def test_one_quantity_in_two_units_is_one_answer() -> None:
    message = "It takes 90 minutes, or 1.5 hours."
    assert grade(message, "90")
    assert grade(message, "1.5")
    assert not grade("It takes 90 minutes, or 2 hours.", "90")


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join), st.sampled_from(get_args(AnswerKind)))
def test_what_is_read_stands_in_the_message(message: str, sought: AnswerKind) -> None:
    said = extract_answer(message, sought=sought)
    assert said is None or set(re.findall(r"\w+", said)) <= set(re.findall(r"\w+", message))


@pytest.mark.parametrize(
    "piece", ["after ", "Yes. ", "3 after 5 ", "Check\n", "12:30 PM ", "5 apples or ", "$1=", "of the 5 ", "not"]
)
@pytest.mark.parametrize("gold", ["5", "Tuesday", "3:00 PM", "2:3", "Yes"])
def test_long_lines_are_read_in_linear_time(piece: str, gold: str) -> None:
    started = time.process_time()
    grade((piece * 20_000)[:20_000], gold)
    assert time.process_time() - started < 2
