"""Values in the prose of a message's last line: numbers, times of day, ratios."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from marft.envs.grading.boxed_answers import OPERATOR
from marft.envs.grading.candidates import MAX_CANDIDATES, Candidate
from marft.envs.grading.number_words import SCALE
from marft.envs.grading.retraction import NOT, REFUSED
from marft.envs.grading.times_of_day import SPOKEN
from marft.envs.grading.units import NAMES, is_changed_by

NUMBERS = re.compile(
    r"(?<![\w.,/^])(?<!\d:)[-−]?[$€£]?"
    r"(?:\d{1,40} {1,9}[1-9]\d{0,2}/\d{1,3}|\d{0,40}[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]|(?:\d{1,40}(?:,\d{3}){0,12}(?:\.\d{1,40})?|\.\d{1,40})(?:/\d{1,40})?[%¢]?)"
    r"(?![\w/^]|!\s*[a-z\d!=+*/-]|[.,:]\d|\+(?:\s|$)|\?)"
    rf"(?:\s+(?:{SCALE})s?\b(?!-))?",
)
TIMES = re.compile(rf"(?<![\w.,:/])(?:{SPOKEN}|\d{{1,2}}:\d{{2}}(?![\d:]))(?!\s*\?)|\b(?:noon|midday|midnight)\b", re.I)
RATIOS = re.compile(
    r"(?<![\w.,:/])\d{1,9}(?:\.\d{1,9})?(?:\s?(?::|to)\s?\d{1,9}(?:\.\d{1,9})?){1,5}(?![\w:/]|[.,]\d|\s*\?)"
)
PROSE = re.compile(r"[\w\s.,;:!?%°'\"()*$€£¥¢#+=/~×÷·−–—“”‘’…✓✔✅→≈∴⇒⟹½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞²³-]*", re.ASCII)
# Prose has its numbers out of $…$, \(…\) and **…**; what is shorter is padded, so that every sign keeps its place.
PLAIN_TEXT = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"\\[dt]?frac\s?(?:\{(\d{1,9})\}\s?\{(\d{1,9})\}|(\d)\s?(\d))(?=\s*(?:\$|\\\)|=|\Z))", r" \1\3/\2\4"),
        (r"\\\$", " $"),
        (r"\\\(|\\\)|\\\[|\\\]|\*\*|`|(?<![\d\w])_{1,2}(?=\d)|(?<=\d)_{1,2}(?!\w)|\\,", ""),
        (r"\\%", " %"),
        (r"\\(?:times|cdot|div)(?![A-Za-z])", "×"),
        (r"(?<=\d [a-z]{2})\^(?:2\b|\{2\})", "²"),
        (r"(?<=\d [a-z]{2})\^(?:3\b|\{3\})", "³"),
    )
)
THOUSANDS = re.compile(r"\d{1,3}(?:\{,\}\d{3})+")
# A constant that is worked out: $\\binom{4}{2} = 6$.
CALCULATED = re.compile(
    r"\$(?:[-\d\s.,+*/^(){}!=×·]|\\(?:binom|[dt]?frac|sqrt|left|right|cdot|times|pi)(?![A-Za-z])){2,80}=\s*(-?\d[\d,]*(?:\.\d+)?)\s*\$"
)
IN_DOLLARS = re.compile(r"\$([^$\n]{1,60})\$")
BETWEEN_NUMBERS = re.compile(rf"\s*(?:{OPERATOR}|in|for every)\s*\$?\s*", re.I)
ALTERNATIVE = re.compile(
    r"(?: [a-z][ a-z]{0,22}[,;]?|\s*\(|[ a-z]{1,22}\()\s*\bor\s+(?:(?:maybe|perhaps|even|possibly|about|else|rather)\s+)?"
)
NEGATIVE = re.compile(r"(?<![\d)] )\b(?:negative|minus)\s+\Z")
UNIT = re.compile(r"\s+([A-Za-z]{3,})\b(?:\s+(?:per|an?)\s+([A-Za-z]{1,12})\b)?")
IGNORANT = re.compile(
    r"(?i)\b(?:cannot|can['’]?t|couldn['’]?t|unable to|could not|can not|fail(?:ed)? to) (?:be )?(?:answer|solve|tell|say|determine|find)"
    r"|\b(?:do not|don['’]?t|not) know\b|\bno idea\b|\bnot sure\b|\bunsure\b|\bI give up\b"
    r"|\b(?:not|\w+n['’]t) (?:have )?(?:enough|sufficient) (?:information|data|details)|\binsufficient (?:information|data)|\bonly know\b"
    r"|\bneeds? more (?:information|data|details|context)|\b(?:no|without) (?:more|further|additional) (?:information|data)"
    r"|\bwhichever\b",
)
EQUATION = re.compile(
    r"(?<![\w.])(?:-\s?[a-z]|\d+\s*[a-z]|[a-z]\s*[-+*/]\s*\d+|\d+\s*[-+*/]\s*[a-z])\s*=[^=]*$"
)  # 2x = 7
# What a sentence begins with that sets out and concludes nothing.
SETS_OUT = re.compile(
    r"(?i)\W*(?:(?:next|then|now|first(?:ly)?),? (?:we |I )?(?:consider|check|try|test|let|note|suppose|assume|know)|first(?:ly)?,? (?:we|there|I)|(?:we|I) (?:check|try|test|consider)|let(?:['’]s(?! see)| us(?! see)| me| [a-z])|(?:we|I) (?:only |also |already )?(?:know|are given|were told)"
    r"|suppose|assume|hypothetically|recall|consider|it (?:says|mentions|is given)|(?:the|this) (?:question|problem|prompt|text) (?:says|states|asks|mentions|tells|is)|for (?:example|instance))\b",
)
CONCLUDES = re.compile(
    r"\b(?:so|thus|hence|therefore|then|means|gives|leaves|leaving|giving|total|altogether)\b|=[^=]*=|[;:⇒→]", re.I
)
CUT_OFF = re.compile(r"[.!?]\s+(?:[A-Z][a-z]+\s?){1,3}$")  # the line breaks off in a new sentence
SENTENCE = re.compile(r"(?<=[a-z\d)%!?]{2}[.!?])\s+(?=[A-Z])")
# What may follow on the number that a sentence says: how it came about, and no other conclusion.
TAIL = re.compile(
    r"(?i)(?<![.!?:;]),?\s(?:because|since|after \w+ing)\s(?![^.]*(?:[=;:?]|\b(?:so|thus|hence|therefore|then|but|leaves?|leaving|left|total|means)\b))[^.\n]{1,80}\.?\s*$"
    r"|(?<![.!?:;]),?\s(?:(?:after|when|despite) (?:he|she|it|they|we|all|the|that|this)|(?<=left )(?:out of|from))\s(?![^.]*(?:[=;:?]|\b(?:so|thus|hence|therefore|then|is|are|was|were"
    r"|has|have|had|leaves?|leaving|left|gives?|giving|makes?|making|total|means|gets?|needs?|each|but|and|or)\b))[^.\n]{1,80}\.?\s*$"
    r"|(?<=\d)\sof (?:the|his|her|their|all|these|those|its|my)\s(?:\w+\s)?\d[^.\n=]{0,40}\.?\s*$"
    r"|,?\s+(?:which|that) (?:is|are|was) [$€£]?\d[\d,.]* (?:\w+ )?(?:less|more|fewer|greater) than [^.=]{1,40}\.?\s*$",
)
# Where the value is taken: The minimum is 18, attained at x = 3.
CONDITION = re.compile(
    r",?\s(?:(?:and (?:it )?is |which is |which )?(?:attained|achieved|reached|obtained|occurs|occurring)\s[^.\n]{0,40}?[A-Za-z)]|(?:when|where|at)\s[\s$(]{0,3}[A-Za-z](?:\s?[,+]\s?[a-z]){0,3}[)]?)\s*=\s*[^.\n=]{1,24}[\s$.)]*$"
    r"|,?\s(?:at an? (?:rate|speed|pace|price|cost) of|at) [$€£]?\d[^.\n=]{1,24}\b(?:per|each|mph|an hour|a day|a piece|apiece)\b[^.\n=]{0,20}[\s.]*$"
    r"|\s\((?![^()]*\b(?:or|not|maybe|could|might|no|wait|rather|instead|sorry|actually|total|altogether|all|combined|wrong|but|so|minus|plus)\b)[^()?\n]{2,60}\)[\s.]*$"
)
LONGEST_TAIL, MAX_CLOSING = 200, 4
BESIDE = re.compile(
    r"(?i)\b(?:(?:later|earlier|sooner) than|before|after|until|till|past|around|about|roughly|approximately|nearly|almost|since)\s+$",
)
VERB = re.compile(r"\b(?:is|are|was|were|has|have|had|be|will|needs?|costs?|takes?|took|\w+(?:s|ed))\b", re.I)
# Lines that follow on an answer and say nothing more of it.
CLOSING = re.compile(
    r"(?i)[\s*_(>-]*(?:(?:i )?hope (?:this|that|it)|let me know|feel free|please let|thanks|thank you|(?:this|that) completes"
    r"|(?:(?:a )?(?:quick |sanity )?(?:check|verification|proof)|to (?:check|verify|confirm)|(?:let['’]s|let us|let me|we can) (?:check|verify)|verify(?:ing)?|checking)\b)",
)
OPPOSED = re.compile(
    rf"{NOT}|{REFUSED}|\b(?:no|but|should|mistake|oops|wait|actually|instead|answer|so)\b|[✗✘❌✖≠?]", re.I
)


def last_answer_line(tail: str) -> tuple[int, str]:
    """The last line and where it starts; checks and good wishes behind it that take nothing back are left out."""
    end = len(tail.rstrip("` \n\r\t"))
    for _ in range(MAX_CLOSING):
        start = tail.rfind("\n", 0, end) + 1
        line = tail[start:end]
        if not start or len(line) > LONGEST_TAIL or not CLOSING.match(line) or OPPOSED.search(line):
            break
        end = len(tail[:start].rstrip("` \n\r\t"))
    start = tail.rfind("\n", 0, end) + 1
    return start, tail[start:end]


def last_values(tail: str, token: re.Pattern[str]) -> Iterator[Candidate]:
    """NUMBERS, TIMES or RATIOS of the last line, where that is prose and no formula."""
    start, line = last_answer_line(tail)
    line = without_delimiters(line)
    if not PROSE.fullmatch(line) or IGNORANT.search(line) or EQUATION.search(line):
        return
    if CUT_OFF.search(line[-LONGEST_TAIL:]):
        return
    line = main_clause(line, token)
    found = list(token.finditer(line))[-MAX_CANDIDATES:]
    if found and is_introduction(line[: found[-1].start()]):
        return
    for n, one in enumerate(found):
        at, earlier = one.start(), found[n - 1] if n else None
        joined_on = earlier and BETWEEN_NUMBERS.fullmatch(line, earlier.end(), at)
        text = line[earlier.start() : one.end()] if earlier and joined_on else one[0]
        if token is NUMBERS:
            text = text_with_unit(line, one, text)
            if earlier and ALTERNATIVE.fullmatch(line, earlier.end(), at):
                text = f"{text_with_unit(line, earlier, earlier[0])}, {text}"
            elif sign := NEGATIVE.search(line, 0, at):
                text, at = f"-{text}", sign.start()
        elif token is TIMES and (before := BESIDE.search(line, 0, at)):
            text = f"{before[0]}{text}"
        yield Candidate(start=start + at, end=start + one.end(), text=text)


def text_with_unit(line: str, one: re.Match[str], text: str) -> str:
    """A number's `text` with the unit behind it; with all that follows where that makes it another value."""
    rest = line[one.end() :]
    if is_changed_by(rest):
        return line[one.start() :]
    unit = UNIT.match(rest)
    if unit is None or unit[1].lower() not in NAMES:
        return text
    return text + (unit[0] if unit[2] is None or unit[2].lower() in NAMES else "")


