"""From a source to the rows of a split, each with its number in the file or set it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from marft.envs.base import Split
from marft.envs.data.columns import prompt_column
from marft.envs.data.files import Row, read_file
from marft.envs.data.hub import load_parts
from marft.envs.data.source import DataSource, Origin, find_origins
from marft.envs.data.splitting import HELD_OUT, split_by_id, split_by_prompt
from marft.types import MarftError


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRows:
    """The rows of a split, each by its number, from 0, in what it was read from; and the set they are of."""

    origin: Origin
    split: Split
    rows: dict[int, Row]

    def id(self, number: int) -> str:
        """The task id of row `number`: `gsm8k/train/17`."""
        return f"{self.origin.name}/{self.split}/{number}"


def read_rows(source: DataSource, split: Split) -> list[Row]:
    """The rows of a split, with the publisher's own fields."""
    return list(read_split(source, split).rows.values())


def read_split(source: DataSource, split: Split) -> SplitRows:
    """The rows of a split, split off from the other one where the source has only one set."""
    origins = find_origins(source)
    shared = origins.train is not None and origins.test in (None, origins.train)
    origin = origins.train if split == "train" or shared else origins.test
    if origin is None:
        raise MarftError(
            f"{source.data} is for testing only; give it problems to train on: env.train=FILE or another set"
        )
    rows = load_parts(origin.hub, origin.parts) if origin.hub else [row for p in origin.paths for row in read_file(p)]
    ranges = origin.known.ids if origin.known and origin.paths else None
    if source.held_out is not None and (not shared or ranges):
        raise MarftError(f"env.held_out: {source.data} has a test split of its own; leave held_out away")
    if ranges:
        numbers = split_by_id(rows, ranges, split)
    elif shared:
        column = prompt_column(rows, source.prompt, origin.known)
        numbers = split_by_prompt([str(row.get(column, "")) for row in rows], split, source.held_out or HELD_OUT)
    else:
        numbers = list(range(len(rows)))
    if not numbers:
        raise MarftError(f"{source.data} has no rows for {split}; name a file that has: env.{split}=FILE")
    return SplitRows(origin=origin, split=split, rows={number: rows[number] for number in numbers})
