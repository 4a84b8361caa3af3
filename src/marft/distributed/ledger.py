"""Who plays what: every assignment is planned, in flight with one worker, done, and taken, and is taken once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from marft.rollouts.players import Key

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(slots=True)
class Ledger(Generic[Item, Result]):
    """Assignments by their keys. A worker that is lost gives back what it had in flight; whatever it says afterwards, or says
    of what was forgotten, is no result."""

    planned: dict[Key, Item] = field(default_factory=dict)
    flying: dict[int, tuple[Key, Item]] = field(default_factory=dict)  # by worker
    done: dict[Key, Result] = field(default_factory=dict)

    def plan(self, key: Key, item: Item) -> None:
        """To be played by whoever is free."""
        assert key not in self.planned
        assert key not in self.done
        assert key not in (other for other, _ in self.flying.values())
        self.planned[key] = item

    def begin(
        self, worker: int, awaited: Key | None = None, is_ready: Callable[[Item], bool] = lambda item: True
    ) -> tuple[Key, Item] | None:
        """The earliest assignment that nobody plays, and that is ready to be, is this worker's; those of the same kind and
        iteration as the `awaited` one before all others. None: there is none."""
        assert worker not in self.flying
        ready = [key for key, item in self.planned.items() if is_ready(item)]
        if not ready:
            return None
        key = min(ready, key=lambda key: (awaited is None or key[:2] != awaited[:2], key))
        self.flying[worker] = key, self.planned.pop(key)
        return self.flying[worker]

    def finish(self, worker: int, key: Key, result: Result) -> bool:
        """The worker has played it; False: it was not its to play (any more)."""
        if self.flying.get(worker, (None,))[0] != key:
            return False
        del self.flying[worker]
        self.done[key] = result
        return True

    def lose(self, worker: int) -> None:
        """The worker is gone: what it played is played again."""
        if worker in self.flying:
            key, item = self.flying.pop(worker)
            self.planned[key] = item

    def take(self, key: Key) -> Result | None:
        """The result, once; None: there is none yet."""
        return self.done.pop(key, None)

    def forget(self) -> None:
        """Nobody asks any more for what there is."""
        self.planned.clear()
        self.flying.clear()
        self.done.clear()
