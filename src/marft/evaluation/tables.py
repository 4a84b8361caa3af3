"""Tables of texts, as Markdown and on a terminal, and how their numbers are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from marft.evaluation.intervals import IntervalEstimate
from marft.terminal.console import PlainConsole, make_table

WIDE = 110  # columns of a terminal that has room for a whole table


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table of texts; `whole` are the columns, by their numbers, that a terminal never breaks."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    whole: Sequence[int]

    def markdown(self) -> str:
        """The table as Markdown; pipes inside cells are escaped."""
        rows = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)

    def show(self, console: PlainConsole) -> None:
        """Print the table."""
        table = make_table(self.header, whole=[i in self.whole for i in range(len(self.header))])
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


def format_estimate(estimate: IntervalEstimate, sign: Literal["", "+"] = "") -> str:
    """`0.512 [0.480, 0.544]`, or the value alone where there is no interval; with `sign` a plus is written."""
    value = f"{estimate.value:{sign}.3f}"
    if estimate.interval is None:
        return value
    low, high = estimate.interval
    return f"{value} [{low:.3f}, {high:.3f}]"


def format_count(value: float) -> str:
    """Rounded half up to an integer, with thousands separated by commas."""
    return f"{math.floor(value + 0.5):,}"
