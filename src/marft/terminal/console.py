"""The one place where rich is set up: a console that reads no styles, emoji names or control characters in what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marft.terminal import visible

BAR = 24  # columns


class PlainConsole(Console):
    """Every string that is printed, or stands in a table, passes through `render_str`: there it becomes plain text."""

    def render_str(self, text: str, *, style: Any = "", justify: Any = None, overflow: Any = None, **_: Any) -> Text:
        """The text as it is: no markup, no highlighting, control characters spelled out."""
        return Text(visible(text, self.encoding), style=style, justify=justify, overflow=overflow)

    def say(self, line: str) -> None:
        """One line, whole: no terminal's width breaks it."""
        self.print(line, soft_wrap=True)


def make_console(*, stderr: bool = False) -> PlainConsole:
    """On stdout, or on stderr."""
    return PlainConsole(stderr=stderr, markup=False, emoji=False, highlight=False)


def live_line(line: str, share: float | None) -> RenderableType:
    """What is being done, on one row of the terminal; before it, how much of a whole run is done."""
    text = Text(visible(line), no_wrap=True, overflow="ellipsis")
    if share is None:
        return text
    row = Table.grid(padding=(0, 1))
    row.add_row(ProgressBar(total=1.0, completed=share, width=BAR), Text(f"{share:.0%}"), text)
    return row


def make_table(header: Sequence[str], *, whole: Sequence[bool]) -> Table:
    """An empty table: the first column to the left, the others to the right; columns that are `whole` are never broken."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for i, (name, unbroken) in enumerate(zip(header, whole, strict=True)):
        table.add_column(name, justify="right" if i else "left", no_wrap=unbroken, overflow="fold")
    return table
