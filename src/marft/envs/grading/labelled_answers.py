"""Answers in sentences: behind a label (`Answer: …`, `#### …`), before one (`… is the answer`), or as the last words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest

from marft.envs.grading.boxed_answers import BOX, OPERATOR
from marft.envs.grading.candidates import MAX_ANSWER, MAX_CANDIDATES, Candidate
from marft.envs.grading.last_line import CONDITION, LONGEST_TAIL, last_answer_line
from marft.envs.grading.number_words import SCALE, SMALL, value_of_words
from marft.envs.grading.rationals import rational_value
from marft.envs.grading.retraction import is_retracted
from marft.envs.grading.units import ANOTHER_VALUE, NAMES, is_changed_by

LABEL = re.compile(
    r"(?i)####|(?<![A-Za-z])(?:answers?|ans(?=[.:\s])|(?:correct|right|best)\s+(?:option|choice|statement|response))\b\.?"
    r"(?:\s+(?:to|for|of)\s(?!an?other|an? different|the (?:previous|other|last|first|next)|part)[^.\n:=]{1,80}?)?(?:\s+choice|\s+option)?(?:,[^,.\n]{1,24},)?[\"'`*_\s}]{0,6}"
    r"(?:\b(?:is|are|equals|becomes)\b(?!n)|\b(?:should|would|must|will|can only|has to) be\b|\bcomes out (?:to|as)\b"
    r"|:-?(?!\d)|:|=>?|→|⇒|-+>|\\(?:implies|Rightarrow|to)\b)[\"'`*_\s:,}…]{0,6}"
    r"|(?<![A-Za-z])(?:option|choice)\s+(?=\(?[A-J]\)?\s+is\s+(?:the\s+)?(?:correct|right))"
    r"|(?m:^[#*_ \t]*(?:the\s+)?(?:final\s+|correct\s+)?answer[*_ \t]*$\n)",
)
FORMULA = r"(?:\$\$?(?P<a>(?:\\.|[^$\\]){1,400})\$\$?|\\\((?P<b>.{1,400}?)\\\)|\\\[(?P<c>.{1,400}?)\\\])"
MATH = re.compile(rf"\s*(?:\*\*|`)?{FORMULA}(?:\*\*|`)?(?P<rest>.*)", re.S)
VALUE = re.compile(
    rf"(?:{FORMULA}|(?P<d>[-−]?\$?(?<![\d.,])\d[\d,./]{{0,40}}(?<![.,])%?|(?<!\S)[A-Z]|\([A-E]\)))[*`]*\Z"
)
IS_ANSWER = re.compile(
    r"(?i)\s(?:is|are|must be|would be|should be)\s+(?:thus\s+|therefore\s+|then\s+)?(?:the|our|my|your|what)\s+"
    r"(?:(?:final|correct|right|required|desired|exact|only)\s+){0,2}(?:answers?|result|solution|we (?:want|need|seek)|value)\b",
)
FILLER = re.compile(
    r"(?i)(?:(?:therefore|thus|hence|then|simply|just|exactly|precisely|indeed|clearly|obviously|now|again|surely|certainly|undoubtedly|evidently|actually|really|finally|naturally|equal(?:s)? to"
    r"|equals|given by|found to be|known to be|that|(?:approximately|approx\.|about|roughly|around)(?=\s\$?-?\d*\.\d)|in fact|of course|definitely|as follows|so"
    r"|the (?:number|value|integer|point|fraction|letter|word|option|choice|expression|interval|set|ordered pair)"
    r"|option|choice|only|a total of|it is|it's|exactly equal to|be)(?:\s*[,:]\s*|\s+))+",
)
# In prose a mark at the end of a sentence is an exclamation, and a factorial elsewhere: "5! ways".
SENTENCE_END = re.compile(
    r"(?<!\b[ap])(?<!\b[ap]\.m)(?<!\bsq)(?<!\bcu)(?<!\bRs)(?<!\d\.\.)(?<!\d\.)\.(?!\.)(?=\s|$)|[!?](?=[*_]*(?:\s*$|\s+[A-Z]))"
    r"|(?<!\btimes),?\s(?:because|since|which|where|when|as|so|for|thus|hence|after|once|given|using|by|from|according to|under (?:these|the))\s"
    r"|,\s*(?:not|rather than|as|i\.e\.,?|that is,?|assuming|rounded|measured|obtained|found)\s"
    r"|(?<=[\d$})]),\s*(?=(?:no doubt|without (?:any |a )?doubt|of course|for sure|indeed|thanks?|in (?:total|all)|altogether|yes|[iI] am|[iI]['’]m|then(?! \$?\d)|done|as (?:desired|needed))\b)|\s\((?=i\.e\.)"
    r"|,?\s+and (?=(?:there|we|that|this|hence|thus|so|i)\b)|\s(?:rather than|instead of)\s|\sis (?:the )?(?:correct|right)\b"
    r"|\s[—–]{1,3}\s*(?=[A-Za-z])(?!or\b)|\s-{1,3}\s+(?=[A-Za-z])(?!or\b)|;\s*(?=[A-Za-z]{3})(?!and\b|alternatively|maybe|perhaps)"
    r"|\s\((?=[a-z]{3,}[\s)-])(?!or\b|and\b|not\b|mod\b|wrong|base\b|approx|about\b|rough|maybe|perhaps|possib|at (?:least|most)|round|estimat|give)|\s*(?:</?[a-z_]+>|<\|)|\s*\[(?=[a-z]{3})|\s//|\s%%"
)
GOES_ON = re.compile(
    rf"(?i)\s*(?:(?:,|;|and\b|or\b)\s*(?:and\b|or\b)?\s*[-$\\\d(\[]|{ANOTHER_VALUE}|(?:squared|cubed|{SCALE})\b|=|{OPERATOR}\s*[$\\\d(])",
)
ONLY = re.compile(r"[^\s.!?]{1,60}(?: [^\s.!?]{1,20}){0,8}")
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
OPTION = re.compile(r"\W*(?:option|choice)\s+\(?([A-Z])\)?\W*", re.I)
CONCLUDES = re.compile(
    r"(?i)(?:\b(?:is|are|be|equals?|get|have|obtain|gives?|find|yields?|so|thus|hence|therefore|answer|result|solution|to|as|of|that|equation|has"
    r"|conclude)\b|[=:,→⇒])[\s:,*]*$",
)


NEGATED = re.compile(
    r"(?i)\W*(?:not|never|neither|nor|anything but|other than|hardly)\b\s*\S|\s*~\s*\$?-?\d+(?![\d.])|\W*(?:maybe|perhaps|possibly)\b",
)
# A sentence with one number behind a verb says that number: Answer: Tom has 18 apples.
SAYS = re.compile(
    r"(?s)(?!\D*\d\S*\s.*\d)(?:[A-Za-z'’.]+\s+){0,8}?(?:is|are|was|were|be|has|have|had|makes?|made|earns?|earned|gets?|got|needs?"
    r"|needed|pays?|paid|costs?|spends?|spent|sells?|sold|bought|buys?|eats?|ate|takes?|took|weighs?|travels?|saves?|saved"
    r"|reads?|walks?|walked|runs?|ran|receives?|owes?|collects?|collected|bakes?|baked|scored?|contains?|gives?|remain|total of"
    r"|(?!exceeds|hundred|sometimes|always|approaches|estimated|supposed|tends|rounds|lacks|misses|divides|reaches|plus|minus|times|squares|cubes|tens|doubles|triples|halves|as|unless)[a-z]+(?:s|ed))"
    r"\s+(?:(?:exactly|only|just|now|a total of)\s+)*(?P<said>[-−]?\\?\$?\d.*|" + f"(?:{'|'.join(SMALL)})" + r"\b.*)",
)
VERDICT = re.compile(r"[\"'*_ ]*(yes|no)\b[*_]*(?=[,;.:!—–]|\s[—–-])(?!\W*(?:wait|no|yes|actually|or|and)\b)", re.I)
UNIT_BEHIND = re.compile(
    rf"(?:\s*((?:(?:square|cubic)\s+)?(?:units?|{'|'.join(w for w in NAMES if len(w) > 3)}|cm|km|mm)))?[\s*.!]*"
)
DIGITS = re.compile(r"\d+(?:\.\d+)?")
FURTHER = re.compile(
    r"(?i),?\s*\(?(?:so|thus|hence|therefore|making|totall?ing|for a total of|which (?:makes|gives|means))\b[^.\n]{0,60}?(\d+(?:\.\d+)?)(?![\d%/])[^\d.\n=]{0,30}\.?\s*$"
    r"|[^.\n]{0,40}?\b(\d+(?:\.\d+)?)\s(?:\w+ )?(?:in total|altogether|total|in all|overall|combined)\b",
)
EMPHASIS = re.compile(r"\*\*|__")
LONGEST_VALUE = 200  # characters before `is the answer`


def labelled_answers(tail: str) -> Iterator[Candidate]:
    """What stands behind labels, and before them; of a label in another label's words, the inner one."""
    found = [*answers_behind_labels(tail), *answers_before_labels(tail)]
    found.sort(key=lambda one: (one.start, one.end))
    for one, following in zip_longest(found, found[1:]):
        if following is None or following.start >= one.end:
            yield one


