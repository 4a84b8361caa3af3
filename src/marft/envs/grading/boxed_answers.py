r"""Answers in a frame: `\boxed{…}`, `\fbox{…}`, `<answer>…</answer>`, and what joins a box to its neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from marft.envs.grading.candidates import MAX_ANSWER, Candidate
from marft.envs.grading.latex_normalization import brace_ends
from marft.envs.grading.number_words import SCALE
from marft.envs.grading.units import unit_name

TAG = re.compile(r"(?is)<(final_?|)answer>(.*?)(?:</\1answer>|\Z)|\[(final_?|)answer\](.{1,1000}?)\[/\3answer\]")
BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*")
UNBRACED = re.compile(r"([^\s${}]{1,40}?)(?=\.?\s*(?:\$|\\[)\]]|\n|\Z))")  # up to the end of its formula or line
SIGN = r"[-+*/^:×÷·−–—~|&]|\\(?:cdot|times|div|pm|mp|to|mid|over|vert|sim|ast|cup|cap|backslash)(?![A-Za-z])"
OPERATOR = rf"(?:{SIGN}|\b(?:to|through|thru|until|plus|minus|times|over|by|of|x|vs|versus|per|divided by|multiplied by|mod|out of)\b)"
JOINS = re.compile(
    rf"[\s$]*(?:\\[()\[\]])?[\s$]*(?:{OPERATOR}|[=<>.]|\\?%|\\(?:ne|le|ge)q?(?![A-Za-z]))?[\s$]*(?:\\[()\[\]])?[\s$]*"
)
OPERAND = re.compile(
    rf"[\s$]*(?:{SIGN}|\*\*)[\s$({{]*(?:[-+]?\d|\\boxed|\\[dt]?frac|\\sqrt|\\pi|\()(?!\\circ)|!|\d|\.\d|[\s$]*\^(?!\s*\{{?\\circ)"
)
SCALED = re.compile(rf"[\s$]*(?:\\\))?[\s$]*(?:\\text\s*\{{\s*)?({SCALE})s?\b(?! of a)", re.I)
UNIT_BEHIND = re.compile(
    r"[\s$]*(?:\\\))?[\s$]*(?:\\text\s*\{\s*)?((?!in\b|mi\b|am\b|pm\b|pt\b)[A-Za-z]{2,12}(?: per [a-z]+|/[a-z]+)?)\b(?!-| per\b)"
)
PERCENT = re.compile(r"[\s$]*(?:\\?%|per ?cent\b)")
# What goes on at a box, and what a box stands in, where it is only a part: `\\boxed{5}x`, `2^{\\boxed{5}}`, `(\\boxed{5}, 6)`.
FACTOR = re.compile(
    r"[A-Za-z]|\s[kKM](?![A-Za-z])|(?:\{,\}|,)\d{3}|\s000(?!\d)|\s*\\(?:sqrt|pi|[dt]?frac(?!\s*\{\\text)|infty)(?![A-Za-z])|\s*[<>]\s*[\dA-Za-z\\]"
    r"|\s*,\s*-?\d+\s*(?:[)\]$]|\\\})|\s*\$\s*(?:,|and|or|to)\s*\$\s*-?\d+\s*\$[\s.]*(?:\n|\Z)"
)
TERM = re.compile(r"[a-z](?![a-z\d])|\s*\\pi(?![A-Za-z])")  # = \\boxed{19}x^3 boxes a coefficient
INSIDE = re.compile(
    r"(?:[\^_]\s*\{?|\\[dt]?frac\s*\{[^{}]*\}\s*\{|\\(?:sin|cos|tan|log|ln|exp)\s*\(?|(?<![A-Za-z\\])[A-Za-z]\()\s*\Z"
)
UNARY_MINUS = re.compile(r"(?:[=$(,]\s*[-−]\s*|(?:^|\s)[-−])\Z")
COEFFICIENT = re.compile(
    r"(?:\\(?:sqrt|frac|[dtc]frac|log|ln|sin|cos|tan|lvert|vert|overline)\s*\{?|\d|\||[\d)}]\s*(?:\\cdot|\\times|[*×·])\s*)\Z"
)


def tagged_answers(tail: str) -> Iterator[Candidate]:
    """Answers in tags; a box or a label in a tag is that tag's answer."""
    for found in TAG.finditer(tail):
        inside = found[2] if found[2] is not None else found[4]
        if inside.strip():
            yield Candidate(start=found.start(), end=found.end(), text=inside)


def boxed_answers(tail: str) -> Iterator[Candidate]:
    """Outermost boxes that hold something; braces are matched in one pass, however many stay open."""
    ends = brace_ends(tail)
    past = 0
    for found in BOX.finditer(tail):
        if found.start() < past:
            continue
        at = found.end()
        if tail.startswith("{", at):
            end = ends.get(at)
            inside = "" if end is None else tail[at + 1 : end]
            past = found.start() if end is None else end + 1
        else:
            token = UNBRACED.match(tail, at)
            inside = token[1] if token else ""
            past = token.end() if token else at
        inside = BOX.sub("", inside) if len(inside) <= MAX_ANSWER else inside
        if inside.strip():
            yield Candidate(start=found.start(), end=past, text=inside)


def with_surroundings(tail: str, chain: Sequence[Candidate], text: str) -> str | None:
    r"""A box's answer with what stands at it: `-\boxed{5}` is -5, `\boxed{5}` million is 5 million; None where the box is
    only a part of a larger expression."""
    before, end = tail[max(0, chain[0].start - 40) : chain[0].start], chain[-1].end
    if OPERAND.match(tail, end) or COEFFICIENT.search(before) or INSIDE.search(before):
        return None
    if FACTOR.match(tail, end) and not (before.rstrip().endswith("=") and TERM.match(tail, end)):
        return None
    if UNARY_MINUS.search(before) and not re.search(r"(?:^|\n)\s*[-−]\s+\Z", before):
        text = f"-{text}" if re.fullmatch(r"[\w.\\]+(?:\{\w+\}){0,2}", text) else f"-({text})"
    if PERCENT.match(tail, end) and "%" not in text:
        text = f"{text}\\%"
    unit = UNIT_BEHIND.match(tail, end)
    if unit and unit_name(unit[1], None) and re.fullmatch(r"[-\d.,]+", text):
        text = f"{text} {unit[1]}"
    scaled = SCALED.match(tail, end)
    return f"{text} {scaled[1]}" if scaled and not re.search(SCALE, text) else text
