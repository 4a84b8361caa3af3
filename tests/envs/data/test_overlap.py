"""Prompts that occur twice, word for word or nearly so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from marft.envs.data import overlapping_tasks, repeated_tasks
from marft.envs.data.overlap import normalise_prompt, prompt_tokens
from marft.types import Task


def tasks(name: str, *prompts: str) -> list[Task]:
    return [Task(id=f"{name}/{i}", prompt=prompt) for i, prompt in enumerate(prompts)]


def words(start: int, count: int) -> str:
    return " ".join(f"w{i}" for i in range(start, start + count))


def test_what_does_not_count() -> None:
    assert (
        normalise_prompt("  What is\n$X^{2}$, (really)?")
        == normalise_prompt("what is x^2 REALLY")
        == "what is x ^ 2 really"
    )
    assert normalise_prompt("ﬁve\u00a0ＡＢ") == "five ab"
    assert normalise_prompt(r"\frac{1}{2}") == "frac 1 2"


def test_what_counts() -> None:
    prompts = ["3 + 5", "3 - 5", "35", "3 5", "3 * 5", "3 = 5", "3 < 5", "3 > 5", "3 / 5", "3^5"]
    assert len({normalise_prompt(prompt) for prompt in prompts}) == len(prompts)


def test_a_prompt_of_signs_alone_is_itself() -> None:
    assert normalise_prompt(" ?! ") == "?!"
    assert normalise_prompt("...") != normalise_prompt("?!")


@given(st.text())
def test_normalising_twice_changes_nothing(prompt: str) -> None:
    assert prompt_tokens(normalise_prompt(prompt)) == prompt_tokens(prompt)
    assert normalise_prompt(normalise_prompt(prompt)) == normalise_prompt(prompt)
    assert normalise_prompt(f"a {prompt}") == normalise_prompt(f" (A) {prompt} .")


def test_equal_prompts() -> None:
    train = tasks("train", "What is 2 + 2?", "What is 2 - 2?", "what is 2+2")
    test = tasks("test", "What is 3 + 3?", "What  is 2+2 ?", "WHAT IS 2 - 2", "what is 2 + 2!")
    assert overlapping_tasks(train, test) == [("train/0", "test/1"), ("train/1", "test/2"), ("train/0", "test/3")]
    assert repeated_tasks(train) == [("train/0", "train/2")]
    assert repeated_tasks(test) == [("test/1", "test/3")]
    assert overlapping_tasks([], test) == overlapping_tasks(train, []) == repeated_tasks([]) == []


def test_near_duplicates_end_at_four_fifths() -> None:
    """32 words are 20 runs of 13; the last k words changed leave 20 - k of them."""
    train = tasks("train", "nothing alike", words(0, 32))
    changed = [words(0, 32 - k) + " " + " ".join(["x"] * k) for k in range(1, 8)]
    assert overlapping_tasks(train, tasks("test", *changed)) == [("train/1", f"test/{i}") for i in range(4)]


def test_a_test_prompt_inside_a_longer_train_prompt() -> None:
    assert overlapping_tasks(tasks("train", words(0, 100)), tasks("test", words(20, 13), words(20, 12))) == [
        ("train/0", "test/0")
    ]


def test_the_nearest_and_first_is_named() -> None:
    train = tasks("train", words(0, 32) + " a", words(0, 33), words(0, 33))
    assert overlapping_tasks(train, tasks("test", words(0, 34))) == [("train/1", "test/0")]


def test_a_phrase_of_the_whole_set_makes_no_duplicates() -> None:
    phrase = words(1000, 20)
    train = tasks("train", *(f"{words(100 * i, 15)} {phrase}" for i in range(2, 60)))
    assert overlapping_tasks(train, tasks("test", f"{words(9000, 15)} {phrase}", phrase)) == []
    copy = tasks("test", f"{words(500, 15)} {phrase} indeed")
    assert overlapping_tasks(train, copy) == [("train/3", "test/0")]


@given(
    st.lists(st.text(alphabet="ab ", max_size=6), max_size=8), st.lists(st.text(alphabet="ab ", max_size=6), max_size=8)
)
def test_equality_is_found_whatever_the_order(left: list[str], right: list[str]) -> None:
    found = overlapping_tasks(tasks("train", *left), tasks("test", *right))
    expected = [
        i for i, prompt in enumerate(right) if normalise_prompt(prompt) in {normalise_prompt(other) for other in left}
    ]
    assert [pair[1] for pair in found] == [f"test/{i}" for i in expected]
