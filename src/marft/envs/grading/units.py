r"""Units behind an answer: `5\text{ cm}`, `12 apples`, `90°`, `50%`.

A unit that one side leaves out does not matter; two known units that differ do.
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
POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}


def split_unit(text: str, is_number: bool = False) -> tuple[str, str]:
    """The text without its unit, and the unit in one spelling ("" for none or an unknown word).

    Plain words are units behind a bare number, or when they are known: `2xy` keeps its letters.
    """
    if found := SIGN.search(text):
        return text[: found.start()].strip(), NAMES[found[1]]
    if (found := IN_TEXT.search(text)) and text[: found.start()].strip():
        return text[: found.start()].strip(), unit_name(found[1], found[2])
    found = BEHIND_NUMBER.search(text)
    if found is None or not (rest := text[: found.start()].strip()):
        return text, ""
    name = unit_name(found[1], None)
    separate = text[: found.start(1)].endswith(" ")
    long_word = len(found[1].split()[0].strip(".")) > 2 and separate
    if (is_number and (long_word or (name and separate))) or (name and name.split("^")[0] not in SHORT):
        return rest, name
    return text, ""


def unit_name(words: str, power: str | None) -> str:
    found = ""
    for word in re.split(r"[ ^{}⟫]+", words.lower().replace(".", "")):
        power = POWERS.get(word, power)
        found = found or NAMES.get(word, "")
    if not power and (raised := re.search(r"\^\s*\{?([23])", words)):
        power = raised[1]
    return f"{found}^{power}" if found and power else found
