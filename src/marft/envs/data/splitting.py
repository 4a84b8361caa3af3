"""One set of rows, two splits: by a hash of the prompt, so that a row's side depends on nothing but the row."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from marft.envs.base import Split
from marft.envs.data.files import Row
from marft.envs.data.known import IdRanges
from marft.envs.data.overlap import normalise_prompt
from marft.types import MarftError

HELD_OUT = 0.1


def split_by_prompt(prompts: Sequence[str], split: Split, held_out: float) -> list[int]:
    """The row numbers of a split. Equal prompts fall on one side, and more rows move none of those there were.

    Only where a side would be empty, the prompt nearest to it changes sides.
    """
    places = [hash_fraction(prompt) for prompt in prompts]
    distinct = sorted(set(places))
    if len(distinct) < 2:
        raise MarftError("the data has only one prompt, too few to hold a test split out; name one: env.test=FILE")
    limit = min(max(held_out, distinct[0]), distinct[-2])
    return [number for number, at in enumerate(places) if (at <= limit) == (split == "test")]


def hash_fraction(prompt: str) -> float:
    """Where a prompt falls in 0…1, evenly."""
    digest = hashlib.sha256(normalise_prompt(prompt).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6]) / 2**48


def split_by_id(rows: Sequence[Row], ranges: IdRanges, split: Split) -> list[int]:
    """The row numbers whose id lies in the publisher's range of that split."""
    low, high = ranges.train if split == "train" else ranges.test
    numbers = []
    for number, row in enumerate(rows):
        try:
            at = int(row[ranges.column])
        except (KeyError, TypeError, ValueError):
            raise MarftError(f"row {number} has no whole number in {ranges.column}, which tells the splits") from None
        if low <= at <= high:
            numbers.append(number)
    return numbers
