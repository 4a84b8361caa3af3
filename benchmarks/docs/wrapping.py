"""Wraps the prose of Markdown files at 120 columns; tables, code, headings and comments stay as they are.

    python benchmarks/docs/wrapping.py [FILE …]      default: *.md, docs/*.md

Only paragraphs with a line that is too long are filled anew, and nothing but line breaks changes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH = 120
ITEM = re.compile(r"(\s*)([-*+]|\d+\.)(\s+)")
FIXED = re.compile(r"\s*(\||#|<!--|!\[|$)")  # tables, headings, comments, pictures, nothing
# what would mean something else at the beginning of a line, or nothing without the number before it
SPECIAL = re.compile(r"[-+*>|#]+|\d+[.)]|%\S*")
SPAN = re.compile(r"`[^`]*`")
JOINT = "\0"  # a space at which no line may end


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A paragraph or a list item; or one line that is no prose."""

    lines: list[str]
    prose: bool


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or pages():
        before = path.read_text(encoding="utf-8")
        if (after := wrapped(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path}: wrapped")


def wrapped(text: str) -> str:
    """The text with no line of prose beyond the width, unless a single word is longer."""
    lines: list[str] = []
    for part in parts(text.split("\n")):
        too_long = part.prose and any(len(line) > WIDTH for line in part.lines)
        lines += fill(part.lines) if too_long else part.lines
    return "\n".join(lines)


def long_lines(text: str) -> list[str]:
    """Lines of prose beyond the width that could be broken."""
    prose = (line for part in parts(text.split("\n")) if part.prose for line in part.lines)
    return [line for line in prose if len(line) > WIDTH and len(fill([line])) > 1]


def parts(lines: Iterable[str]) -> Iterator[Part]:
    paragraph: list[str] = []
    fenced = False
    for line in lines:
        fence = line.lstrip().startswith("```")
        fixed = fenced or fence or FIXED.match(line) is not None
        if paragraph and (fixed or ITEM.match(line)):
            yield Part(lines=paragraph, prose=True)
            paragraph = []
        if fixed:
            yield Part(lines=[line], prose=False)
        else:
            paragraph.append(line)
        fenced ^= fence
    if paragraph:
        yield Part(lines=paragraph, prose=True)


def fill(lines: list[str]) -> list[str]:
    """One paragraph in lines of the width; code in backticks stays on one line where it fits."""
    item = ITEM.match(lines[0])
    first = item[0] if item else lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    rest = " " * len(first)
    text = " ".join([lines[0][len(first) :].strip(), *(line.strip() for line in lines[1:])])
    text = SPAN.sub(lambda span: span[0].replace(" ", JOINT) if len(span[0]) < WIDTH else span[0], text)
    filled, line = [], first
    for word in glued(text.split(" ")):
        if line.strip() and line != first and len(line) + 1 + len(word) > WIDTH:
            filled.append(line)
            line = rest + word
        else:
            line += word if line in (first, rest) else f" {word}"
    return [each.replace(JOINT, " ") for each in [*filled, line]]


def glued(words: list[str]) -> list[str]:
    """Dashes and numbers that would begin a list, and percent signs, stay with the word before them."""
    joined: list[str] = []
    for word in words:
        if joined and SPECIAL.fullmatch(word):
            joined[-1] += JOINT + word
        else:
            joined.append(word)
    return joined


if __name__ == "__main__":
    main()
