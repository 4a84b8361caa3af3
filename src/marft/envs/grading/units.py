r"""Units behind an answer: `5\text{ cm}`, `12 apples`, `90°`, `50%`.

A unit that one side leaves out does not matter; two known units that differ do, unless one converts into the other. A
word that makes it another value is no unit: `5 million`, `5 squared`, `5 less than six`, `5 doubled`.
"""

from __future__ import annotations

import re
from fractions import Fraction

from marft.envs.grading.latex_normalization import TEXT_CLOSE, TEXT_OPEN
from marft.envs.grading.number_words import PARTS, SCALE, SMALL
from marft.envs.grading.retraction import REFUSED

UNITS = """
cm        length   1/100    cm cms centimeter centimeters centimetre centimetres
mm        length   1/1000   mm millimeter millimeters millimetre millimetres
m         length   1        m meter meters metre metres
km        length   1000     km kms kilometer kilometers kilometre kilometres
in        length   0.0254   in inch inches
ft        length   0.3048   ft foot feet
yd        length   0.9144   yd yard yards
mi        length   1609.344 mi mile miles
ms        time     1/1000   millisecond milliseconds
s         time     1        s sec secs second seconds
min       time     60       min mins minute minutes
h         time     3600     h hr hrs hour hours
day       time     86400    day days
week      time     604800   week weeks
fortnight time     1209600  fortnight fortnights
month     calendar 1        month months
year      calendar 12       year years yr yrs
decade    calendar 120      decade decades
century   calendar 1200     century centuries
dollar    money    1        dollar dollars usd bucks
cent      money    1/100    cent cents ¢ penny pennies
nickel    money    1/20     nickel nickels
dime      money    1/10     dime dimes
euro      money    -        euro euros eur €
pound     money    -        gbp £ quid
yen       money    -        yen jpy ¥
degree    angle    -        degree degrees °
radian    angle    -        radian radians rad
percent   -        -        percent % pct
mg        mass     1/1000   mg milligram milligrams
g         mass     1        g gram grams
kg        mass     1000     kg kgs kilogram kilograms kilo kilos
t         mass     1000000  ton tons tonne tonnes
lb        weight   16       lb lbs pound pounds
oz        weight   1        oz ounce ounces
ml        volume   1/1000   ml milliliter milliliters millilitre millilitres
l         volume   1        l liter liters litre litres
gal       capacity 8        gallon gallons
qt        capacity 2        quart quarts
pt        capacity 1        pint pints
mph       speed    -        mph
kmh       speed    -        kph kmh
am        clock    -        am
pm        clock    -        pm
"""  # name, group of units that convert into each other, size, spellings
ROWS = [row.split() for row in UNITS.strip().splitlines()]
NAMES = {word: unit for unit, _, _, *words in ROWS for word in words}
GROUPS = {unit: group for unit, group, *_ in ROWS if group != "-"}
SIZES = {unit: Fraction(size) for unit, _, size, *_ in ROWS if size != "-"}
DIMENSIONS = {"calendar": "time", "weight": "mass", "capacity": "volume"}  # of groups: months are a time, too
SHORT = {"m", "s", "h", "g", "in", "mi", "l", "am", "t"}  # read as units only inside \text or behind a bare number
WORDS = rf"[A-Za-z°¢€£¥][A-Za-z°./'’ -]*(?:{TEXT_CLOSE}?\s*\^\s*\{{?[23]\}}?)?"
IN_TEXT = re.compile(rf"\s*{TEXT_OPEN}\s*[-,(]?\s*({WORDS})\)?\s*{TEXT_CLOSE}?\s*(?:\^\s*\{{?([23])\}}?)?$")
BEHIND_NUMBER = re.compile(rf"(?<=[\d}}.)])\s*-?({WORDS})$")
PART_OF = re.compile(r"of (?:the|an?|all|them|it|his|her|their)\b")
SIGN = re.compile(r"\s*([°%¢€£¥])$")
BEFORE = re.compile(r"^(-?)\s*(?:([€£¥])|(?:USD?|EUR|GBP|INR|Rs\.?|₹)\s)\s*(?=[\d.])")
HALF = re.compile(rf"(?<=\d)\s*{TEXT_OPEN}?\s*([aApP])\.?\s?[mM]\.?\s*{TEXT_CLOSE}?$")  # of a day
ORDINAL = re.compile(rf"(?<=\d)\s*(?:\^\s*\{{?\s*)?{TEXT_OPEN}?\s*(?:st|nd|rd|th)\s*{TEXT_CLOSE}?\s*\}}?(?![A-Za-z])")
RATE = re.compile(r"\s*([a-z]+)\s*(?:per|/)\s*([a-z]+)\s*$")
POWERS = {"square": "2", "sq": "2", "squared": "2", "cubic": "3", "cu": "3", "cubed": "3"}
NUMERALS = (
    rf"{'|'.join(SMALL)}|tens|(?:{SCALE})(?:s|th|ths)?|(?:{'|'.join(PARTS)})s?|\w*illions?|googols?|(?:\w+-?)?folds?"
    r"|(?:milli|micro|nano|mega|giga|tera|centi|deci)s?|per (?:mille|hundred|thousand|million)|grand|reams?|bn|mn|mils?|mln"
    r"|bln|tn|couples?|pairs?|trios?|quartets?"
)
OPERATORS = (
    "plus|minus|times(?!\\s*$)|less|fewer|more(?!\\s+[a-z]+s\\s*$)|than|divided|multiplied|modulo|mod|factorials?|choose|power|root|reciprocal"
    "|sin|cos|tan|ln|log|exp|negative|below|above|doubled?|doubles|halved|tripled?|quadrupled|quintupled|twice|thrice"
    "|negated|inverted|increased|decreased|reduced|incremented|decremented|added|subtracted|raised|lowered|rounded"
    "|(?<!left )over|under|by|to the|or so|upwards?|odd(?!\\s+[a-z])|ish|something|and change|and counting|at most|at least|tops|max(?:imum)?|minimum"
    "|approx|approximately|roughly|about|maybe|perhaps|possibly|or (?:more|less|fewer)|short|off|plus or minus|give or take|repeating|recurring|upside|backwards|reversed|swapped|flipped|in (?:binary|hex\\w*|octal)"
)
DENIALS = (
    rf"no|not|never|neither|nor|isn|isn't|aren't|wasn't|can't|cannot|won't|is|was|if|unless|except|but|{REFUSED[5:-3]}"
)
ANOTHER_VALUE = rf"(?i:{NUMERALS}|{OPERATORS}|{DENIALS})\b"
MULTIPLE = rf"(?i:{NUMERALS}|squared|cubed|factorial)\b(?!-)"
LETTERS = "(?:[b-fi-ln-rt-zKMBG]|a$)"  # a variable, or K and M for thousands and millions; g, h, m and s are units
# A phrase up to the last word that makes it another value; `5 feet squared` has a unit, `5 squared` has none.
CHANGED = re.compile(rf"(?:.*\b{ANOTHER_VALUE})?\s*(?:(?:(?i:squared|cubed)|{LETTERS})\b)?", re.DOTALL)
# A lone word that says what is done to a number or thought of it, and names nothing that is counted.
VERBAL = re.compile(
    r"(?i)(?!(?:qed|indeed|needed|required|used|left|red|bed|seed|weed|sled|colou?red|sold|added|speed|total(?:ed)?|remaining|earned|saved"
    r"|spent|traveled|travelled|walked|read|eaten|baked|picked|planted|collected|only|exactly|precisely|altogether|daily"
    r"|weekly|monthly|yearly|hourly|family|monopoly|ring|king|string|wing|building|painting|drawing|evening|morning|meeting"
    r"|reading|serving|shilling|sibling|duckling|crossing|missing|standing|spring|sing|filling|sting|swing)$)"
    r"[a-z]+(?:ed|ly|ing|able|ible|ish|wise|less)$",
)
AT_ONCE = re.compile(
    rf"\s*-?\s*(?:{MULTIPLE}|(?i:(?:less|more|fewer|greater|other|higher|lower)\s+than|plus|minus|times(?!\s+(?:a|per|as|more)|[\s.$]*$)"
    rf"|divided|multiplied|modulo|mod|factorial|choose|percent|per ?cent|or (?:so|more|less|fewer)|and (?:a|counting|change)"
    rf"|doubled|halved|tripled|squared|cubed|raised|to the|ish|something|at (?:most|least)|give or take|too (?:many|few)"
    rf"|repeating|recurring|negated|short of|off)\b)"
)