def answers_behind_labels(tail: str) -> Iterator[Candidate]:
    """Answer: 18, the answer is 18, #### 18."""
    for found in list(LABEL.finditer(tail))[-MAX_CANDIDATES:]:
        at = len(tail) - len(tail[found.end() :].lstrip())
        line = tail[at : at + MAX_ANSWER + 1].partition("\n")[0]
        display = tail.startswith((r"\[", "$$"), at)
        inside, length = first_statement(tail[at : at + MAX_ANSWER] if display else line)
        inside = stated_number(inside)
        if BOX.sub("", inside).strip(" $*_.,:{}\"'`") and not NEGATED.match(inside):
            mark = "####" if found[0] == "####" else "answer"
            yield Candidate(start=found.start(), end=at + len(line), text=inside, mark=mark, stop=at + length)


def answers_before_labels(tail: str) -> Iterator[Candidate]:
    """18 is the answer."""
    for found in list(IS_ANSWER.finditer(tail))[-MAX_CANDIDATES:]:
        at = max(0, found.start() - LONGEST_VALUE)
        if value := VALUE.search(tail[at : found.start()]):
            yield Candidate(start=at + value.start(), end=found.end(), text=matched_formula(value), mark="answer")


def stated_number(sentence: str) -> str:
    """What a sentence with one number says of it, from the number on; any other text as it is."""
    found = SAYS.fullmatch(EMPHASIS.sub("", sentence))
    return sentence if found is None or is_retracted(found.string, *found.span("said"), "number") else found["said"]


