"""Who is told what is being done at this moment, and how far it is: here nobody; `display.py` shows it."""

from __future__ import annotations


class Status:
    """One thing at a time is being done. Those who do it say so and count; telling costs next to nothing."""

    def begin(self, what: str, *, total: int | None = None, unit: str = "", announce: bool = True) -> None:
        """From now on `what` is done, to `total` of `unit`; None: as many as will be expected. What comes again and again
        is not announced: it is only shown while it lasts."""

    def expect(self, more: int) -> None:
        """So many more are to be done, unless the total was said at the beginning."""

    def advance(self, count: int = 1) -> None:
        """So many more are done."""

    def rest(self) -> None:
        """Nothing is being done: what is printed now is the result."""
