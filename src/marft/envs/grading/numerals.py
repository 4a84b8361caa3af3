"""Numbers in words: `eighteen`, `minus two thirds`, `2.5 million`, `5 lakh`, `three and a half`."""

from __future__ import annotations

import re
from fractions import Fraction

UNITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SMALL = {word: n for n, word in enumerate(UNITS)} | {word: 10 * n for n, word in enumerate(TENS, 2)}
SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "quadrillion": 10**15,
    "lakh": 10**5, "lac": 10**5, "crore": 10**7, "dozen": 12, "score": 20, "gross": 144, "myriad": 10**4,
}  # fmt: skip
PARTS = {
    "half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12, "twentieth": 20, "hundredth": 100, "thousandth": 1000,
}  # fmt: skip
BASES = {word: n for word, n in SMALL.items() if 2 <= n <= 16}
SCALE = "|".join(SCALES)
SCALED = re.compile(rf"([-+]?(?:\d+(?:\.\d*)?|\.\d+))(?:({SCALE})s?)", re.I)
WORDS = re.compile(r"[a-z]+(?:[- ]+[a-z]+){0,12}")
LONGEST = 120  # characters


def in_words(text: str) -> Fraction | None:
    """The value of a number in words, or of a number with a scale behind it."""
    if len(text) > LONGEST:
        return None
    text = re.sub(r"[⟪⟫]", " ", text).strip()
    if found := SCALED.fullmatch(text.replace(" ", "")):
        return Fraction(found[1]) * SCALES[found[2].lower()]
    text = re.sub(r"(thousand|million|billion), ", r"\1 ", text.lower())
    if not WORDS.fullmatch(text):
        return None
    one, chance, among = (re.sub(" (?:in|out of) (?:an? |every )?", " in ", text)).partition(" in ")
    if chance:
        part_of, of = sum_of(re.split(r"[- ]+", one)), sum_of(re.split(r"[- ]+", among))
        return part_of / of if part_of is not None and of else None
    words = re.split(r"[- ]+", text)
    if words[0] in ("minus", "negative"):
        value = sum_of(words[1:])
        return None if value is None else -value
    return sum_of(words)


def leading_words(text: str) -> str:
    """A value whose number is in words, with digits: `eighteen apples` is `18 apples`."""
    if len(text) > LONGEST or not text[:1].isalpha():
        return text
    words = list(re.finditer(r"[A-Za-z]+", text))
    for count in range(min(len(words), 12), 0, -1):
        head, rest = text[: words[count - 1].end()], text[words[count - 1].end() :]
        if words[count - 1][0].lower() == "and" or (value := in_words(head)) is None:
            continue
        if not re.match(r"\s*[A-Za-z⟪]|\s+\(", rest):
            return text
        whole_number = value.denominator == 1
        return f"{value}{rest}" if whole_number else rf"\frac{{{value.numerator}}}{{{value.denominator}}}{rest}"
    return text


def sum_of(words: list[str]) -> Fraction | None:
    """`three and a half` is a whole and a part, `one hundred and five` is a whole number."""
    if not words or words in (["a"], ["an"]):
        return None
    if (last := part(words[-1])) is None:
        return whole(words)
    rest = words[:-1]
    if "and" in rest:
        at = len(rest) - 1 - rest[::-1].index("and")
        before, count = whole(rest[:at]), whole(rest[at + 1 :] or ["a"])
    else:
        before, count = Fraction(0), whole(rest or ["a"])
    return None if before is None or count is None else before + count / last


def part(word: str) -> int | None:
    return PARTS.get(word) or (PARTS.get(word[:-1]) if word.endswith("s") else None)


def whole(words: list[str]) -> Fraction | None:
    """Words such as `two hundred and five thousand`; numbers that do not form one, such as `five six`, are None."""
    if words in (["a"], ["an"]):
        return Fraction(1)
    total, current, room = 0, 0, 10**18  # `room`: the size that the next word has to stay below
    started = False
    for word in words:
        if word == "and" and started:
            continue
        if word in SMALL and SMALL[word] < room and (SMALL[word] or not started):
            current += SMALL[word]
            room = 10 if SMALL[word] >= 20 else 1
        elif (scale := SCALES.get(word)) and (started or word not in ("dozen", "score", "gross", "myriad")):
            if scale == 100:
                current, room = (current or 1) * 100, 100
            else:
                total, current, room = total + (current or 1) * scale, 0, min(1000, scale)
        elif word == "a" and not started:
            current, room = 0, 10**18
        else:
            return None
        started = True
    return Fraction(total + current) if started else None
