"""rich, as we set it up, interprets nothing: neither in lines nor in tables nor in progress bars."""

from __future__ import annotations

import io
from pathlib import Path

from marft.commands.progress import Terminal
from marft.evaluation.tables import Grid
from marft.terminal import say
from marft.terminal.console import PlainConsole, make_table
from marft.terminal.display import Display

HOSTILE = "ledger:Ledger :ledger: [red]r[/red] [/] [link=file:///x]l[/link] \x1b[31mesc\x1b[0m"
SHOWN = r"ledger:Ledger :ledger: [red]r[/red] [/] [link=file:///x]l[/link] \x1b[31mesc\x1b[0m"


def on_a_terminal() -> PlainConsole:
    return PlainConsole(file=io.StringIO(), force_terminal=True, color_system=None, width=200)


def printed(console: PlainConsole) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_lines_are_text() -> None:
    console = on_a_terminal()
    Terminal(Display(console), Path("run")).say(HOSTILE)
    assert printed(console) == f"{SHOWN}\n"


def test_tables_are_text_in_headers_cells_and_titles() -> None:
    console = on_a_terminal()
    table = make_table([HOSTILE, "b"], whole=[True, True])
    table.title = HOSTILE
    table.add_row(HOSTILE, "2")
    console.print(table)
    assert printed(console).count(SHOWN) == 3
    console = on_a_terminal()
    Grid(header=["benchmark", "b"], rows=[[HOSTILE, "1"]], whole=[1]).show(console)
    assert SHOWN in printed(console)


def test_progress_bars_are_text() -> None:
    console = on_a_terminal()
    with Display(console) as display:
        display.share = 0.5
        display.begin(HOSTILE)
    assert SHOWN in printed(console)
    assert "\x1b[31m" not in printed(console)


def test_what_is_printed_beside_a_bar_is_text() -> None:
    """A live bar takes over stdout, and rich reads what is printed there."""
    console = on_a_terminal()
    with Display(console) as display:
        display.begin("playing")
        say(HOSTILE)
    assert SHOWN in printed(console)
