"""Whether the words around an answer take it back: `isn't 4`, `4 is wrong`, `at least 4`, `4, just kidding`."""

from __future__ import annotations

import re

WINDOW, MARGIN = 160, 40  # characters beside an answer that are looked at
SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n")
CLAUSE = re.compile(
    r"[,;:=]|\b(?:but|so|thus|hence|therefore|then|(?<!no )means|leaves|leaving|gives|giving|since|because)\b"
)
NOT = (
    r"(?:\b(?:not|never|cannot|neither|nor"
    r"|(?:is|are|was|were|ca|wo|do|does|did|could|would|should|must|has|have|had|might|need|ai)n['’]?t)\b|\w+n['’]t\b)"
)
NEGATED = rf"(?:{NOT}|\b(?:no|none|nobody|without|hardly|barely|scarcely)\b)"
REFUSED = (
    r"\b(?:wrong(?:ly)?|in(?:correct|accurate|valid)(?:ly)?|false(?:ly|hood)?|untrue|mistaken(?:ly)?|erroneous(?:ly)?"
    r"|impossible|unlikely|refute[ds]?|reject(?:ed|s)?|den(?:y|ied|ies)|exclude[ds]?|ruled? out|rules out|disprove[dns]?"
    r"|contradict(?:ed|s|ory|ion)?|discard(?:ed|s)?|dismiss(?:ed|es)?|eliminate[ds]?|a lie|nonsense|kidding|joking"
    r"|except(?:ing)?|unless|anything but|other than|(?:differ|differs|different|distinct) from|unequal to|lied|rather than|instead of|far from|nowhere near|opposite of|(?<!no )doubt(?:s|ful)?"
    r"|retract(?:ed)?|withdrawn?|disagrees?|fail(?:s|ed)?|absurd|bogus|misprint|typo|extraneous|nope|too (?:big|small|large|low|high|many|few|much|little))\b"
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
# The adjectives with which an answer is still this question's answer.
ADJECTIVES = (
    "final|correct|right|required|desired|exact|numerical|numeric|integer|complete|full|simplified|simplest|actual|true"
    "|real|only|unique|best|short|overall|ultimate|resulting|requested|computed|definitive"
)
CASES = r"[^.;]{0,80}\b(?:and|or|but)\s+\$?-?\d[\d.,]*\s+(?:when|for|if|in|on|with|otherwise|after)\b"  # 4 for Tom and 5 for Ann
RIGHTS = r"(?:work|hold|check out|answer|correct|right|true|solution|valid|it|possible|acceptable|accurate|result|so|one|value|case|what)"
# Another value that it could be as well, or what has to be left aside for it.
DOUBTED = (
    r"[^.;\n]{0,60}?(?:\b(?:could|might|may)(?: also| well| just| even| as well)* be\s+(?:an? )?[$\\(]*-?\d"
    r"|\b(?:once|when|after|if|assuming|provided)\b[^.;\n]{0,40}\b(?:forg[eo]t|ignor|neglect|disregard|omit|skip|pretend|leav(?:e|ing) out))"
)
# What takes an answer back: answers of which kind, the passage that is looked at, and what stands there.
RULES: dict[tuple[str, str], str] = {
    ("box label number", "behind"): (
        r"\A(?:"
        # 4 is wrong; 4 isn't right; 4, no wait; 4. Actually, 5; but not 4, not 5
        r"(?![\s$*]*(?:,\s*not|,?\s*(?:rather than|instead of))\s+[-$\\\d])"
        rf"(?:</\w+>)?(?:[\s$]*\\text\w*\s*\{{)?[\s$*_.,;:!?()\[\]{{}}\\\"'—–-]*(?:(?:but|and|or|is|was|are|were|be|that(?:['’]s| is| was)?|this is|which is|it['’]s"
        rf"|it is|wait|actually|hmm|no|oh|sorry|just|definitely|clearly|obviously|surely|certainly|also|totally|plainly|turns out"
        rf"|seems|looks|would be|has been|have been|must be|to be|all|quite|simply|i|we|they|those|people|am|i['’]m|was|do|does|did|can|could|will|leads? to|gives?|yields?|an?|here)[\s,.:!—-]+){{0,5}}"
        rf"(?:{NOT}\s*(?:(?:be|the|an?|my|our|your|actually|really|even|quite|final|at all)\s+){{0,3}}"
        rf"(?:{RIGHTS}\b|[.!?]|$)|(?!instead of|rather than|other than|except|unless){REFUSED}(?!\s+(?:that|to(?! me| us))\b)|(?:no|nope|not|never)[.!,)—]*\s*$"
        r"|(?:no|nope|wait)\b[,.!—]*\s+(?:no\b|wait|it['’]?s?\b|that|sorry|actually|hold on|scratch)|not really|scratch that"
        r"|(?:actually|correction|sorry|oops|whoops|rather|i mean|i meant|make (?:that|it)|no)[\s,:;.—-]+(?:\w+['’]?s?\s+){0,3}[-$\\]{0,3}\d"
        r"|on second thoughts?\b|out(?: of the question)?[\s.!]*$|my (?:first|initial|earlier) (?:guess|try|answer|attempt)"
        r"|until\b|before i\b|then (?:add|subtract|multipl|divid|doubl|halv|square)\w*)"
        rf"|[^.;]{{0,60}}\bbut\b[^.]{{0,40}}{REFUSED}"
        r"|[\s,]*unless\b"
        r"|[\s$,.;]*(?:it )?(?:does|do)(?:n['’]t| not) (?:satisfy|solve|qualify|fit)\b"
        # a new start behind an answer, unless it comes back to it
        r"|[\s.!*$)}\]]*(?:oops|whoops|wait|hold on|actually|correction|on second thoughts?|scratch that|i take (?:it|that) back)\b"
        r"(?!(?s:.*)\b(?:yes|correct|right|confirm\w*|match\w*|checks? out|still|indeed|same|good|fine|holds)\b)"
        # of others, or of a part of the answer: 24 is half of it, 24 is what a careless student would write, 24 according to Bob
        r"|[\s.*$)}\]]*(?:(?:is|was)\s+(?:only\s+)?(?:half(?!-)|twice|double|triple|a (?:third|quarter|part) of|(?:one|two|\d+) (?:less|more) than the (?:\w+ )?answer|the (?:number|value|price|amount) before)\b"
        r"|(?:is|was) what (?:\w+ ){0,4}(?:would|might|could)\b|was the \w+ before\b|or thereabouts"
        r"|,?\s*according to (?-i:[A-Z])\w+(?!['’])(?! (?:formula|theorem|rule|law|lemma)))"
        rf"|{DOUBTED}"
        r"|[\s$*]*[✗✘❌✖]"
        r")"
    ),
    ("box label number", "before"): (
        r"[✗✘❌✖].{0,3}\Z"
        r"|\b(?:were|was)(?:n['’]t| not) (?:for|so)\b.*\bwould\b|^\s*had\b.*\bwould\b|\bif\b.*\b(?:were(?! to)|had)\b.*(?:\bwould|['’]d) (?:be|have)\b(?! a)"
    ),
    ("box", "behind"): (
        r"\A(?:"
        r"[\s$)]*\?"
        r"|[\s$,]*(?:(?:plus|minus|times|divided by)\s+\$?\d+[\s$.]*(?:\n|\Z)|(?:doubled|tripled|halved|squared|cubed|negated|factorial)\b"
        r"|or (?:so|more|less|fewer|thereabouts)\b|at (?:most|least)\b|and (?:a half|counting|change|some)\b|give or take|-?ish\b)"
        r")"
    ),
    ("box", "before"): (
        rf"(?:{NEGATED}|\banything but|\bother than|\brather than|\binstead of|\bfar from|\bno longer|\\(?:neq?|neg|lnot)(?![A-Za-z])|¬"
        r"|≠|\\not\s*=|(?<![=<>-])(?<!nswer)[<>]|\\(?:lt|gt)(?![A-Za-z])|\ball but"
        r"|\b(?:rul(?:e|es|ed|ing) out|reject|exclud|eliminat|discard|dismiss|refut|disprov|den(?:y|ie)|doubt|avoid)\w*)"
        r"(?:\s*\b(?:be|is|equal(?:s| to)?|the|an?|answer|value|really|simply|just|exactly|actually|possibly|even|to|write|put|say|choose|box|pick)\b)*"
        r"(?:[\s$*\\(\[:=}]*|-)$"
        rf"|(?:{REFUSED}|{NOT} (?:true|the case))\s+that\b[^.;]{{0,40}}$"
        rf"|{NOT_MINE}(?:answer|guess|result|value|solution)s?\s*(?:is|was|would be|might be|are|:)?[\s$:*]*$"
    ),
    ("box", "margin"): (
        r"\b(?:e\.g\.|for instance|(?:answer )?format(?: is| should be)?|example of the format)[\s,:$]*$"
    ),
    ("label", "behind"): (
        r"\A(?:"
        r"\?"
        rf"|{CASES}"
        r")"
    ),
    ("label", "itself"): (
        r"\A(?:"
        rf"{CASES}"
        rf"|{DOUBTED}"
        r")"
    ),
    ("label", "before"): (
        # the second best answer, an obvious answer
        rf"\b(?:the|an?|my|our|your|his|her|their)\s+(?!(?:(?:{ADJECTIVES})\s+)+$)(?:(?!(?:the|an?|my|our|your)\b)[\w-]+\s+){{1,3}}$"
        rf"|{NOT_MINE}$"
        # one less than the answer is 4
        r"|(?<!value )\b(?:of|than|in|from|by|with|plus|minus|times|over|for|on|after|before|above|below|near) (?:the|my|our) (?:\w+ )?$"
        # I doubt that the answer is 4, unless a conclusion follows on the doubt
        r"|(?>"
        rf"{NEGATED}\s+(?:\w+\s+){{0,4}}?(?:true|case|correct|right|think|believe|say|claim|sure|certain|clear"
        rf"|likely|possible|way|chance|means|circumstances|mean|imply|follow|agree|conclude|accept|write|tell|suggest|state|pretend|answer|put)\b|(?<!\bno )\bdoubt|{REFUSED}"
        r"|\b(?:if|whether|suppose|supposing|assume|assuming|unless|imagine|pretend|nobody|hardly|were|trap|mistake|pitfall|tempting)\b"
        r"|\b(?:first|initial|previous|earlier|old|wrong) (?:guess|answer|thought)|\b(?:used|tempted|inclined|wanted) to\b"
        r"|\b(?:might|may|could|would) (?:\w+ ){0,2}(?:think|say|guess|believe|claim|assume|conclude|expect)\b|\bthought\b|\bnaive|^\W*(?:say|maybe|possibly|perhaps)\b"
        r"|\b(?!(?:i|we|would|d|can|could|to|and|must|may|us|me|now|also|then)\b)\w+ (?:says?|said|claim(?:s|ed)?|thinks?|believe[sd]?|argue[sd]?|insists?|told \w+)(?: that)?\s*(?:the\s*)?$"
        r")(?!.*(?:\b(?:then|but|so|thus|hence|therefore|means|conclude)\b|,))"
    ),
    ("number", "behind"): (
        r"\A(?:"
        r"[^.!?\n]{0,40},?\s(?:right|no|ok|okay|correct|yes)\?"
        r")"
    ),
    ("number", "before"): (
        r"\b(?:any|every|no)thing but\s+\$?$|\b(?:all|every|any|each)\b[^.,;]{0,40}\bbut\s+\$?$"
        rf"|{NOT_MINE}answer\b"
        r"|\banswer\s*(?:[-+*/^]\s*\d+\s*=|!=|<>)"
    ),
    ("number", "clause"): (
        # what is said of the answer, but not that it is that
        r"\banswer (?:to|for|of) (?:an?other|an? different|the (?:previous|other|last|first|next))\b|\banswer['’]s (?!\W*\d|\w+ly\b)\w|\banswer (?!(?:is|are|was|must|should|would|will|has to|comes|turns|works|equals|becomes|to|for|of|here|can only|gives|that|we"
        r"|in|key|choice|option|sheet|therefore|then|thus|as)\b)[a-z]|\b(?:it|that|this) (?:might|may|could) be\b"
        r"|\b(?:maybe|perhaps|possibly|might|tried|hypothetically|previously|formerly)\b|\bused to\b|\btempted\b|(?<![=-])>\s*$|!$"
        rf"|{NEGATED}|{REFUSED}|{COMPARED}\s+(?:the\s+)?\$?$|(?<![=-])[<>≤≥≠~]=?\s*$|\b(?:if|suppose|supposing|assume|whether|imagine|ignore|forget|disregard|mistake|trap|all \w+ but|rules?)\b"
        r"|\b(?:starts?|begins?|ends?) (?:with|in)\b|\b(?:divided|multiplied) by\s+\$?$|\b(?:contains?|includes?|has a factor of)\s+\$?$"
    ),
}
RULES_OF = {
    kind: [(passage, re.compile(pattern, re.I)) for (kinds, passage), pattern in RULES.items() if kind in kinds]
    for kind in ("box", "label", "number")
}
ROUGHLY = re.compile(r"(?:\b(?:around|roughly|approximately|about|circa)|[≈~])\s*\$?$", re.I)
IRREAL = re.compile(r"\s*(?:had|if|were|without|ignoring|otherwise|should)\b", re.I)


def is_retracted(tail: str, start: int, end: int, kind: str) -> bool:
    """Whether the answer of a `kind` (box, label, number, sentence) from `start` to `end` is taken back by what stands
    around it; whole sentences were judged when they were read."""
    if kind == "sentence":
        return False
    before = SENTENCE.split(tail[max(0, start - WINDOW) : start])[-1]
    passages = {
        "before": before,
        "clause": CLAUSE.split(before)[-1],
        "margin": tail[max(0, start - MARGIN) : start],
        "itself": tail[start:end],
        "behind": tail[end : end + WINDOW],
    }
    if any(pattern.search(passages[passage]) for passage, pattern in RULES_OF[kind]):
        return True
    if kind == "label":  # had he waited, the answer would be 4
        return IRREAL.match(before) is not None and re.search(r"\bwould\b", passages["itself"]) is not None
    return kind == "number" and ROUGHLY.search(passages["clause"]) is not None and "." not in passages["itself"]