def is_changed_by(rest: str) -> bool:
    """Whether prose behind a number makes it another value: `5 lakh`, `5 less than six`, `5 doubled.`"""
    if AT_ONCE.match(rest):
        return True
    if re.match(
        r"\s*[-+*/=]\s*\d*[a-z]\b|\s+[a-z]+ (?:or (?:so|more|less|fewer)|at (?:most|least)|give or take)\b", rest
    ):
        return True
    alone = re.match(r"\s+([A-Za-z]+)\s*[.!]*\s*$", rest)
    return alone is not None and VERBAL.match(alone[1]) is not None


def split_unit(text: str, is_number: bool = False) -> tuple[str, str]:
    r"""The text without its unit, and the unit in one spelling ("" for none or an unknown word).

    Plain words are units behind a bare number, or when they are known: `2xy` keeps its letters. Words in \text are none
    behind other words or a bare name, unless they are known. Words that make it another value stay with the text.
    """
    text = ORDINAL.sub("", text).strip()
    if found := HALF.search(text):
        return text[: found.start()].strip(), f"{found[1].lower()}m"
    if found := BEFORE.match(text):
        return f"{found[1]}{text[found.end() :]}", NAMES.get(found[2] or "usd", "")
    if found := SIGN.search(text):
        return text[: found.start()].strip(), NAMES[found[1]]
    if (found := IN_TEXT.search(text)) and (before := text[: found.start()].strip()):
        name = unit_name(found[1], found[2])
        is_unit = bool(name) or (TEXT_OPEN not in before and re.search(r"\d|\\(?:pi|sqrt|frac)", before) is not None)
    elif (found := BEHIND_NUMBER.search(text)) and text[: found.start()].strip():
        name = unit_name(found[1], None)
        separate = text[: found.start(1)].endswith((" ", "-"))
        long_word = len(found[1].split()[0].strip(".")) > 2 or PART_OF.match(found[1]) is not None
        is_unit = is_number and separate and (long_word or bool(name))
        is_unit = is_unit or (bool(name) and name.split("^")[0] not in SHORT)
    else:
        return text, ""
    if not is_unit or VERBAL.match(found[1].strip()):
        return text, name if is_unit else ""
    changed = CHANGED.match(found[1])
    end = found.start(1) + changed.end() if changed and changed.end() else found.start()
    return text[:end].rstrip(" -").strip(), name


