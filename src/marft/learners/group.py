"""Who computes a minibatch: one process alone, or several ranks that share it by tasks and add up what they found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Group(Protocol):
    """The ranks that compute one minibatch together; all of them call the same methods in the same order."""

    def share(self, tasks: Sequence[int], sizes: Sequence[int]) -> Sequence[int]:
        """Which of some samples are computed here, given the task and the size of each; every sample is somewhere."""

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes its sum over all ranks, the same bits everywhere."""

    def passes(self, needed: Sequence[int]) -> Sequence[int]:
        """How many passes this rank makes on each base where its samples need so many."""

    def check(self) -> None:
        """Raise RankLost where it is known that another rank has gone."""


class Alone:
    """One process: everything is its own, and there is nothing to add."""

    def share(self, tasks: Sequence[int], sizes: Sequence[int]) -> Sequence[int]:
        """All samples."""
        return range(len(tasks))

    def add(self, tensors: Sequence[Tensor]) -> None:
        """The tensors are their own sums."""

    def passes(self, needed: Sequence[int]) -> Sequence[int]:
        """No more than needed."""
        return needed

    def check(self) -> None:
        """Nobody can be missing."""
