"""Whom a run needs beside it: somebody who is told how it goes, and somebody who plays held-out tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from marft.engines.base import Adapters
from marft.envs.hosting import Host
from marft.types import Episode


class Watcher(Protocol):
    """Who is told how the run goes: the terminal, or nobody."""

    def evaluated(self, when: str, row: dict[str, Any]) -> None:
        """An evaluation before, after or beside training ("during") has given `row`."""

    def warned(self, line: str) -> None:
        """Something went wrong that does not end the run."""

    def iterated(self, row: dict[str, Any], before: float, progress: float) -> None:
        """An iteration has given `row`; `before` and `progress` are the shares of the run done before and after it."""


# told of a benchmark (None: the run's own tasks), its episodes, and who knows their right answers
Keep = Callable[[str | None, Sequence[Episode], Host], None]


class Evaluator(Protocol):
    """Who plays held-out tasks: with the team as it is, or beside training with its adapters of some moment."""

    def describe_settings(self) -> dict[str, Any]:
        """How, in plain data."""

    def play(self, keep: Keep) -> dict[str, Any]:
        """The figures; `keep` is given the episodes of each benchmark (None: the run's own tasks)."""

    @property
    def is_beside(self) -> bool:
        """Whether it can play beside training."""

    def offer(self, iteration: int, version: int, adapters: Adapters) -> None:
        """Begin the evaluation of an iteration, with the adapters that it left; returns at once."""

    def take(self, iteration: int, keep: Keep) -> dict[str, Any]:
        """The figures of the evaluation that was begun; waits for them."""