def unit_name(words: str, power: str | None) -> str:
    """The unit that words name, as `cm`, `m^2` or `dollar/h`; empty for none that is known."""
    found = ""
    lower = words.lower().replace(".", "")
    if re.match(r"\s*(?:miles?|mi)\s*(?:per|an|/)\s*(?:hours?|h)", lower):
        return "mph"
    if re.match(r"\s*(?:km|kilomet\w+)\s*(?:per|an|/)\s*(?:hours?|h)", lower):
        return "kmh"
    if re.search(r"\bper\b(?! ?cent)|/", lower):
        rate = RATE.match(lower)
        return f"{NAMES[rate[1]]}/{NAMES[rate[2]]}" if rate and rate[1] in NAMES and rate[2] in NAMES else ""
    for word in re.split(r"[ ^{}⟫-]+", lower.replace("per cent", "percent")):
        power = POWERS.get(word, power)
        found = found or NAMES.get(word, "")
    if not power and (raised := re.search(r"\^\s*\{?([23])", words)):
        power = raised[1]
    return f"{found}^{power}" if found and power else found


def conversion_factor(one: str, other: str) -> Fraction | None:
    """How many of `other` one of `one` is; None where they do not convert."""
    (first, _, power), (second, _, same) = one.partition("^"), other.partition("^")
    if first not in SIZES or second not in SIZES or GROUPS[first] != GROUPS[second] or power != same:
        return None
    return (SIZES[first] / SIZES[second]) ** int(power or 1)


def dimension(unit: str) -> str:
    """What a unit measures: length, time, money …; squares and cubes of lengths are kinds of their own."""
    if "/" in unit:
        return "speed" if dimension(unit.partition("/")[0]) == "length" else unit
    name, _, power = unit.partition("^")
    group = GROUPS.get(name, name)
    return DIMENSIONS.get(group, group) + power
