"""What a check has found, and how the user's own mistake reads in one line."""

from __future__ import annotations

import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

from marft.types import MarftError

LONGEST = 300  # characters of a quoted error

# frames in these folders are not where the user's mistake is
FOREIGN = (str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`ok` says whether the check holds; None is a note, which fails nothing."""

    check: str
    ok: bool | None
    text: str

    def __str__(self) -> str:
        word = "note" if self.ok is None else "ok" if self.ok else "FAILS"
        return f"{word:5} {self.check}: {self.text}"


class Violation(Exception):
    """The environment does not keep the contract; one line that says what is wrong and what to do."""


def describe_error(error: BaseException) -> str:
    """`ValueError: no such word (guess.py, line 12)`: the line of the user's code that was the last to run."""
    said = " ".join(str(error).split())
    if isinstance(error, MarftError):  # says itself what to do
        return shortened_error(said)
    return shortened_error(f"{type(error).__name__}: {said}" if said else type(error).__name__) + error_location(error)


def error_location(error: BaseException) -> str:
    """` (guess.py, line 12)`: the last frame of the user's own code, or else the last that is not ours."""
    if isinstance(error, SyntaxError) and error.filename:  # its text names the file and the line
        return ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    own = [f for f in frames if not f.filename.startswith(FOREIGN)]
    ours = [f for f in frames if not f.filename.startswith(FOREIGN[0])]
    last = next(reversed(own or ours), None)
    return f" ({Path(last.filename).name}, line {last.lineno})" if last else ""


def shortened_error(text: str) -> str:
    """At most LONGEST characters, the rest as an ellipsis."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
