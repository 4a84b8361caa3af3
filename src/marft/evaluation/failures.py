"""Episodes that fail in an evaluation: a few are a warning, too many end it with the first error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from marft.evaluation.folder import Evaluation, Played, Record, Slot
from marft.runs.transcripts import Transcript
from marft.terminal import warn
from marft.types import Episode, MarftError

Key = tuple[str, str | None]  # a benchmark, and who is silent
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


class FailureWatch:
    """The failures of each benchmark while `marft eval` plays, chunk by chunk. Warns at the first failure of a benchmark, and stops once more than the tolerated share of its episodes failed.

    With an agent silent nothing stops: that a team cannot play without it is what an ablation asks.
    """

    def __init__(self, tolerance: Tolerance, chunks: Sequence[Sequence[Slot]]) -> None:
        self.tolerance, self.chunks = tolerance, chunks
        self.found: dict[Key, Failures] = {}
        self.totals: Counter[Key] = Counter(slot_key(slot) for chunk in chunks for slot in chunk)

    def resume(self, evaluation: Evaluation) -> int:
        """How many chunks are there. Those with which the evaluation stopped are dropped: their fault is mended by now."""
        whole, rows = evaluation.keep_whole_chunks(self.chunks), evaluation.read_played()
        while whole and not evaluation.is_done and self.was_stopped(last := self.chunks[whole - 1], rows):
            whole, rows = whole - 1, rows[: -len(last)]
        evaluation.truncate(len(rows))
        slots = {slot_key(chunk[0]): chunk[0] for chunk in self.chunks[:whole]}
        self.found = {key: count_failures(rows, slot) for key, slot in slots.items()}
        return whole

    def was_stopped(self, last: Sequence[Slot], rows: Sequence[Played]) -> bool:
        """Whether too many failed in the last chunk, or up to it."""
        found = (count_failures(rows[-len(last) :], last[0]), count_failures(rows, last[0]))
        return last[0].silent is None and any(each.exceeds(self.tolerance.share) for each in found)

    def record_chunk(self, chunk: Sequence[Slot], records: Sequence[Record]) -> None:
        """One chunk more."""
        benchmark, silent = key = slot_key(chunk[0])
        before = self.found.get(key, Failures())
        found = self.found[key] = before.plus_episodes(record.transcript for record in records)
        what = f"episodes of {benchmark}{f' with {silent} silent' if silent else ''}"
        clear = found.of >= min(ENOUGH, self.totals[key])
        if silent is None and clear and found.exceeds(self.tolerance.share):
            self.tolerance.stop(found, what)
        if found.failed and not before.failed:
            warn(f"{found.failed} of {found.of} {what} failed so far and count as wrong; the first: {found.error}")


def slot_key(slot: Slot) -> Key:
    """A slot's benchmark and silent agent: failures are counted for each such pair."""
    return slot.benchmark, slot.silent


def count_failures(rows: Sequence[Played], slot: Slot) -> Failures:
    """Of the episodes with the slot's benchmark and silent agent."""
    same = [row for row in rows if slot_key(row.slot) == slot_key(slot)]
    errors = [row.error for row in same if row.error is not None]
    return Failures(failed=len(errors), of=len(same), error=errors[0] if errors else "")
