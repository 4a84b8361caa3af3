"""A passage of a message that may be its answer."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ANSWER = 1_000  # characters
MAX_CANDIDATES = 100  # answers of one kind that are looked at, from the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An answer and where it stands, label or box included."""

    start: int
    end: int
    text: str
    mark: str = ""  # what labels it: #### or words
    stop: int = -1  # where its words end, if before the end of the line that it takes

    @property
    def past(self) -> int:
        """Where its words end."""
        return self.end if self.stop < 0 else self.stop

    def overlaps(self, other: Candidate) -> bool:
        """Whether two passages share a place."""
        return self.start < other.past and other.start < self.past
