"""New weights in the middle of a worker's play: between two steps of its engines, as they come or where a log says."""

from __future__ import annotations

import queue
from collections.abc import Callable

from marft.distributed import messages
from marft.engines.base import Adapters
from marft.rollouts.players import Swaps


class Swapping:
    """Looks for newer versions before every step, and keeps the log of those that entered.

    While a play is under way nothing else is sent to a worker. Steps are counted because they, unlike time, are the same
    when the play is repeated; so whoever follows a log may wait for a version, and nothing else goes on meanwhile.
    """

    def __init__(
        self, poll: Callable[[], bytes], wait: Callable[[], bytes], publish: Callable[[int, Adapters], None]
    ) -> None:
        self._poll, self._wait, self._publish = poll, wait, publish
        self.begin(())

    def begin(self, given: Swaps | None) -> None:
        """Another play. `given` are its swaps; None: whatever comes enters at the next step."""
        self._step = 0
        self._given = None if given is None else dict(given)
        self.done: list[tuple[int, int]] = []

    def before_step(self) -> None:
        """Publishes the newest version that has come, or the one whose step it is."""
        self._step += 1
        if self._given is None:
            if (message := self._newest_message()) is not None:
                self._enter(*messages.unpack_adapters(message[1:]))
        elif self._step in self._given:
            version, adapters = messages.unpack_adapters(self._wait()[1:])
            while version != self._given[self._step]:
                version, adapters = messages.unpack_adapters(self._wait()[1:])
            self._enter(version, adapters)

    def _newest_message(self) -> bytes | None:
        found = None
        while True:
            try:
                found = self._poll()
            except queue.Empty:
                return found

    def _enter(self, version: int, adapters: Adapters) -> None:
        self._publish(version, adapters)
        self.done.append((self._step, version))
