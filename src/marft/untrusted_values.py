"""Foreign values in our own lines: what a user's code gave or raised, quoted shortly and without trusting any of its methods."""

from __future__ import annotations

import re
import traceback

LONGEST_TEXT = 4_000_000  # characters that an agent may be shown at once: no model reads as many
LONGEST_LINE, LONGEST_TRACE = 500, 20_000
SURROGATE = re.compile("[\ud800-\udfff]")


def flaw_of(text: str) -> str | None:
    """Why no agent could be shown `text`; None where one can."""
    if len(text) > LONGEST_TEXT:
        return f"is {len(text):,} characters long; the most is {LONGEST_TEXT:,}"
    if text.isascii() or not (found := SURROGATE.search(text)):
        return None
    half = found[0].encode("unicode_escape").decode()
    return f"holds half of a surrogate pair ({half}, character {found.start()}), which is no text"


def exact(text: str) -> str:
    """The same characters as a plain str: a subclass may answer anything."""
    return str.__str__(text)


def escaped(text: str) -> str:
    """The text with halves of surrogate pairs spelled out, so that it can be encoded."""
    return text.encode(errors="backslashreplace").decode()


def shortened(text: str, most: int = LONGEST_LINE) -> str:
    """A long text by its beginning and its end."""
    if len(text) > most:
        text = f"{text[: most // 2]} … ({len(text):,} characters) … {text[-most // 4 :]}"
    return escaped(text)


def kind_of(value: object) -> str:
    """The name of its class."""
    try:
        return shortened(exact(type(value).__name__), 100)
    except Exception:  # a metaclass may say anything
        return "an object"


def quoted(value: object) -> str:
    """Its repr, where it has one."""
    try:
        return shortened(exact(repr(value)), 100)
    except Exception:  # an int of too many digits, or the user's code
        return f"<{kind_of(value)}>"


def described(error: BaseException) -> str:
    """`ValueError: what it says`, or its class alone."""
    try:
        said = shortened(exact(str(error)))
    except Exception:  # the user's code
        said = "(it fails to say what)"
    return f"{kind_of(error)}: {said}"


def traced() -> str:
    """The traceback of the exception that is being handled."""
    return shortened(traceback.format_exc(), LONGEST_TRACE)
