r"""Units behind an answer: `5\text{ cm}`, `12 apples`, `90°`, `50%`.

A unit that one side leaves out does not matter; two known units that differ do. A word that makes it another value is
no unit: `5 million`, `5 squared`, `5 less than six`.
"""

from __future__ import annotations

import re

from marft.envs.grading.latex import TEXT_CLOSE, TEXT_OPEN

KNOWN = {
    "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "s": "s sec second seconds",
    "min": "min minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years",
    "dollar": "dollar dollars usd",
    "cent": "cent cents",
    "euro": "euro euros",
    "degree": "degree degrees °",
    "percent": "percent %",
    "radian": "radian radians",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "lb": "lb lbs pound pounds",
    "oz": "oz ounce ounces",
    "l": "liter liters litre litres",
    "mph": "mph",
    "am": "am",
    "pm": "pm",
    "unit": "unit units",
}
NAMES = {word: unit for unit, words in KNOWN.items() for word in words.split()}
SHORT = {"m", "s", "h", "g", "in", "mi", "l", "am"}  # read as units only inside \text or behind a bare number
WORDS = rf"[A-Za-z°][A-Za-z°./ ]*(?:{TEXT_CLOSE}?\s*\^\s*\{{?[23]\}}?)?"
IN_TEXT = re.compile(rf"\s*{TEXT_OPEN}\s*({WORDS})\s*{TEXT_CLOSE}?\s*(?:\^\s*\{{?([23])\}}?)?$")
BEHIND_NUMBER = re.compile(rf"(?<=[\d}}.])\s*({WORDS})$")
SIGN = re.compile(r"\s*([°%])$")
POWERS = {"square": "2", "sq": "2", "squared": "2", "cubic": "3", "cu": "3", "cubed": "3"}
NUMERALS = (
    "zero|one|two|three|four|five|six|seven|eight|nine|tens?|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    "|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|(?:hundred|thousand|(?:m|b|tr|quadr)illion|dozen)(?:s|ths?)?"
    "|half|halves|thirds?|quarters?|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf)ths?"
)
OPERATORS = (
    "plus|minus|times|less|fewer|more|than|divided|multiplied|modulo|mod|factorials?|choose|power|root|reciprocal"
    "|sin|cos|tan|ln|log|exp|negative|below"
)
DENIALS = "no|not|never|neither|nor|isn|is|wrong|incorrect|false|unless|except"
ANOTHER_VALUE = rf"(?i:{NUMERALS}|{OPERATORS}|{DENIALS})\b"
MULTIPLE = rf"(?i:{NUMERALS}|squared|cubed|factorial)\b(?!-)"
LETTERS = "(?:[b-fi-ln-rt-zKMB]|a$)"  # a variable, or K and M for thousands and millions; g, h, m and s are units
# A phrase up to the last word that makes it another value; `5 feet squared` has a unit, `5 squared` has none.
CHANGED = re.compile(rf"(?:.*\b{ANOTHER_VALUE})?\s*(?:(?:(?i:squared|cubed)|{LETTERS})\b)?", re.DOTALL)


def split_unit(text: str, is_number: bool = False) -> tuple[str, str]:
    """The text without its unit, and the unit in one spelling ("" for none or an unknown word).

    Plain words are units behind a bare number, or when they are known: `2xy` keeps its letters.
    """
    if found := SIGN.search(text):
        return text[: found.start()].strip(), NAMES[found[1]]
    if (found := IN_TEXT.search(text)) and text[: found.start()].strip():
        return cut(text, found, unit_name(found[1], found[2]))
    found = BEHIND_NUMBER.search(text)
    if found is None or not text[: found.start()].strip():
        return text, ""
    name = unit_name(found[1], None)
    separate = text[: found.start(1)].endswith(" ")
    long_word = len(found[1].split()[0].strip(".")) > 2 and separate
    if (is_number and (long_word or (name and separate))) or (name and name.split("^")[0] not in SHORT):
        return cut(text, found, name)
    return text, ""


def cut(text: str, found: re.Match[str], name: str) -> tuple[str, str]:
    """The text before a unit; words that make it another value stay with it."""
    changed = CHANGED.match(found[1])
    end = changed.end() if changed else 0
    return text[: found.start(1) + end if end else found.start()].strip(), name


def unit_name(words: str, power: str | None) -> str:
    found = ""
    for word in re.split(r"[ ^{}⟫]+", words.lower().replace(".", "")):
        power = POWERS.get(word, power)
        found = found or NAMES.get(word, "")
    if not power and (raised := re.search(r"\^\s*\{?([23])", words)):
        power = raised[1]
    return f"{found}^{power}" if found and power else found
