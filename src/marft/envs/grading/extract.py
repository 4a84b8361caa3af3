r"""The one answer that a message commits to: the last `\boxed{…}`, else the last labelled one, else the last number.

Answers of one kind with nothing but commas, "and" or "or" between them are one list, so that who bets on several has
given a list and not several chances. What is a copy of the prompt commits to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from marft.envs.grading.latex import clean
from marft.envs.grading.shape import read
from marft.envs.grading.units import ANOTHER_VALUE, MULTIPLE
from marft.envs.grading.values import render

TAIL = 20_000  # characters at the end of a message in which its answer must stand
MAX_ANSWER = 1_000
MAX_PROMPT = 100_000  # characters of a prompt that copies are looked for in
CONTEXT = 24  # characters beside an answer that, copied from the prompt together with it, make it an echo
LEAST_CONTEXT = 8
MAX_FOUND = 100  # answers of one kind that are looked at, from the end
MAX_GAP = 60  # characters between two answers of one list

BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
UNBRACED = re.compile(r"([^\s${}]{1,40}?)(?=\.?\s*(?:\$|\\[)\]]|\n|\Z))")  # up to the end of its formula or line
LABEL = re.compile(
    r"####|(?<![A-Za-z])answers?(?:\s+(?:to|for|of)\s[^.\n:=]{1,80}?)?[\s*_]{0,6}(?:\bis\b|\bare\b|:|=)[\s*_:]{0,6}",
    re.I,
)
BARE = re.compile(
    r"(?<![\w.,/^])[-−]?\$?\d{1,40}(?:,\d{3}){0,12}(?:\.\d{1,40})?(?:/\d{1,40})?%?(?![\w/^]|!\s*[a-z\d!=+*/-])"
    rf"(?:\s+{MULTIPLE})?"
)
PROSE = re.compile(r"[\w\s.,;:!?%°'\"()*$€£+=/×·−–-]*", re.ASCII)
BETWEEN = re.compile(
    r"(?:[\s$,;.*]|\b(?:and|or|to)\b|…|\\(?:text|mbox)\s*\{\s*(?:and|or|,)?\s*\}|\\[l]?dots\b|\\q?quad\b|\\[,;! ()\[\]])*"
)
OR_ELSE = re.compile(r"[\s$)\]}\\.,]*(?:\bor|\\text\s*\{\s*or\s*\})\s+[-$\\\d]")
# In prose a mark at the end of a sentence is an exclamation, and a factorial elsewhere: "5! ways".
SENTENCE_END = re.compile(r"\.(?=\s|$)|[!?](?=[*_]*(?:\s*$|\s+[A-Z]))|,?\s(?:because|since|which|where|when|as|so)\s")
MATH = re.compile(r"\s*(?:\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\])(?P<rest>.*)", re.S)
GOES_ON = re.compile(rf"\s*(?:(?:,|;|and\b|or\b)\s*(?:and\b|or\b)?\s*[-$\\\d(\[]|{ANOTHER_VALUE}|(?:squared|cubed)\b)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An answer and where it stands, label or box included."""

    start: int
    end: int
    text: str
    mark: str = ""  # what labels it: #### or words


def committed(text: str, prompt: str = "", bare_number: bool = True) -> str | None:
    """The answer `text` commits to, as written; None: none. Takes any text at all."""
    tail = text[-TAIL:]
    copied = squeeze(prompt[:MAX_PROMPT])
    for find in (boxes, labels, numbers) if bare_number else (boxes, labels):
        found = [f for f in list(find(tail))[-MAX_FOUND:] if not echoed(tail, f, copied)]
        if found:
            if find is boxes and OR_ELSE.match(tail, found[-1].end):
                return None
            return joined(tail, found)
    return None


def boxes(tail: str) -> Iterator[Found]:
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
            yield Found(start=found.start(), end=past, text=inside)


def brace_ends(text: str) -> dict[int, int]:
    """Where each brace that opens and closes does so; escaped braces are letters."""
    opened: list[int] = []
    ends: dict[int, int] = {}
    for found in re.finditer(r"\\.|[{}]", text, re.S):
        if found[0] == "{":
            opened.append(found.start())
        elif found[0] == "}" and opened:
            ends[opened.pop()] = found.start()
    return ends


def labels(tail: str) -> Iterator[Found]:
    for found in list(LABEL.finditer(tail))[-MAX_FOUND:]:
        at = found.end()
        while at < len(tail) and tail[at].isspace():
            at += 1
        end = tail.find("\n", at)
        line = tail[at : min(end if end >= 0 else len(tail), at + MAX_ANSWER + 1)]
        display = tail.startswith((r"\[", "$$"), at)
        inside = first_statement(tail[at : at + MAX_ANSWER] if display else line)
        if BOX.sub("", inside).strip(" $*_.,:{}"):
            mark = "####" if found[0] == "####" else "answer"
            yield Found(start=found.start(), end=at + len(line), text=inside, mark=mark)


def first_statement(line: str) -> str:
    """What a label labels: the formula that follows it unless the answer goes on behind, else up to the sentence's end."""
    if (found := MATH.match(line)) and not GOES_ON.match(found["rest"]):
        return found[1] or found[2] or found[3] or ""
    ended = SENTENCE_END.search(line)
    return line[: ended.start()] if ended else line


def numbers(tail: str) -> Iterator[Found]:
    """Numbers of the last line, where that is prose and no formula."""
    stripped = tail.rstrip()
    start = stripped.rfind("\n") + 1
    if PROSE.fullmatch(stripped, start):
        for found in list(BARE.finditer(stripped, start))[-MAX_FOUND:]:
            yield Found(start=found.start(), end=found.end(), text=found[0])


def joined(tail: str, found: list[Found]) -> str | None:
    """The last answer, with those that stand right before it in one breath."""
    chain = [found[-1]]
    for earlier in reversed(found[:-1]):
        gap = tail[earlier.end : chain[0].start]
        if earlier.mark != found[-1].mark or len(gap) > MAX_GAP or not BETWEEN.fullmatch(gap):
            break
        chain.insert(0, earlier)
    if any(len(f.text) > MAX_ANSWER for f in chain):
        return None
    distinct = {render(read(clean(f.text))): f.text for f in chain}
    return ", ".join(distinct.values())


def echoed(tail: str, found: Found, copied: str) -> bool:
    """Whether an answer stands in the prompt with the same words before it, or with the same words behind it."""
    if not copied:
        return False
    before = squeeze(tail[max(0, found.start - CONTEXT) : found.end])
    behind = squeeze(tail[found.start : found.end + CONTEXT])
    itself = len(squeeze(tail[found.start : found.end]))
    return any(len(piece) >= itself + LEAST_CONTEXT and piece in copied for piece in (before, behind))


def squeeze(text: str) -> str:
    return re.sub(r"\s+", "", text).casefold()
