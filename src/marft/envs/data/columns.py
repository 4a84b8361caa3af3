"""Which columns hold the prompt and the answer, and how the gold answer is taken from its column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from marft.envs.data.files import Row
from marft.envs.data.known import Gold, KnownSet
from marft.types import MarftError

PROMPTS = ("prompt", "problem", "question", "text", "description", "question_content")
ANSWERS: dict[str, Gold] = {"answer": "found", "final_answer": "found", "gold": "found", "solution": "last boxed"}


def prompt_column(rows: Sequence[Row], wanted: str | None, known: KnownSet | None) -> str:
    """The column that is asked for, the known set's, or the first of the usual names."""
    return choose_column("prompt", rows, wanted, [*([known.prompt] if known else []), *PROMPTS])


def answer_column(rows: Sequence[Row], wanted: str | None, known: KnownSet | None) -> tuple[str, Gold]:
    """The column of the answer and how to take it from there."""
    own: dict[str, Gold] = {known.answer: known.gold} if known and known.answer else {}
    column = choose_column("answer", rows, wanted, [*own, *ANSWERS])
    return column, own.get(column) or (ANSWERS.get(column, "found"))


def has_answers(columns: Sequence[str], known: KnownSet | None) -> bool:
    """Whether one of them is an answer column by its name."""
    usual = [*([known.answer] if known and known.answer else []), *ANSWERS]
    return any(name in columns for name in usual)


def choose_column(key: str, rows: Sequence[Row], wanted: str | None, usual: Iterable[str]) -> str:
    """The wanted column, or the first usual one that is there; MarftError where there is none."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    found = next((name for name in ([wanted] if wanted else usual) if name in columns), None)
    if found is None:
        lacks = f"no column {wanted!r}" if wanted else f"no column that looks like the {key}"
        raise MarftError(f"the data has {lacks}; it has {', '.join(columns)}: choose one with env.{key}=COLUMN")
    return found


def gold_of(value: object, gold: Gold) -> str | None:
    """The gold answer as a text, or None where the column holds none."""
    text = as_text(value)
    match gold:
        case "as it is":
            return text or None
        case "after ####":
            return text.rpartition("####")[2].strip() or None if "####" in text else None
        case "last boxed":
            return last_boxed(text)
        case "found":
            if "####" in text:
                return gold_of(text, "after ####")
            return last_boxed(text) if "\\boxed" in text else text or None


def as_text(value: object) -> str:
    """Numbers as one writes them (27.0 is 27), lists with commas; what is no answer is empty."""
    match value:
        case str():
            return value.strip()
        case bool() | None:
            return ""
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return str(int(value)) if value.is_integer() else repr(value)
        case list() | tuple():
            items = [as_text(item) for item in value]
            return ", ".join(items) if all(items) else ""
        case _:
            return ""


def prompt_text(value: object) -> str:
    """A prompt as agents read it: of a conversation, the messages' texts one below the other."""
    match value:
        case [{"content": _}, *_]:
            texts = [as_text(message.get("content")) if isinstance(message, Mapping) else "" for message in value]
            return "\n\n".join(text for text in texts if text)
        case _:
            return as_text(value)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{…}`, braces matched; `\boxed 2` boxes one character, as TeX has it."""
    start = text.rfind("\\boxed")
    if start < 0:
        return None
    rest = text[start + len("\\boxed") :].lstrip()
    if not rest.startswith("{"):
        return rest[:1] or None
    depth, escaped = 0, False
    for at, character in enumerate(rest):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return rest[1:at].strip() or None
    return None
