r"""The one answer that a message commits to: what stands in a tag, else in the last `\boxed{…}`, else at a label, else the
last number or formula.

Answers of one kind with nothing but commas, "and" or "or" between them are one list, so that who bets on several has
given a list and not several chances. What is a copy of the prompt, or is taken back, commits to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from marft.envs.grading.answer_structure import Leaf, Structure, parse_structure
from marft.envs.grading.boxed_answers import BOX, JOINS, boxed_answers, tagged_answers, with_surroundings
from marft.envs.grading.candidates import MAX_ANSWER, MAX_CANDIDATES, Candidate
from marft.envs.grading.comparison import RATIO, canonical_text, is_number
from marft.envs.grading.expression_parser import parse_expression
from marft.envs.grading.labelled_answers import concluding_formulas, labelled_answers, stated_number
from marft.envs.grading.last_line import NUMBERS, RATIOS, TIMES, last_values
from marft.envs.grading.latex_normalization import normalize_latex
from marft.envs.grading.markup import strip_markup
from marft.envs.grading.rationals import rational_value
from marft.envs.grading.retraction import is_retracted
from marft.envs.grading.sentence_answers import stated_values, stated_word_numbers, value_of_sentence, yes_no_verdicts
from marft.envs.grading.times_of_day import minutes_since_midnight
from marft.envs.grading.tree_normalization import spelling_tree

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
    r"(?i)[\s$)\]}\\.,(*]*(?:\b(?:or|alternatively|maybe|perhaps|possibly)\b|\\text\s*\{\s*or\s*\})[\s,]+"
    r"(?:(?:is it|it is|it's|it could be|is|maybe|perhaps|possibly|rather|also|even|just)\s+)*[-$\\\d]",
)
IN_WORDS = re.compile(r"\s*\\text\w*\s*\{([^{}]*)\}[\s.]*")
AGAIN = re.compile(r"\$?-?(?:\d[\d.,/]*\d|\d)(?![\d%\\])")
VERDICT = re.compile(r"(?i)[\s⟪]*(?:yes|no|true|false)[\s⟫]*")
AnswerKind = Literal["number", "time", "ratio", "verdict", "words", "formula"]
# Where answers stand: what finds them there, and by which rules the words around them take them back.
SOURCES: dict[str, tuple[Callable[[str], Iterator[Candidate]], str]] = {
    "tag": (tagged_answers, "box"),
    "box": (boxed_answers, "box"),
    "label": (labelled_answers, "label"),
    "number": (partial(last_values, token=NUMBERS), "number"),
    "time": (partial(last_values, token=TIMES), "number"),
    "ratio": (partial(last_values, token=RATIOS), "number"),
    "verdict": (yes_no_verdicts, "sentence"),
    "formula": (concluding_formulas, "box"),
    "sentence": (stated_values, "sentence"),
    "number in words": (stated_word_numbers, "sentence"),
}
# What is looked for where nothing is in a tag or box and nothing is labelled.
UNLABELLED: dict[AnswerKind, tuple[str, ...]] = {
    "number": ("number", "formula", "number in words"),
    "time": ("time", "formula"),
    "ratio": ("ratio", "formula"),
    "verdict": ("verdict", "formula"),
    "words": ("formula", "sentence"),
    "formula": ("formula",),
}


def answer_kind(gold: Structure) -> AnswerKind:
    """What kind of value a gold is, and so what is looked for in prose that labels nothing."""
    if not isinstance(gold, Leaf):
        return "words"
    if VERDICT.fullmatch(gold.text):
        return "verdict"
    if minutes_since_midnight(gold.text, gold.unit) is not None:
        return "time"
    if RATIO.fullmatch(gold.text):
        return "ratio"
    return "number" if is_number(gold.text) else "words"


def extract_answer(text: str, prompt: str = "", sought: AnswerKind = "number") -> str | None:
    """The answer `text` commits to, as written; None: none. Takes any text at all."""
    tail = text[-TAIL:]
    *_, spoken = THOUGHT.split(tail)
    tail = strip_markup(spoken if spoken.strip() else tail)
    sources = ("tag", "box", "label", *UNLABELLED[sought])
    return first_answer(tail, without_whitespace(prompt[:MAX_PROMPT]), sources, sought)


def first_answer(tail: str, copied: str, sources: tuple[str, ...], sought: AnswerKind = "number") -> str | None:
    """The answer of the first source that has one."""
    gone: list[Candidate] = []  # what is taken back as a box or label is no number or formula either
    for source in sources:
        find, rules = SOURCES[source]
        found = [c for c in list(find(tail))[-MAX_CANDIDATES:] if not any(c.overlaps(other) for other in gone)]
        own = [candidate for candidate in found if not is_echo(tail, candidate, copied)]
        said = unretracted(tail, own, rules)
        gone += [candidate for candidate in own if candidate not in said]
        if said:
            return answer_of(tail, said, source, sought)
        if own and source in ("number", "time", "ratio", "verdict"):
            return None
    return None


def answer_of(tail: str, said: list[Candidate], source: str, sought: AnswerKind) -> str | None:
    """What candidates of one source say; None where another value is offered beside them."""
    if source in ("box", "label") and is_hedged(tail, said[-1]):
        return None
    answer = joined_answer(tail, said, source)
    if answer is None or source not in ("label", "tag"):
        return answer
    if source == "tag":
        return first_answer(answer, "", ("box", "label")) or answer
    if sought == "words":
        return value_of_sentence(answer)  # Answer: It will be Wednesday.
    values = list(SOURCES[sought][0](answer)) if sought in ("time", "ratio") else []
    return values[0].text if len(values) == 1 else answer


def is_hedged(tail: str, said: Candidate) -> bool:
    """Whether `or` and another value follow, unless it is the same number in another form: 3/4, or 0.75."""
    alternative = OR_ELSE.match(tail, said.past)
    if alternative is None:
        return False
    value, mine = AGAIN.match(tail, alternative.end() - 1), rational_value(normalize_latex(said.text))
    return value is None or mine is None or rational_value(normalize_latex(value[0].lstrip("$"))) != mine


def unretracted(tail: str, found: list[Candidate], rules: str) -> list[Candidate]:
    """Those that are not taken back; what denies one denies the next in the same breath: neither 3 nor 4."""
    kept: list[Candidate] = []
    gone = -1  # where the last one that is taken back ends
    for one in found:
        follows = gone >= 0 and IN_ONE_BREATH.fullmatch(tail, gone, one.start) is not None
        if follows or is_retracted(tail, one.start, one.past, rules):
            gone = one.end
        else:
            kept.append(one)
    return kept


def joined_answer(tail: str, found: list[Candidate], source: str) -> str | None:
    """The last answer, with those that stand right before it in one breath."""
    chain = [found[-1]]
    expression = False
    for earlier in reversed(found[:-1]):
        gap = tail[earlier.end : chain[0].start]
        operator = source == "box" and JOINS.fullmatch(gap) is not None
        if earlier.mark != found[-1].mark or len(gap) > MAX_GAP or not (operator or BETWEEN.fullmatch(gap)):
            break
        expression = expression or operator
        chain.insert(0, earlier)
    if any(len(one.text) > MAX_ANSWER for one in chain):
        return None
    if source in ("box", "tag") and chain[-1].text.rstrip().endswith("?"):
        return None
    distinct = {spelling_key(normalize_latex(one.text)): one.text for one in chain}
    text = BOX.sub("", tail[chain[0].start : chain[-1].end]) if expression else ", ".join(distinct.values())
    if source != "box":
        return text
    if words := IN_WORDS.fullmatch(text):
        text = stated_number(words[1])
    return with_surroundings(tail, chain, text)


def spelling_key(text: str) -> str:
    """The same for answers that differ in spelling or order only, as people say one answer in two ways."""
    tree = parse_expression(text)
    return canonical_text(parse_structure(text)) if tree is None or is_number(text) else repr(spelling_tree(tree))


def is_echo(tail: str, found: Candidate, copied: str) -> bool:
    """Whether an answer stands in the prompt with the same words before it, or with the same words behind it."""
    if not copied:
        return False
    before = without_whitespace(tail[max(0, found.start - CONTEXT) : found.end])
    behind = without_whitespace(tail[found.start : found.end + CONTEXT])
    itself = len(without_whitespace(tail[found.start : found.end]))
    return any(len(piece) >= itself + LEAST_CONTEXT and piece in copied for piece in (before, behind))


def without_whitespace(text: str) -> str:
    """A text's letters and signs alone, in lower case."""
    return re.sub(r"\s+", "", text).casefold()
