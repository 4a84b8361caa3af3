r"""The one answer that a message commits to: what stands in a tag, else in the last `\boxed{…}`, else at a label, else the
last number or formula.

Answers of one kind with nothing but commas, "and" or "or" between them are one list, so that who bets on several has
given a list and not several chances. What is a copy of the prompt, or is taken back, commits to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from marft.envs.grading.boxes import BOX, JOINS, boxes, in_place, is_changed, tags
from marft.envs.grading.denial import denied
from marft.envs.grading.exact import number
from marft.envs.grading.expression import parsed
from marft.envs.grading.found import MAX_ANSWER, MAX_FOUND, Found
from marft.envs.grading.latex import clean
from marft.envs.grading.markup import unmarked
from marft.envs.grading.normal import written
from marft.envs.grading.prose import numbers, ratios, times
from marft.envs.grading.sentence import numbers_in_words, sayings, sentence_value, verdicts
from marft.envs.grading.shape import read
from marft.envs.grading.sought import Sought
from marft.envs.grading.statement import conclusions, labels, number_said
from marft.envs.grading.values import is_number, render

TAIL = 20_000  # characters at the end of a message in which its answer must stand
MAX_PROMPT = 100_000  # characters of a prompt that copies are looked for in
CONTEXT = 24  # characters beside an answer that, copied from the prompt together with it, make it an echo
LEAST_CONTEXT = 8
MAX_GAP = 60  # characters between two answers of one list

THOUGHT = re.compile(r"</think(?:ing)?>", re.I)
BETWEEN = re.compile(
    r"(?:[\s$,;.*]|\b(?:and|or|to|also|maybe|perhaps|possibly|alternatively|else|even|either|else|if you prefer|as well as|along with|both)\b|\\(?:lor|vee)(?![A-Za-z])|\n\s*(?:\d{1,2}[.)]|[-•])|\(?\b[a-h]\)|…|\\(?:text|mbox)\s*\{\s*(?:and|or|,)?\s*\}|\\[l]?dots\b|\\q?quad\b|\\[,;! ()\[\]])*"
)
IN_ONE_BREATH = re.compile(r"[\s$]*(?:,|\b(?:and|or|nor|to)\b|-|–)[\s$]*")
OR_ELSE = re.compile(
    r"[\s$)\]}\\.,(*]*(?:\b(?:or|alternatively|maybe|perhaps|possibly)\b|\\text\s*\{\s*or\s*\})[\s,]+"
    r"(?:(?:is it|it is|it's|it could be|is|maybe|perhaps|possibly|rather|also|even|just)\s+)*[-$\\\d]",
    re.I,
)
IN_WORDS = re.compile(r"\s*\\text\w*\s*\{([^{}]*)\}[\s.]*")
AGAIN = re.compile(r"\$?-?(?:\d[\d.,/]*\d|\d)(?![\d%\\])")
Finder = Callable[[str], Iterator[Found]]
KINDS: dict[Finder, str] = {boxes: "box", labels: "label", numbers: "number", times: "number", ratios: "number"}
KINDS |= {verdicts: "sentence", sayings: "sentence", numbers_in_words: "sentence"}
# What is looked for where nothing is in a tag or box and nothing is labelled.
UNLABELLED: dict[Sought, tuple[Finder, ...]] = {
    "number": (numbers, conclusions, numbers_in_words),
    "time": (times, conclusions),
    "ratio": (ratios, conclusions),
    "verdict": (verdicts, conclusions),
    "words": (conclusions, sayings),
    "formula": (conclusions,),
}


def committed(text: str, prompt: str = "", sought: Sought = "number") -> str | None:
    """The answer `text` commits to, as written; None: none. Takes any text at all."""
    finders = (tags, boxes, labels, *UNLABELLED[sought])
    return first_found(spoken(text), squeeze(prompt[:MAX_PROMPT]), finders, sought)


def first_found(tail: str, copied: str, finders: tuple[Finder, ...], sought: Sought = "number") -> str | None:
    """The answer of the first kind that there is one of."""
    gone: list[Found] = []  # what is taken back as a box or label is no number or formula either
    for find in finders:
        found = [one for one in list(find(tail))[-MAX_FOUND:] if not any(overlap(one, other) for other in gone)]
        kept = [one for one in found if not echoed(tail, one, copied)]
        said = standing(tail, kept, KINDS.get(find, "box"))
        gone += [one for one in kept if one not in said]
        if said:
            if (
                find in (boxes, labels)
                and (other := OR_ELSE.match(tail, said[-1].past))
                and not again(tail, other, said[-1])
            ):
                return None
            answer = joined(tail, said, find)
            if find is labels and answer is not None:
                return labelled(answer, sought)
            return within(answer) if find is tags and answer is not None else answer
        if kept and find in (numbers, times, ratios, verdicts):
            return None
    return None


def labelled(answer: str, sought: Sought) -> str:
    """What is labelled, and where that is a sentence, what it says: Answer: It will be Wednesday."""
    if sought == "words":
        return sentence_value(answer)
    said = [one.text for one in UNLABELLED[sought][0](answer)] if sought in ("time", "ratio") else []
    return said[0] if len(said) == 1 else answer


def overlap(one: Found, other: Found) -> bool:
    return one.start < other.past and other.start < one.past


def again(tail: str, other: re.Match[str], said: Found) -> bool:
    """Whether what follows on `or` is the same number in another form: 3/4, or 0.75."""
    value = AGAIN.match(tail, other.end() - 1)
    mine = number(clean(said.text))
    return value is not None and mine is not None and number(clean(value[0].lstrip("$"))) == mine


def standing(tail: str, found: list[Found], kind: str) -> list[Found]:
    """Those that are not taken back; what denies one denies the next in the same breath: neither 3 nor 4."""
    kept: list[Found] = []
    gone = -1  # where the last one that is taken back ends
    for one in found:
        follows = gone >= 0 and IN_ONE_BREATH.fullmatch(tail, gone, one.start) is not None
        if follows or denied(tail, one.start, one.past, kind) or (kind == "box" and is_changed(tail, one.past)):
            gone = one.end
        else:
            kept.append(one)
    return kept


def spoken(text: str) -> str:
    """The end of a message, without what was thought before it."""
    tail = text[-TAIL:]
    thoughts = list(THOUGHT.finditer(tail))
    return unmarked(tail[thoughts[-1].end() :] if thoughts and tail[thoughts[-1].end() :].strip() else tail)


def within(answer: str) -> str:
    """The answer of a tag: the box or label in it, else all of it."""
    return first_found(answer, "", (boxes, labels)) or answer


def joined(tail: str, found: list[Found], find: Finder) -> str | None:
    """The last answer, with those that stand right before it in one breath."""
    chain = [found[-1]]
    expression = False
    for earlier in reversed(found[:-1]):
        gap = tail[earlier.end : chain[0].start]
        operator = find is boxes and JOINS.fullmatch(gap) is not None
        if earlier.mark != found[-1].mark or len(gap) > MAX_GAP or not (operator or BETWEEN.fullmatch(gap)):
            break
        expression = expression or operator
        chain.insert(0, earlier)
    if any(len(f.text) > MAX_ANSWER for f in chain):
        return None
    if find in (boxes, tags) and chain[-1].text.rstrip().endswith("?"):
        return None
    distinct = {form(clean(f.text)): f.text for f in chain}
    text = ", ".join(distinct.values())
    if expression:
        text = BOX.sub("", tail[chain[0].start : chain[-1].end])
    if find is boxes and (words := IN_WORDS.fullmatch(text)):
        text = number_said(words[1])
    return in_place(tail, chain, text) if find is boxes else text


def form(text: str) -> str:
    """The same for answers that differ in spelling or order only, as people say one answer in two ways."""
    tree = parsed(text)
    return render(read(text)) if tree is None or is_number(text) else repr(written(tree))


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
