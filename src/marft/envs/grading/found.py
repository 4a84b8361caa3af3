"""An answer as found in a message, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ANSWER = 1_000  # characters
MAX_FOUND = 100  # answers of one kind that are looked at, from the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An answer and where it stands, label or box included."""

    start: int
    end: int
    text: str
    mark: str = ""  # what labels it: #### or words
    stop: int = -1  # where its words end, if before the end of the line that it takes

    @property
    def past(self) -> int:
        return self.end if self.stop < 0 else self.stop
