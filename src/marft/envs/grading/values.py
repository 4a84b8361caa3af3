"""When two single values are equal, as far as letters and exact numbers decide it."""

from __future__ import annotations

import re
from fractions import Fraction

from marft.envs.grading.exact import decimals, equal_sides, is_decimal, number, rounded
from marft.envs.grading.latex import key
from marft.envs.grading.shape import Group, Leaf, Shape, is_name

ROUNDED_FROM = 2  # a gold with so many decimal places may be the rounding of an exact fraction
WORD = re.compile(r"[A-Za-z][A-Za-z'\- ]+[A-Za-z]")
BASE = re.compile(r"(-?[0-9A-Z]+)\s*_\s*\{?(\d+)\}?")  # 4343_6: the base is part of the number
PRODUCT = 3  # so many letters may still be a product of variables


def cheap(gold: Leaf, answer: Leaf) -> bool | None:
    """Whether `answer` equals `gold`; None: only algebra can tell."""
    if not gold.text or not answer.text or different_units(gold.unit, answer.unit):
        return False
    if gold.name and answer.name:
        if key(gold.name) != key(answer.name):
            return False if is_name(gold.name) and is_name(answer.name) else None
    elif gold.name and not (is_name(gold.name) or is_number(gold.name)):
        return False  # an equation is no value
    elif not named(answer):
        return False  # 5 = 3, 2x = 3
    if key(gold.text) == key(answer.text):
        return gold.unit == answer.unit or "percent" not in (gold.unit, answer.unit) or is_number(gold.text)
    value = number(gold.text)
    if value is None and (gold.words or spelled(gold) or spelled(answer)):
        return letters(gold.text) == letters(answer.text)
    if written := BASE.fullmatch(gold.text):
        other = BASE.fullmatch(answer.text)
        return other is not None and written.groups() == other.groups()
    if value is not None:
        return equal_numbers(gold, value, answer)
    if len(gold.text) == 1 == len(answer.text):
        return False
    return None


def equal_numbers(gold: Leaf, value: Fraction, answer: Leaf) -> bool:
    other = number(answer.text)
    if other is None:  # a number has to be written out
        return False
    one_percent = (gold.unit == "percent") != (answer.unit == "percent")
    if one_percent:  # 50% is 50 with its unit left out, and it is 0.5
        shares = (value / 100, other) if gold.unit == "percent" else (value, other / 100)
        if shares[0] == shares[1]:
            return True
    if value == other:
        return True
    places = decimals(gold.text)
    may_round = not is_decimal(other) and not one_percent  # a decimal that meant the gold would say it
    return places is not None and places >= ROUNDED_FROM and may_round and rounded(other, places) == value


def different_units(gold: str, answer: str) -> bool:
    return bool(gold and answer and gold != answer)


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
    if isinstance(shape, Group):
        items = [render(item) for item in shape.items]
        if shape.kind in ("list", "union"):
            items.sort()
        return f"{shape.kind}: {', '.join(items)}"
    if not named(shape):
        return f"{key(shape.name)}={key(shape.text)}"
    value = number(shape.text)
    if value is not None:
        return f"{value}%" if shape.unit == "percent" else str(value)
    return letters(shape.text) if shape.words or spelled(shape) else key(shape.text)


def named(leaf: Leaf) -> bool:
    """Whether what stands left of `=` does not change the value: a name, or the same number again."""
    return not leaf.name or is_name(leaf.name) or equal_sides(leaf.name, leaf.text)
