"""How a game ends before its workflow is done.

None of these is an `Exception`: a workflow that wraps `game.act` in `except Exception` and tries again would never stop,
for nothing it does can bring an ended game back. They pass through it as a KeyboardInterrupt does.
"""

from __future__ import annotations

from marft.types import FaultKind


class GameOver(BaseException):
    """The game has ended already, and still the workflow goes on."""


class HostileError(GameOver):
    """The user's environment or workflow or a model's output failed; carries what to record."""

    def __init__(self, line: str, fault: FaultKind, trace: str = "") -> None:
        super().__init__(line)
        self.fault, self.trace = fault, trace


class Overflow(GameOver):
    """What the team has said outgrew what one of its agents can read."""


class CutOff(GameOver):
    """The limit of turns was reached; carries who would have acted next, and what it would have been shown."""

    def __init__(self, before: str, shown: str) -> None:
        super().__init__(before)
        self.before, self.shown = before, shown
