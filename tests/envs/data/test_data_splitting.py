"""One set of rows, two splits: deterministic, whole, and not moved by what is added."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.envs.data.known import IdRanges
from marft.envs.data.splitting import hash_fraction, split_by_id, split_by_prompt
from marft.types import MarftError

PROMPTS = st.lists(st.text(alphabet="abc ", max_size=4), min_size=2, max_size=30)


@given(PROMPTS, st.floats(0.01, 0.99))
def test_every_row_is_on_one_side_and_no_side_is_empty(prompts: list[str], held_out: float) -> None:
    if len({hash_fraction(prompt) for prompt in prompts}) < 2:
        with pytest.raises(MarftError, match="only one prompt"):
            split_by_prompt(prompts, "train", held_out)
        return
    train, test = (split_by_prompt(prompts, split, held_out) for split in ("train", "test"))
    assert min(len(train), len(test)) > 0
    assert sorted([*train, *test]) == list(range(len(prompts)))
    assert not {hash_fraction(prompts[i]) for i in train} & {hash_fraction(prompts[i]) for i in test}


def test_the_share_is_kept() -> None:
    prompts = [f"Problem {i}" for i in range(10_000)]
    assert [len(split_by_prompt(prompts, "test", share)) for share in (0.1, 0.5)] == [975, 4990]


def test_more_rows_move_none() -> None:
    prompts = [f"Problem {i}" for i in range(1000)]
    before = split_by_prompt(prompts[:500], "test", 0.1)
    assert [i for i in split_by_prompt(prompts, "test", 0.1) if i < 500] == before


def test_the_place_of_a_prompt_is_fixed() -> None:
    assert hash_fraction("What is 2 + 2?") == hash_fraction(" what is 2+2") == pytest.approx(0.9216352, abs=1e-6)
    assert hash_fraction("\ud800") != hash_fraction("x")  # half a character is a text too


def test_by_the_publishers_numbers() -> None:
    ranges = IdRanges(column="task_id", train=(5, 6), test=(1, 2))
    rows = [{"task_id": n} for n in (6, 1, 3, 2, "5", 7)]
    assert split_by_id(rows, ranges, "train") == [0, 4]
    assert split_by_id(rows, ranges, "test") == [1, 3]
    for row in ({}, {"task_id": None}, {"task_id": "x"}):
        with pytest.raises(MarftError, match="row 1 has no whole number in task_id"):
            split_by_id([{"task_id": 1}, row], ranges, "train")
