"""Columns and gold answers: which column it is, and what is taken from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.envs.data.columns import answer_column, as_text, gold_of, last_boxed, prompt_column
from marft.envs.data.known import KNOWN, Gold
from marft.types import MarftError


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"so $\boxed{4}$", "4"),
        (r"\boxed{1} no, \boxed{ 2 }.", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \mid x > 0 \right\}}", r"\left\{ x \mid x > 0 \right\}"),
        (r"$\boxed 2$.", "2"),
        (r"\boxed {3}", "3"),
        (r"\boxed{a\\}", "a\\\\"),
        (r"\boxed{}", None),
        (r"\boxed{ }", None),
        (r"\boxed{1", None),
        (r"\boxed", None),
        ("4", None),
        ("", None),
    ],
)
def test_the_last_box(text: str, boxed: str | None) -> None:
    assert last_boxed(text) == boxed


@given(st.text(alphabet="ab12+ ").map(str.strip).filter(bool), st.text(), st.text(alphabet="xyz .$"))
def test_what_is_boxed_comes_out(inner: str, before: str, after: str) -> None:
    assert last_boxed(f"{before}\\ \\boxed{{{inner}}}{after}") == inner


@pytest.mark.parametrize(
    ("value", "gold", "answer"),
    [
        ("work\n#### 1,000 ", "after ####", "1,000"),
        ("#### 1 #### 2", "after ####", "2"),
        ("42", "after ####", None),
        ("#### ", "after ####", None),
        (r"\boxed{4}", "last boxed", "4"),
        ("4", "last boxed", None),
        (" x = 3 ", "as it is", "x = 3"),
        ("", "as it is", None),
        ("  ", "as it is", None),
        (None, "as it is", None),
        (True, "as it is", None),
        (0, "as it is", "0"),
        (204, "as it is", "204"),
        (27.0, "as it is", "27"),
        (0.5, "as it is", "0.5"),
        (float("nan"), "as it is", None),
        (float("inf"), "as it is", None),
        (["$3$"], "as it is", "$3$"),
        (["1", 2], "as it is", "1, 2"),
        ([], "as it is", None),
        (["1", None], "as it is", None),
        ({"a": 1}, "as it is", None),
        ("so\n#### 7", "found", "7"),
        (r"so \boxed{8}", "found", "8"),
        (r"so \boxed{}", "found", None),
        ("9", "found", "9"),
        (9, "found", "9"),
        (None, "found", None),
    ],
)
def test_gold_answers(value: object, gold: Gold, answer: str | None) -> None:
    assert gold_of(value, gold) == answer


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_any_value_is_an_answer_or_none(value: Any) -> None:
    for gold in ("as it is", "after ####", "last boxed", "found"):
        answer = gold_of(value, gold)
        assert answer is None or (answer and answer == answer.strip())
    assert isinstance(as_text(value), str)


def test_columns_of_a_known_set_come_first() -> None:
    rows = [{"prompt": "p", "question": "q", "answer": "#### 1", "solution": "s"}]
    assert prompt_column(rows, None, KNOWN["gsm8k"]) == "question"
    assert answer_column(rows, None, KNOWN["gsm8k"]) == ("answer", "after ####")
    assert answer_column(rows, None, KNOWN["math"]) == ("solution", "last boxed")


def test_the_usual_names() -> None:
    assert prompt_column([{"question": "q", "problem": "p"}], None, None) == "problem"
    assert answer_column([{"solution": "s", "answer": "a"}], None, None) == ("answer", "found")
    assert answer_column([{"solution": "s"}], None, None) == ("solution", "last boxed")
    assert answer_column([{"solution": "s"}], None, KNOWN["deepscaler"]) == ("solution", "last boxed")


def test_a_column_that_is_asked_for() -> None:
    rows = [{"q": "1?", "a": "1", "solution": "2"}]
    assert prompt_column(rows, "q", KNOWN["math"]) == "q"
    assert answer_column(rows, "a", KNOWN["math"]) == ("a", "found")
    assert answer_column(rows, "solution", KNOWN["math"]) == ("solution", "last boxed")


def test_a_column_only_some_rows_have() -> None:
    assert prompt_column([{"id": 1}, {"id": 2, "prompt": "p"}], None, None) == "prompt"


def test_missing_columns_are_one_line() -> None:
    with pytest.raises(MarftError) as error:
        prompt_column([{"a": 1, "b": 2}], None, None)
    assert str(error.value) == (
        "the data has no column that looks like the prompt; it has a, b: choose one with env.prompt=COLUMN"
    )
    with pytest.raises(MarftError) as error:
        answer_column([{"answer": 1}, {"b": 2}], "gold", None)
    assert str(error.value) == "the data has no column 'gold'; it has answer, b: choose one with env.answer=COLUMN"
