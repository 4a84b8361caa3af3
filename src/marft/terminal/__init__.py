"""Lines for people. What users and models wrote is shown as text: no control character of theirs reaches the terminal."""

from __future__ import annotations

import re
import sys
from typing import TextIO

# Controls (ESC, NUL, backspace, a lone carriage return, C1), direction marks and overrides, invisible format characters,
# other line breaks, halves of surrogate pairs. A line feed and a tab stay; joiners too, which some scripts need.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def visible(text: str, encoding: str | None = None) -> str:
    """The text with each control character spelled out, as \\x1b; and each that `encoding` lacks, as \\u2192."""
    shown = CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))
    return shown if encoding is None else shown.encode(encoding, "backslashreplace").decode(encoding)


def say(text: object = "", *, file: TextIO | None = None) -> None:
    """Print it on stdout, or on `file`, for somebody who waits for it."""
    stream = sys.stdout if file is None else file
    print(visible(str(text), getattr(stream, "encoding", None)), file=stream, flush=True)


def complain(text: object) -> None:
    """Print it on stderr."""
    say(text, file=sys.stderr)


def warn(text: object) -> None:
    """A warning on stderr, in one line whatever it quotes."""
    complain(f"marft: warning: {' '.join(str(text).split())}")


def format_bytes(amount: float, decimals: int = 0) -> str:
    """12000000 → '12 MB'; gigabytes always have a decimal."""
    for unit in ("B", "KB", "MB"):
        if amount < 1000:
            return f"{amount:,.{decimals if unit != 'B' else 0}f} {unit}"
        amount /= 1000
    return f"{amount:,.1f} GB"
