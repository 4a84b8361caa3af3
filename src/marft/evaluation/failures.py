"""Episodes that fail in an evaluation: a few are a warning, too many end it with the first error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from marft.runs.transcripts import Transcript
from marft.terminal import warn
from marft.types import Episode, MarftError

ENOUGH = 16  # episodes, to tell a fault from chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How many of how many episodes failed, and why the first did."""

    failed: int = 0
    of: int = 0
    error: str = ""
    trace: str = ""

    def exceeds(self, share: float) -> bool:
        """As in training: more than the share, or all there are."""
        return self.failed > share * self.of or 0 < self.failed == self.of

    def plus_episodes(self, episodes: Iterable[Episode | Transcript]) -> Failures:
        """As many more were played."""
        played = list(episodes)
        failed = [episode for episode in played if episode.ended == "failed"]
        first = failed[0] if failed else None
        return Failures(
            failed=self.failed + len(failed),
            of=self.of + len(played),
            error=self.error or (first.error or "" if first else ""),
            trace=self.trace or next((episode.trace for episode in failed if episode.trace), ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How large a share of an evaluation's episodes may fail (`train.failures`), and what to do where more have."""

    share: float = 0.5
    remedy: str = "mend it, then start again"

    def judge(self, found: Failures, what: str) -> None:
        """`what` says which episodes they are."""
        if found.exceeds(self.share):
            self.stop(found, what)
        if found.failed:
            warn(f"{found.failed} of {found.of} {what} failed and count as wrong; the first: {found.error}")

    def stop(self, found: Failures, what: str) -> None:
        """Raise a MarftError that gives the count, the first error and the remedy."""
        raise MarftError(
            f"{found.failed} of {found.of} {what} failed; the first: {found.error}. {self.remedy}", found.trace
        )
