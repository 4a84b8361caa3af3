"""Numbers in words: `eighteen`, `minus two thirds`, `2.5 million`, `5 lakh`, `three and a half`."""

from __future__ import annotations

import re
from fractions import Fraction

UP_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve"
    " thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
SMALL = {word: n for n, word in enumerate(UP_TO_NINETEEN.split())}
SMALL |= {word: 10 * n for n, word in enumerate(TENS.split(), 2)}
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
CHANCE = re.compile(r" (?:in|out of) (?:an? |every )?")  # one in a thousand
LONGEST = 120  # characters


def value_of_words(text: str) -> Fraction | None:
    """The value of a number in words, or of a number with a scale behind it."""
    if len(text) > LONGEST:
        return None
    text = re.sub(r"[⟪⟫]", " ", text).strip()
    if found := SCALED.fullmatch(text.replace(" ", "")):
        return Fraction(found[1]) * SCALES[found[2].lower()]
    text = re.sub(r"(thousand|million|billion), ", r"\1 ", text.lower())
    if not WORDS.fullmatch(text):
        return None
    first, *rest = CHANCE.split(text, maxsplit=1)
    negative = not rest and re.match("(?:minus|negative)[- ]+", first)
    value = mixed_value(first[negative.end() if negative else 0 :])
    below = mixed_value(rest[0]) if rest else Fraction(1)
    if value is None or not below:
        return None
    return -value if negative else value / below


def leading_words_as_digits(text: str) -> str:
    """A value whose number is in words, with digits: `eighteen apples` is `18 apples`."""
    if len(text) > LONGEST or not text[:1].isalpha():
        return text
    words = list(re.finditer(r"[A-Za-z]+", text))
    for word in reversed(words[:12]):
        head, rest = text[: word.end()], text[word.end() :]
        if word[0].lower() == "and" or (value := value_of_words(head)) is None:
            continue
        if not re.match(r"\s*[A-Za-z⟪]|\s+\(", rest):
            return text
        whole_number = value.denominator == 1
        return f"{value}{rest}" if whole_number else rf"\frac{{{value.numerator}}}{{{value.denominator}}}{rest}"
    return text


def mixed_value(text: str) -> Fraction | None:
    """`three and a half` is a whole and a part, `one hundred and five` is a whole number."""
    *words, last = re.split(r"[- ]+", text)
    below = PARTS.get(last) or PARTS.get(last.removesuffix("s"))
    if below is None:
        return None if text in ("a", "an") else whole_value([*words, last])
    at = len(words) - words[::-1].index("and") if "and" in words else 0  # where the part's count begins
    before = whole_value(words[: at - 1]) if at else Fraction(0)
    count = whole_value(words[at:] or ["a"])
    return None if before is None or count is None else before + count / below


def whole_value(words: list[str]) -> Fraction | None:
    """Words such as `two hundred and five thousand`; numbers that do not form one, such as `five six`, are None."""
    if words in (["a"], ["an"]):
        return Fraction(1)
    total, current, room = 0, 0, 10**18  # `room`: the size that the next word has to stay below
    for n, word in enumerate(words):
        if word == "and" and n:
            continue
        if word in SMALL and SMALL[word] < room and (SMALL[word] or not n):
            current += SMALL[word]
            room = 10 if SMALL[word] >= 20 else 1
        elif (scale := SCALES.get(word)) and (n or word not in ("dozen", "score", "gross", "myriad")):
            if scale == 100:
                current, room = (current or 1) * 100, 100
            else:
                total, current, room = total + (current or 1) * scale, 0, min(1000, scale)
        elif word != "a" or n:
            return None
    return Fraction(total + current) if words else None
