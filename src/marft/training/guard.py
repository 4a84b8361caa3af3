"""A run that is being ruined does not look busy: what is told of the signs of a collapse, and when the run must end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from marft.algorithms.batch import TrainingBatch
from marft.files import check_row, damaged_line, quote_key
from marft.learners.base import NotFinite
from marft.models.team import TeamModel
from marft.rollouts.source import Rollout
from marft.runs.directory import RunDirectory
from marft.runs.disk import explain_write_errors
from marft.training.collapse import CollapseWatch, Sign, Watched
from marft.training.failures import save_failure


class Collapsed(Exception):
    """A sign of collapse has lasted too long, or cannot be lived with at all."""

    def __init__(self, sign: Sign) -> None:
        super().__init__(sign.line)
        self.sign = sign


class Guard:
    """Shows a run's rows to the watch; every sign becomes a line and an event, and one that lasts an exception."""

    def __init__(
        self, run: RunDirectory, words: Mapping[str, int], warn: Callable[[str], None], *, stops: bool
    ) -> None:
        """`words` are the sizes of the learning agents' vocabularies: uniform noise has the logarithm for its entropy."""
        self.run, self.warn, self.stops = run, warn, stops
        self.noise = {agent: math.log(size) for agent, size in words.items()}
        self.begin()

    def begin(self) -> None:
        """Know what the run's rows up to now have shown."""
        self.watch = CollapseWatch(self.noise)
        for row in self.run.metric_rows():
            if "episodes" in row.data:  # of this version
                check_row(row, Watched)
                if strangers := sorted(row.data["agents"].keys() - self.noise):
                    raise damaged_line(row.path, row.number, f"{quote_key(strangers[0])} is nobody who learns here")
                self.watch.look(row.data)
        self.watch.forget_told()

    def look(self, row: Mapping[str, Any]) -> None:
        """Report every sign of collapse that this iteration's row shows; raises Collapsed where the run must stop."""
        for sign in self.watch.look(row):
            self.report_sign("collapse" if sign.collapsed else "warning", row["iteration"], sign)
            if sign.collapsed and self.stops:
                raise Collapsed(sign)

    def report_sign(self, event: str, iteration: int, sign: Sign) -> None:
        """Write a sign to `events.jsonl` and print it as a warning."""
        said = {"sign": sign.name, "agent": sign.agent, "since": sign.since, "line": sign.line}
        self.run.append_event(event, iteration, **said)
        self.warn(f"{event} in iteration {iteration}: {sign.line}")

    @contextmanager
    def require_finite(
        self, iteration: int, teams: Sequence[TeamModel], rollout: Rollout, data: TrainingBatch | None = None
    ) -> Iterator[None]:
        """Around what may find values or gradients that are not finite: the batch is saved, and nobody can go on with it."""
        try:
            yield
        except NotFinite as error:
            folder = self.run.path / "failures" / f"{iteration:06d}"
            with explain_write_errors(self.run.path):
                save_failure(folder, teams, rollout, data, str(error))
            line = f"{error}; its batch is in {folder}"
            good = iteration - 1 if data is not None else iteration - 2  # a value is that of the checkpoint before
            sign = Sign(name="not finite", agent=error.adapter, line=line, since=iteration, good=good, collapsed=True)
            self.report_sign("collapse", iteration, sign)
            raise Collapsed(sign) from error
