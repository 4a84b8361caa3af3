"""What is being done, shown: one live line on a terminal, plain lines elsewhere. Neither is ever silent for long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import RenderableType
from rich.live import Live

from marft.terminal.console import PlainConsole, live_line, make_console
from marft.terminal.status import Status

BEAT = 10.0  # seconds after which a line says that work goes on, where there is no terminal
LOOKS = 0.5  # seconds between two looks at the clock
REFRESHES = 4  # of the live line, a second


class Display(Status):
    """Shows while it is entered. A thread of its own redraws, so that what takes long need not call anybody."""

    def __init__(self, console: PlainConsole | None = None, *, beat: float = BEAT) -> None:
        self.console = console or make_console()
        self.beat = beat
        self.share: float | None = None  # of a whole run that is done
        self.what, self.unit = "", ""
        self.done, self.total, self.fixed = 0, 0, False
        self.started = self.spoken = time.monotonic()
        self._live: Live | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if not self.console.is_terminal:
            self._thread = threading.Thread(target=self._beat, name="marft-display", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    # --- what is told ------------------------------------------------------------------------------------------------
    def begin(self, what: str, *, total: int | None = None, unit: str = "", announce: bool = True) -> None:
        """Show `what` as the present work; without a terminal it is printed, if announced."""
        self.what, self.unit = what, unit
        self.done, self.total, self.fixed = 0, total or 0, total is not None
        self.started = time.monotonic()
        if self.console.is_terminal:
            self._show()
        elif announce:
            self.say(f"{what}: {total:,} {unit}" if total else what)

    def expect(self, more: int) -> None:
        """Raise the total by `more`, unless it was given at the beginning."""
        if not self.fixed:
            self.total += more

    def advance(self, count: int = 1) -> None:
        """Count `count` units as done."""
        self.done += count

    def rest(self) -> None:
        """Take the live line away."""
        self.what = ""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, line: str) -> None:
        """A line that stays; on a terminal the live one comes below it."""
        self.spoken = time.monotonic()
        self.console.say(line)

    # --- what is shown -----------------------------------------------------------------------------------------------
    def line(self) -> str:
        """`iteration 3: rollout 37/256 episodes, 4 s`"""
        count = f" {self.done:,}/{self.total:,} {self.unit}" if self.total else ""
        return f"{self.what}{count}, {time.monotonic() - self.started:.0f} s"

    def _show(self) -> None:
        if self._live is None:
            self._live = Live(
                console=self.console, get_renderable=self._draw, refresh_per_second=REFRESHES, transient=True,
                redirect_stdout=not self.console.stderr, redirect_stderr=sys.stderr.isatty(),
            )  # fmt: skip
            self._live.start()
        self._live.refresh()

    def _draw(self) -> RenderableType:
        return live_line(self.line() if self.what else "", self.share)

    def _beat(self) -> None:
        while not self._over.wait(min(LOOKS, self.beat)):
            if self.what and time.monotonic() - self.spoken >= self.beat:
                self.say(self.line())


@contextmanager
def start_display(*, stderr: bool = False) -> Iterator[Display]:
    """A display with its first line before the heavy imports. What prints its result has it on stderr."""
    with Display(make_console(stderr=stderr)) as display:
        display.begin("loading torch and transformers")
        yield display


@contextmanager
def ensure_display(display: Display | None) -> Iterator[Display]:
    """The caller's display, or one of our own."""
    if display is not None:
        yield display
        return
    with Display() as own:
        yield own
