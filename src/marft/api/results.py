"""What the functions for Python return: the contents of a run's files, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from marft.types import MarftError

if TYPE_CHECKING:
    from marft.evaluation.comparison.report import Report
    from marft.evaluation.figures import Figures, Result


class HeldOut(TypedDict):
    """One evaluation of `summary.json`."""

    iteration: int
    tasks: int
    reward: float
    accuracy: NotRequired[float]  # where the environment says what is right
    accuracy_ci95: NotRequired[list[float]]
    failed: int
    first_error: NotRequired[str]
    tokens: dict[str, float]  # a turn, by agent
    tokens_per_task: float
    benchmarks: NotRequired[dict[str, Any]]
    settings: dict[str, Any]


class Tokens(TypedDict):
    generated: int
    trained: int


class Summary(TypedDict):
    """A run's `summary.json`; without evaluation (`eval.tasks` 0) it has no `before` and `after`."""

    iterations: int
    seconds: float
    tokens: Tokens
    before: NotRequired[HeldOut]
    after: NotRequired[HeldOut]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResults:
    """An evaluation: its folder, and what came out on each benchmark."""

    path: Path
    benchmarks: Mapping[str, Result]

    @property
    def figures(self) -> Figures:
        """The team's, where there is one benchmark alone."""
        if len(self.benchmarks) != 1:
            raise MarftError(
                f"there are several benchmarks; ask for benchmarks[NAME].team of {', '.join(self.benchmarks)}"
            )
        [result] = self.benchmarks.values()
        return result.team


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareResults:
    """A comparison: its folder, and its table and verdict."""

    path: Path
    report: Report
