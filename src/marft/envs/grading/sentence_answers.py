"""What a last sentence says where the answer is no number: a day, a name, a list, a point, yes or no.

A sentence commits when it is one of a few: a subject, a linking word and the value (`It will be a Tuesday`), the value and
what makes it the answer (`Alice has more money`), the value alone, or `Yes, …`. Every other sentence commits to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from marft.envs.grading.candidates import Candidate
from marft.envs.grading.labelled_answers import stated_number
from marft.envs.grading.last_line import IGNORANT, SETS_OUT, last_answer_line
from marft.envs.grading.number_words import PARTS, SCALES, SMALL
from marft.envs.grading.retraction import NEGATED, REFUSED

LONGEST = 400  # characters of a sentence that is read
LONGEST_VALUE = 80
SHARE = re.compile(rf"((?:{'|'.join(SMALL)}|an?)[ -](?:{'|'.join(PARTS)})s?) of\b", re.I)
LONE = "lone"
BEGINS = re.compile(r"[A-Z]|[a-z] (?:is|equals)\b")
ASKS = re.compile(r"(?:what|how|which|who|when|where|why|is|are|do|does|did|can|if)\b", re.I)
MAX_WORDS = 8  # of a sentence that a number in words begins
IN_WORDS = rf"(?:negative |minus )?(?:(?:one|an?)[ -](?:in\b|out of\b|{'|'.join((*PARTS, *SCALES))})|(?!one\b|zero\b)(?:{'|'.join(SMALL)})\b)"  # one is a pronoun too
SENTENCE = re.compile(
    r"(?<![A-Z])(?<!\b[ap]\.m)(?<!\b[ap])(?<!\bi\.e)(?<!\be\.g)(?<!\bi)(?<!\be)(?<!\bMr)(?<!\bMrs)(?<!\bDr)(?<!\bSt)[.!?](?=[*_\"')]*\s)\s*"
)
MARKS = re.compile(r"\*\*|__|(?<!\w)[*_](?=\S)|(?<=\S)[*_](?!\w)|`|\\[()]|\$")
OPENER = re.compile(
    r"(?i)(?:(?:so|thus|hence|therefore|then|and|finally|overall|in conclusion|in short|in summary|this means(?: that)?|that means(?: that)?"
    r"|it follows that|we (?:conclude|see|find) that|which means(?: that)?|as a result|consequently|accordingly|clearly|in the end|all in all|solution|result|conclusion)\b[\s,:]*)+",
)
LINK = re.compile(
    r"(?i)(?:\b(?:is|are|was|were|be|been|becomes?|equals?|on|in|at|chooses?|chose|picks?|selects?|takes?|gets?|have|obtain|find|namely,?|gives?|yields?|by|means?|called|named|describes?|hires?|(?:go(?:es)?|went) with|opt for|prefers?|recommend|buys?|uses?)\b"
    r"|\bi\.e\.,?|['’](?:s|re)\b(?! \w+s\b)|:|(?:^|,\s*|;\s*|→\s*|⇒\s*)(?:so|thus|hence|therefore|then)\b,?)\s+"
    r"(?:(?:therefore|thus|hence|then|indeed|simply|just|exactly|only|both|now|again|clearly|equal to|going to be|given by|precisely|actually|definitely)\s*,?\s+)*"
    r"(?:(?:an?|the|month of|option|choice|answer|letter|value|values|numbers?|points?|ordered pairs?|interval|set|pair)\s+)*",
)
# What makes a clause other than a plain statement that the value is so.
DOUBTED = re.compile(
    rf"(?i){NEGATED}|{REFUSED}|\b(?:if|unless|whether|suppose|supposing|assume|assuming|let|since|because|given|while|although|though|when|where"
    r"|maybe|perhaps|possibly|probably|presumably|might|could|would have|either|guess|seems?|appears?|supposedly|allegedly|looks like|(?<!most )likely|says?|said|claims?|claimed|thinks?|thought|believes?"
    r"|used to|yesterday|(?<!from )today|originally|initially|at least|at most|one of|one factor|a factor|\w+est after|some|followed|divisible|multiple|parallel|perpendicular|example|wrong|other|another|try|trap|mistake|tempting|depends?|or)\b"
    r"|(?-i:\bmay\b)|[?<>≠≈~✗✘❌✖]",
)
STARTS = re.compile(r",\s|;\s|:\s|\b(?:so|thus|hence|therefore|then|but|means?|and)\b", re.I)  # of a clause
# How it came about, which changes nothing about the value.
REASON = re.compile(
    r",?\s(?:because|since|as|which(?! is an? | is on | is [A-Z]\w+$)|who|whose|(?<!go )with|for)\s(.{1,200})$|,\sat\s(\d.{1,40})$"
)
# What a kind of thing is called behind its name: an isosceles triangle, 3π square units.
NOUN = re.compile(
    r"(?<=\w)\s(?:triangles?|functions?|numbers?|curves?|(?:square |cubic )?units?|marbles?|beads?|plan)$"
)
TITLE = r"(?:[A-Z][a-z]+(?: (?:[A-Z][a-z]*|\d{1,2}))?|\([A-J]\)|[B-HJ])"
CONCLUSION = re.compile(r"[\s,;](?:so|thus|hence|therefore)\b,?\s+", re.I)
CONDITIONAL = re.compile(r"\W*(?:if|when|suppose|assuming|unless)\b[^,]*$", re.I)
SUBJECT = re.compile(rf"(?:(?:the|option|choice)\s+)?({TITLE})\s+(.{{2,120}})", re.S)
NOT_A_NAME = re.compile(
    r"(?i)(?:he|she|it|they|we|you|i|there|this|that|these|those|the|an?|so|thus|hence|what|who|both|each|every|no|yes|all"
    r"|none|one|if|in|on|at|for|of|my|our|your|his|her|their|its|some|many|most|after|before|since|because|when|while"
    rf"|answer|total|{'|'.join(SMALL)})\b"
)
DECIDES = re.compile(
    r"(?i)[a-z]+\b"
    r"(?:(?!\b(?:less|fewer|least|fewest|worse|worst|lowest|slowest|last|wrong)\b).)*?"
    r"(?:\b(?:more|most|best|better|first|winner|answer|wins|won|right|correct|further|farther|furthest|farthest)\b|\b[a-z]{2,}(?:er|est)\b(?<!other)(?<!under)(?<!after)(?<!over)(?<!never)(?<!either)(?<!fewer)(?<!fewest)(?<!later)(?<!number)(?<!order)(?<!\bher)(?<!\bper))|(?:wins|won)\b|(?:charges|costs) less\b",
)
SENTENCE_LIKE = re.compile(r"(?:it|he|she|they|the|this|that|there|we|you|[A-Z][a-z]+)\s+\S+\s+\S", re.I)
BESIDE = re.compile(r"\b(?:before|until|but)\b")
VERDICT = re.compile(
    r"(?i)(?:\W*(?:so|thus|hence|therefore|then|well|in conclusion|finally|and)\b)?\W*(yes|no|true|false)\b(?=\s*(?:[,.!;:—–*_\"')-]|$))",
)
ENDING = re.compile(
    r"(?i)(?:\b(?:is|are|so|hence|thus|therefore)\b|:)[\s,*_]*(?:(?:thus|therefore|clearly|indeed)[\s,*_]+)?(yes|no|true|false)[\s.!*_]*$",
)
NO_VERDICT = re.compile(
    r"(?is)[\s,.!;:—–*-]*(?:wait|hold on|that['’]?s|that is|this is|it['’]s (?:right|correct|wrong)|let me|hmm|actually|scratch|sorry|or\b|and no|correct|right|and yes|but wait|problem)|.*\b(?:depends|maybe|perhaps|not sure|unless|if|otherwise|or no|or yes|kidding)\b",
)


def stated_values(tail: str) -> Iterator[Candidate]:
    """The value that the last sentence says, if it is a sentence that says one."""
    if (last := last_sentence(tail)) and (value := stated_value(last.text[:LONGEST], last.mark == LONE)):
        yield replace(last, text=value, mark="")


def stated_word_numbers(tail: str) -> Iterator[Candidate]:
    """A number in words that the last sentence says: There are eighteen of them."""
    last = last_sentence(tail)
    if last is None or re.search(r"\d", last.text) or SETS_OUT.match(last.text):
        return
    opener = OPENER.match(last.text)
    rest = last.text[opener.end() if opener else 0 : LONGEST]
    share = SHARE.match(rest)
    if not (opener or (BEGINS.match(last.text) and not ASKS.match(last.text))):
        return  # words in no order
    first = rest if opener and not DOUBTED.search(rest) and len(rest.split()) <= MAX_WORDS else None
    for value in (share[1] if share else None, stated_number(rest), stated_value(rest), first):
        if value and (value != rest or value == first) and re.match(IN_WORDS, value, re.I):
            yield replace(last, text=value, mark="")
            return


def last_sentence(tail: str) -> Candidate | None:
    """The last sentence without marks; marked where it has a line of its own, which may be nothing but a value."""
    start, line = last_answer_line(tail)
    if len(line) > 4 * LONGEST or IGNORANT.search(line):
        return None
    ends = [found.end() for found in SENTENCE.finditer(line)]
    at = ends[-1] if ends and ends[-1] < len(line) else ends[-2] if len(ends) > 1 else 0
    sentence = MARKS.sub("", line[at:]).strip(" .!\t\"'")
    marked = line[at:].lstrip().startswith(("**", "__", "$", "`", r"\("))
    lone = at == 0 and (marked or start == 0 or tail[:start].endswith("\n\n"))
    return Candidate(start=start + at, end=start + len(line), text=sentence, mark=LONE if lone else "")


def stated_value(sentence: str, lone: bool = False) -> str | None:
    """The value of a sentence; None for one that commits to none. `lone`: it may be nothing but the value."""
    reasons = [one for one in REASON.finditer(sentence) if LINK.search(sentence, 0, one.start())]
    if reasons and (reason := reasons[0]):
        if re.search(rf"{REFUSED}|\b(?:or|maybe|perhaps|unless|if|but)\b", reason[0], re.I):
            return None
        sentence = sentence[: reason.start()]
    opener = OPENER.match(sentence)
    rest = sentence[opener.end() :] if opener else sentence
    *_, clause = [None, *CONCLUSION.finditer(rest)]
    rest = rest[clause.end() :] if clause else rest
    subject = SUBJECT.fullmatch(rest)
    if subject and not NOT_A_NAME.match(subject[1]) and "," not in subject[2] and DECIDES.match(subject[2]):
        others = re.search(r"(?<!than )(?<!than Plan )\b[A-Z][a-z]", subject[2])
        return None if others or DOUBTED.search(subject[2]) or BESIDE.search(subject[2]) else subject[1]
    *_, link = [None, *LINK.finditer(sentence)]
    if link is None:
        return short_value(rest) if lone or opener else None
    front = STARTS.split(sentence[: link.start()])[-1]
    if CONDITIONAL.match(sentence) and "," not in front:
        return None
    if DOUBTED.search(front) or SETS_OUT.match(sentence) or not re.search(r"\w", sentence[: link.end()]):
        return None
    return short_value(NOUN.sub("", sentence[link.end() :]))


def value_of_sentence(answer: str) -> str:
    """What a sentence says, and any other text as it is."""
    text = MARKS.sub("", answer).strip(" .!")
    return (SENTENCE_LIKE.match(text) and stated_value(text[:LONGEST])) or answer


def short_value(value: str) -> str | None:
    """A value without the marks around it; None for a question, an alternative, or what is too long."""
    value = value.strip(" .!:,\"'“”")
    if re.search(r"\bor\b", value) and not re.search(r"[\d=<>]", value):
        return None
    return value if 0 < len(value) <= LONGEST_VALUE and not value.endswith("?") else None


def yes_no_verdicts(tail: str) -> Iterator[Candidate]:
    """Yes or no, where a sentence of the last line or the message's first one begins with it and none says the other."""
    start, line = last_answer_line(tail)
    if len(line) > 4 * LONGEST or IGNORANT.search(line):
        return
    found: list[Candidate] = []
    for begin, text in ((0, tail[:LONGEST].split("\n")[0]), (start, line)):
        places = [0, *(one.end() for one in SENTENCE.finditer(text)), len(text)]
        for place, end in pairwise(places):
            said = VERDICT.match(text[place:end])
            if said and not NO_VERDICT.match(text[place + said.end() :]):
                found.append(Candidate(start=begin + place, end=begin + place + said.end(), text=said[1]))
    if (ending := ENDING.search(line)) and not DOUBTED.search(STARTS.split(line[: ending.start()])[-1]):
        found.append(Candidate(start=start + ending.start(), end=start + len(line), text=ending[1]))
    if len({one.text.lower() for one in found}) == 1:
        yield found[-1]
