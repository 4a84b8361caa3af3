"""Whether the words around an answer take it back: `isn't 4`, `4 is wrong`, `at least 4`, `4, just kidding`."""

from __future__ import annotations

import re

NOT = r"(?:\b(?:not|never|cannot|neither|nor)\b|\w+n['’]t\b)"
NEGATED = rf"(?:{NOT}|\bno\b|\bnone\b|\bnobody\b|\bwithout\b|\bhardly\b|\bbarely\b|\bscarcely\b)"
CONTRACTED = r"\b(?:is|are|was|were|ca|wo|do|does|did|could|would|should|must|has|have|had|might|need|ai)n['’]?t\b"
REFUSED = (
    r"\b(?:wrong(?:ly)?|in(?:correct|accurate|valid)(?:ly)?|false(?:ly|hood)?|untrue|mistaken(?:ly)?|erroneous(?:ly)?"
    r"|impossible|unlikely|refute[ds]?|reject(?:ed|s)?|den(?:y|ied|ies)|exclude[ds]?|ruled? out|rules out|disprove[dns]?"
    r"|contradict(?:ed|s|ory|ion)?|discard(?:ed|s)?|dismiss(?:ed|es)?|eliminate[ds]?|a lie|nonsense|kidding|joking"
    r"|except(?:ing)?|unless|anything but|other than|(?:differ|differs|different|distinct) from|unequal to|lied|rather than|instead of|far from|nowhere near|opposite of|(?<!no )doubt(?:s|ful)?"
    r"|retract(?:ed)?|withdrawn?|disagrees?|fails?|absurd|bogus|nope|too (?:big|small|large|low|high|many|few|much|little))\b"
)
COMPARED = (
    r"(?:\bat (?:least|most)|\b(?:less|more|fewer|greater|smaller|larger|bigger|higher|lower|other|better|worse) than"
    r"|\b(?:under|over|above|below|beyond|exceed(?:s|ing)?|up to|almost|nearly|between|minus|twice|half(?: of)?|doubles?"
    r"|triples?|thrice|times|plus|within|not quite|just short of|short of|close to|near|negative|no|half a|square root of"
    r"|root of|square of|cube of|reciprocal of|inverse of|factorial of|log of|about half of|upwards of|a multiple of"
    r"|multiples? of|divisible by|a factor of|divisor of|a power of|digits? of|modulo|mod))"
)
NOT_MINE = (
    r"\b(?:wrong|incorrect|false|bad|example|sample|previous|old|initial|first|tentative|their|his|her|twice|half|double|triple"
    r"|(?:negative|square|cube|root|digits?|opposite|reciprocal|part|half|double|inverse|multiple|factor|divisor) of)"
    r"\s+(?:the\s+|an?\s+|my\s+|our\s+)?(?:final\s+|correct\s+)?"
)
CLAUSE = re.compile(r"[,;:=]|\b(?:but|so|thus|hence|therefore|then|means|leaves|leaving|gives|giving|since|because)\b")
CLAIM = re.compile(
    rf"(?:{NEGATED}|{CONTRACTED})\s+(?:\w+\s+){{0,4}}?(?:true|case|correct|right|think|believe|say|claim|sure|certain|clear"
    rf"|likely|possible|mean|imply|follow|agree|conclude|accept)\b|(?<!\bno )\bdoubt|{REFUSED}"
    r"|\b(?:if|whether|suppose|supposing|assume|assuming|unless|imagine|pretend|nobody|hardly|were)\b"
    r"|\b(?:first|initial|previous|earlier|old|wrong) (?:guess|answer|thought)",
    re.I,
)
CONCLUSION = re.compile(r"\b(?:then|so|thus|hence|therefore|means|conclude)\b|,", re.I)
RIGHTS = r"(?:work|hold|check out|answer|correct|right|true|solution|valid|it|possible|acceptable|accurate|result|so|one|value|case)"
BEHIND = re.compile(
    rf"(?:</\w+>)?[\s$*_.,;:!?()\[\]{{}}\\\"'—–-]*(?:(?:but|and|or|is|was|are|were|be|that(?:['’]s| is| was)?|this is|which is|it['’]s"
    rf"|it is|wait|actually|hmm|no|oh|sorry|just|definitely|clearly|obviously|surely|certainly|also|totally|plainly|turns out"
    rf"|seems|looks|would be|has been|have been|must be|to be|all|quite|simply|i|we|am|i['’]m|was|do|does|did|can|could|will)[\s,.:!—-]+){{0,5}}"
    rf"(?:(?:{NOT}|{CONTRACTED})\s*(?:(?:be|the|an?|my|our|your|actually|really|even|quite|final|at all)\s+){{0,3}}"
    rf"(?:{RIGHTS}\b|[.!?]|$)|(?!instead of|rather than|other than|except|unless){REFUSED}(?!\s+(?:that|to)\b)|(?:no|nope|not|never)[.!,—]*\s*$"
    r"|(?:no|nope|wait)\b[,.!—]*\s+(?:no\b|wait|it['’]?s?\b|that|sorry|actually|hold on|scratch)|not really|scratch that)",
    re.I,
)
BEFORE_BOX = re.compile(
    rf"(?:{NEGATED}|{CONTRACTED}|\banything but|\bother than|\brather than|\binstead of|\bfar from|\bno longer|\\(?:neq?|neg|lnot)(?![A-Za-z])|¬"
    r"|≠|\\not\s*=)"
    r"(?:\s*\b(?:be|is|equal(?:s| to)?|the|an?|answer|value|really|simply|just|exactly|actually|possibly|even|to)\b)*"
    r"[\s$*\\(\[:=}]*$"
    rf"|(?:{REFUSED}|{NOT} (?:true|the case))\s+that\b[^.;]{{0,40}}$"
    rf"|{NOT_MINE}(?:answer|guess|result|value|solution)s?\s*(?:is|was|would be|might be|are|:)?[\s$:*]*$",
    re.I,
)
NUMBER_DENIED = re.compile(
    rf"{NEGATED}|{CONTRACTED}|{REFUSED}|{COMPARED}\s+(?:the\s+)?\$?$|(?<![=-])[<>≤≥≠~]=?\s*$|\b(?:if|suppose|supposing|assume|whether|imagine)\b"
    r"|\b(?:starts?|begins?|ends?) (?:with|in)\b|\b(?:contains?|includes?|has a factor of)\s+\$?$",
    re.I,
)
SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n")
WINDOW = 160  # characters before and behind an answer that are looked at


def denied(tail: str, start: int, end: int, kind: str) -> bool:
    """Whether the answer of a `kind` (box, label, number) from `start` to `end` is taken back by what stands around it."""
    before = SENTENCE.split(tail[max(0, start - WINDOW) : start])[-1]
    behind = tail[end : end + WINDOW]
    if kind == "label" and behind.startswith("?"):
        return True
    if BEHIND.match(behind) and not re.match(r"[\s$*]*,\s*(?:not|rather than|instead of)\s+[-$\\\d]", behind):
        return True
    if re.match(r"[^.;]{0,60}\bbut\b[^.]{0,40}" + REFUSED, behind, re.I):
        return True
    if kind == "box":
        return BEFORE_BOX.search(before) is not None
    if kind == "label":
        if re.search(NOT_MINE + "$", before, re.I):
            return True
        claim = list(CLAIM.finditer(before))
        return bool(claim) and not CONCLUSION.search(before, claim[-1].end())
    if re.search(r"\b(?:any|every|no)thing but\s+\$?$|\ball but\s+\$?$", before, re.I):
        return True
    if re.search(NOT_MINE + r"answer\b", before, re.I):
        return True
    clause = CLAUSE.split(before)[-1]
    return NUMBER_DENIED.search(clause) is not None
