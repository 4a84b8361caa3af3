"""When two single values are equal, as far as letters and exact numbers decide it."""

from __future__ import annotations

import re
from fractions import Fraction

from marft.envs.grading.clock import minutes
from marft.envs.grading.exact import decimals, equal_sides, is_decimal, number, rounded
from marft.envs.grading.latex import key
from marft.envs.grading.measure import UNKNOWN, Measure
from marft.envs.grading.numerals import SCALES
from marft.envs.grading.shape import Group, Leaf, Shape, is_name
from marft.envs.grading.units import converted, kind_of

ROUNDED_FROM = 2  # a gold with so many decimal places may be the rounding of an exact fraction
WORD = re.compile(r"[A-Za-z][A-Za-z'\- ]+[A-Za-z]")
BASE = re.compile(r"\(?(-?[0-9A-Z]+)\)?_\{?\(?(\d+)\)?\}?")  # 4343_6: the base is part of the number
RATIO = re.compile(r"\d[\d.]*(?:\s*(?::|\bto\b)\s*\d[\d.]*)+")  # 3:4, 3 to 4
HOUR = re.compile(r"\d{1,2}(?::\d{2})?")
PRODUCT = 3  # so many letters may still be a product of variables


def cheap(gold: Leaf, answer: Leaf, measure: Measure = UNKNOWN) -> bool | None:
    """Whether `answer` equals `gold`; None: only algebra can tell."""
    if not gold.text or not answer.text:
        return False
    if gold.name and answer.name:
        if key(gold.name) != key(answer.name):
            return False if is_name(gold.name) and is_name(answer.name) else None
    elif gold.name and not (is_name(gold.name) or is_number(gold.name)):
        return False  # an equation is no value
    elif not named(answer):
        return False  # 5 = 3, 2x = 3
    if (time := minutes(gold.text, gold.unit)) is not None:
        return same_time(gold, time, answer)
    if RATIO.fullmatch(gold.text) and RATIO.fullmatch(answer.text):
        return terms(gold.text) == terms(answer.text) and gold.unit == answer.unit
    if key(gold.text) == key(answer.text) and gold.unit == answer.unit:
        return True
    value = number(gold.text)
    if value is None and (gold.words or spelled(gold) or spelled(answer)):
        return letters(gold.text) == letters(answer.text)
    if written := BASE.fullmatch(key(gold.text)):
        return same_base((written[1], written[2]), answer, measure)
    if value is not None:
        return equal_numbers(gold, value, answer, measure)
    if different_units(gold, answer, measure):
        return False
    if key(gold.text) == key(answer.text):
        return "percent" not in (gold.unit, answer.unit)
    if len(gold.text) == 1 == len(answer.text):
        return False
    return None


def terms(ratio: str) -> list[Fraction | None]:
    return [number(term) for term in re.split(r"\s*(?::|to)\s*", ratio)]


def same_time(gold: Leaf, time: int, answer: Leaf) -> bool:
    """Where one side leaves out am and pm, the clock's face decides."""
    other = minutes(answer.text, answer.unit)
    if other is None and (not gold.unit or not HOUR.fullmatch(answer.text)):
        return False
    if answer.unit not in ("am", "pm", "") or not (gold.unit or ":" in gold.text or gold.words):
        return key(gold.text) == key(answer.text) and answer.unit == gold.unit
    if other is None:
        return key(gold.text) == key(answer.text)
    unsaid = other if gold.unit else time
    return other == time or (bool(gold.unit) != bool(answer.unit) and other % 720 == time % 720 and unsaid < 780)


def same_base(written: tuple[str, str], answer: Leaf, measure: Measure) -> bool:
    """The base is part of a number, unless the task names it."""
    other = BASE.fullmatch(key(answer.text))
    if other is None:
        return written[1] in measure.bases and bare_digits(answer.text) == bare_digits(written[0])
    return bare_digits(written[0]) == bare_digits(other[1]) and written[1] == other[2]


def bare_digits(text: str) -> str:
    return re.sub(r"[\s()]", "", text).upper()


def equal_numbers(gold: Leaf, value: Fraction, answer: Leaf, measure: Measure) -> bool:
    if (written := BASE.fullmatch(key(answer.text))) and written[2] == "10":
        return number(written[1]) == value
    other = number(answer.text)
    if other is None:  # a number has to be written out
        return False
    if (gold.unit == "percent") != (answer.unit == "percent"):
        return equal_percents(gold, value, answer, other, measure)
    if different_units(gold, answer, measure):
        factor = converted(answer.unit, gold.unit) if gold.unit else None
        return factor is not None and other * factor == value
    if value == other:
        return True
    if measure.scale and other == value * SCALES[measure.scale]:
        return True
    places = decimals(gold.text)
    may_round = not is_decimal(other)  # a decimal that meant the gold would say it
    return places is not None and places >= ROUNDED_FROM and may_round and rounded(other, places) == value


def equal_percents(gold: Leaf, value: Fraction, answer: Leaf, other: Fraction, measure: Measure) -> bool:
    """One side has the sign: 50% is 0.5; it is 50 with its sign left out only where a percentage is asked for."""
    if answer.unit and gold.unit:
        return False
    if gold.unit == "percent":
        return other in (value, value / 100)
    if measure.percent:
        return other == value
    return other == value * 100 or (measure.percent is None and other == value and abs(value) > 1)


def different_units(gold: Leaf, answer: Leaf, measure: Measure) -> bool:
    if gold.unit and answer.unit:
        return gold.unit != answer.unit and not (
            kind_of(gold.unit) == "money" and answer.unit.startswith(f"{gold.unit}/")
        )
    return bool(answer.unit) and not measure.allows(answer.unit)


def is_number(text: str) -> bool:
    return number(text) is not None


def spelled(leaf: Leaf) -> bool:
    """Whether a value is a word of a language and no product of variables."""
    return len(leaf.text) > PRODUCT and WORD.fullmatch(leaf.text) is not None


def letters(text: str) -> str:
    bare = re.sub(r"[.()'\"{}]", "", key(text))
    return bare if len(bare) == 1 else bare.casefold()


def render(shape: Shape) -> str:
    """Canonical text: equal answers mostly have equal text."""
    if isinstance(shape, Group) and shape.kind == "same":
        return render(shape.items[0])
    if isinstance(shape, Group):
        items = [render(item) for item in shape.items]
        if shape.kind in ("list", "union"):
            items.sort()
        return f"{shape.kind}: {', '.join(items)}"
    if not named(shape):
        return f"{key(shape.name)}={key(shape.text)}"
    if shape.unit in ("am", "pm") and (time := minutes(shape.text, shape.unit)) is not None:
        return f"{time // 60:02}:{time % 60:02}"
    if written := BASE.fullmatch(key(shape.text)):
        return f"{bare_digits(written[1])}_{written[2]}"
    value = number(shape.text)
    if value is not None:
        return f"{value}%" if shape.unit == "percent" else str(value)
    return letters(shape.text) if shape.words or spelled(shape) else key(shape.text)


def named(leaf: Leaf) -> bool:
    """Whether what stands left of `=` does not change the value: a name, or the same number again."""
    return not leaf.name or is_name(leaf.name) or equal_sides(leaf.name, leaf.text)