def main_clause(line: str, token: re.Pattern[str]) -> str:
    """The line without what only says how its value came about: He has 39 left after eating 35 of the 74."""
    late = max(0, len(line) - LONGEST_TAIL)
    for found in (*TAIL.finditer(line, late), *CONDITION.finditer(line, late)):
        before = SENTENCE.split(line[: found.start()])[-1]
        if token.search(before) and VERB.search(before):
            return line[: found.start()]
    return line


def is_introduction(before: str) -> bool:
    """Whether the last sentence of `before` only sets out: First, we know that …"""
    sentence = SENTENCE.split(before)[-1]
    found = SETS_OUT.match(sentence)
    return found is not None and CONCLUDES.search(sentence, found.end()) is None


def without_delimiters(line: str) -> str:
    """Prose with its numbers in plain text, every sign at its place."""
    for pattern, text in PLAIN_TEXT:
        line = pattern.sub(partial(padded, text), line)
    line = THOUSANDS.sub(lambda found: found[0].replace("{,}", ",").ljust(len(found[0])), line)
    line = CALCULATED.sub(lambda found: found[1].rjust(len(found[0]) - 1) + " ", line)
    return IN_DOLLARS.sub(lambda f: f" {f[1]} " if re.fullmatch(r"[-−\s$\d.,/%=x:]*", f[1]) else f[0], line)


def padded(text: str, found: re.Match[str]) -> str:
    """The replacement `text`, as long as what it replaces."""
    return found.expand(text).ljust(len(found[0]))