def matched_formula(found: re.Match[str]) -> str:
    """The text of a match of FORMULA or VALUE, without its delimiters."""
    return next(text for name, text in found.groupdict().items() if name in "abcd" and text is not None)


def first_statement(line: str) -> tuple[str, int]:
    """What a label labels, and where it ends: the formula that follows unless the answer goes on behind it, else all up to
    the sentence's end."""
    skipped = filler.end() if (filler := FILLER.match(line)) else 0
    line = line[skipped:]
    if (found := MATH.match(line)) and not GOES_ON.match(found["rest"]) and not is_changed_by(found["rest"]):
        return matched_formula(found), skipped + found.start("rest")
    if verdict := VERDICT.match(line):
        return verdict[1], skipped + verdict.end(1)
    ended = SENTENCE_END.search(line)
    text = line[: ended.start()] if ended and not continues_to_other_number(line, ended.start()) else line
    if text.count("}") > text.count("{"):  # of JSON
        text = text.rstrip(" }")
    if text.count(")") > text.count("(") + text.count("["):
        text = text.rstrip(" )")
    return text.strip("\"'`*_ “”"), skipped + len(text)


def continues_to_other_number(line: str, at: int) -> bool:
    """Whether the sentence that is cut at `at` goes on to another number: 50 each, so 100."""
    first, further = DIGITS.search(line[:at]), FURTHER.match(line, at)
    if first is None or further is None:
        return False
    return rational_value(first[0]) != rational_value(further[1] or further[2])


def concluding_formulas(tail: str) -> Iterator[Candidate]:
    """The formula that ends the last line, or a message that is nothing but an answer."""
    start, line = last_answer_line(tail)
    if BOX.search(line):
        return
    where = CONDITION.search(line, max(0, len(line) - LONGEST_TAIL))
    if where and re.search(FORMULA, line[: where.start()]):
        line = line[: where.start()]
    *_, last = [None, *re.finditer(FORMULA, line)]
    if last is not None:
        before, unit = line[: last.start()], UNIT_BEHIND.fullmatch(line, last.end())
        if unit and (not before.strip(" *") or CONCLUDES.search(before)):
            text = matched_formula(last) + (rf"\text{{ {unit[1]}}}" if unit[1] else "")
            yield Candidate(start=start + last.start(), end=start + last.end(), text=text)
    elif start == 0 and ONLY.fullmatch(line.strip(" .*`")) and is_answer_alone(line):
        option = OPTION.fullmatch(line)
        yield Candidate(start=0, end=len(line), text=option[1] if option else line.strip("* `"))


def is_answer_alone(line: str) -> bool:
    """Whether a message of one line is no sentence: a formula, one word, a number in words, an option."""
    if re.match(r"(?i)\W*(?:so|thus|hence|then|it)\b", line):
        return False
    one_word = " " not in line.strip() or not WORD.search(line)
    return one_word or value_of_words(line.strip(" .")) is not None or OPTION.fullmatch(line) is not None
