"""Whether two answers are equal, as far as letters and exact numbers decide it, and the canonical text of an answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction

from marft.envs.grading.answer_structure import Compound, Leaf, Structure, is_name
from marft.envs.grading.latex_normalization import comparison_key
from marft.envs.grading.number_words import SCALES
from marft.envs.grading.rationals import computed_value, decimal_places, is_decimal, rational_value, round_half_up
from marft.envs.grading.requested_unit import UNKNOWN, RequestedUnit
from marft.envs.grading.times_of_day import minutes_since_midnight
from marft.envs.grading.units import conversion_factor, dimension

Verdict = bool | None  # None: only algebra can tell

ROUNDED_FROM = 2  # a gold with so many decimal places may be the rounding of an exact fraction
WORD = re.compile(r"[A-Za-z][A-Za-z'\- ]+[A-Za-z]")
BASE = re.compile(r"\(?(-?[0-9A-Z]+)\)?_\{?\(?(\d+)\)?\}?")  # 4343_6: the base is part of the number
RATIO = re.compile(r"\d[\d.]*(?:\s*(?::|\bto\b)\s*\d[\d.]*)+")  # 3:4, 3 to 4
HOUR = re.compile(r"\d{1,2}(?::\d{2})?")
PRODUCT = 3  # so many letters may still be a product of variables


# --- structures -------------------------------------------------------------------------------------------------------
def structures_equal(gold: Structure, answer: Structure, equal: Callable[[Leaf, Leaf], Verdict]) -> Verdict:
    """Whether two structures are equal, by `equal` for single values."""
    if isinstance(answer, Compound) and answer.kind == "same":
        verdicts = [structures_equal(gold, item, equal) for item in answer.items]
        return True if True in verdicts else None if None in verdicts else False
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return equal(gold, answer)
    if isinstance(gold, Leaf) or isinstance(answer, Leaf):
        return False
    if gold.kind == "()" and (point := point_of_names(answer)):
        answer = point
    if gold.kind != answer.kind or len(gold.items) != len(answer.items):
        return False
    if gold.kind not in ("list", "union"):
        return all_equal(structures_equal(g, a, equal) for g, a in zip(gold.items, answer.items, strict=True))
    left = list(answer.items)

    def taken(item: Structure) -> Verdict:
        verdicts = [structures_equal(item, other, equal) for other in left]
        if True in verdicts:
            del left[verdicts.index(True)]
            return True
        return None if None in verdicts else False

    return all_equal(taken(item) for item in gold.items)


def point_of_names(answer: Compound) -> Compound | None:
    """`x = 3, y = 4` as the point (3, 4), in its names' order; None for any other list."""
    named = {item.name: item for item in answer.items if isinstance(item, Leaf) and re.fullmatch("[a-z]", item.name)}
    if answer.kind != "list" or len(named) != len(answer.items):
        return None
    return Compound(kind="()", items=tuple(replace(named[name], name="") for name in sorted(named)))


def all_equal(verdicts: Iterable[Verdict]) -> Verdict:
    """False as soon as one is, None where one is not decided."""
    undecided = False
    for verdict in verdicts:
        if verdict is False:
            return False
        undecided |= verdict is None
    return None if undecided else True


# --- single values ----------------------------------------------------------------------------------------------------
def values_equal(gold: Leaf, answer: Leaf, requested: RequestedUnit = UNKNOWN) -> Verdict:
    """Whether the value `answer` equals `gold` where the prompt asks for `requested`."""
    if not gold.text or not answer.text:
        return False
    if gold.name and answer.name:
        if comparison_key(gold.name) != comparison_key(answer.name):
            return False if is_name(gold.name) and is_name(answer.name) else None
    elif gold.name and not (is_name(gold.name) or is_number(gold.name)):
        return False  # an equation is no value
    elif not has_neutral_name(answer):
        return False  # 5 = 3, 2x = 3
    if (time := minutes_since_midnight(gold.text, gold.unit)) is not None:
        return equal_times(gold, time, answer)
    if RATIO.fullmatch(gold.text) and RATIO.fullmatch(answer.text):
        return ratio_terms(gold.text) == ratio_terms(answer.text) and gold.unit == answer.unit
    alike = comparison_key(gold.text) == comparison_key(answer.text)
    if alike and gold.unit == answer.unit:
        return True
    value = rational_value(gold.text)
    if value is None and (gold.words or is_word(gold) or is_word(answer)):
        return folded_letters(gold.text) == folded_letters(answer.text)
    if based := digits_and_base(gold):  # the base is part of a number, unless the task names it
        if digits_and_base(answer) is None:
            return based[1] in requested.bases and digits_only(answer.text) == based[0]
        return based == digits_and_base(answer)
    if value is not None:
        return equal_numbers(gold, value, answer, requested)
    if units_differ(gold, answer, requested):
        return False
    if alike:
        return "percent" not in (gold.unit, answer.unit)
    return False if len(gold.text) == 1 == len(answer.text) else None


def ratio_terms(ratio: str) -> list[Fraction | None]:
    """The numbers of a ratio such as `3:4`."""
    return [rational_value(term) for term in re.split(r"\s*(?::|to)\s*", ratio)]


def equal_times(gold: Leaf, time: int, answer: Leaf) -> bool:
    """Whether `answer` is the gold's time; where one side leaves out am and pm, the clock's face decides."""
    other = minutes_since_midnight(answer.text, answer.unit)
    if other is None and (not gold.unit or not HOUR.fullmatch(answer.text)):
        return False
    if answer.unit not in ("am", "pm", "") or not (gold.unit or ":" in gold.text or gold.words):
        return comparison_key(gold.text) == comparison_key(answer.text) and answer.unit == gold.unit
    if other is None:
        return comparison_key(gold.text) == comparison_key(answer.text)
    unsaid = other if gold.unit else time
    return other == time or (bool(gold.unit) != bool(answer.unit) and other % 720 == time % 720 and unsaid < 780)


def digits_and_base(leaf: Leaf) -> tuple[str, str] | None:
    """The digits and the base of a number such as `22_6`, None for any other value."""
    found = BASE.fullmatch(comparison_key(leaf.text))
    return (digits_only(found[1]), found[2]) if found else None


def digits_only(text: str) -> str:
    """Digits without spaces and brackets."""
    return re.sub(r"[\s()]", "", text).upper()


def equal_numbers(gold: Leaf, value: Fraction, answer: Leaf, requested: RequestedUnit) -> bool:
    """Whether `answer` is the number `value` of the gold: exactly, in another unit, or rounded as the gold is."""
    if (based := digits_and_base(answer)) and based[1] == "10":
        return rational_value(based[0]) == value
    other = rational_value(answer.text)
    if other is None:  # a number has to be written out
        return False
    if (gold.unit == "percent") != (answer.unit == "percent"):
        return equal_percents(gold, value, answer, other, requested)
    if units_differ(gold, answer, requested):
        factor = conversion_factor(answer.unit, gold.unit) if gold.unit else None
        return factor is not None and other * factor == value
    if value == other or (requested.scale and other == value * SCALES[requested.scale]):
        return True
    places = decimal_places(gold.text)
    may_round = places is not None and places >= ROUNDED_FROM and not is_decimal(other)  # a decimal would say it
    return may_round and round_half_up(other, places or 0) == value


def equal_percents(gold: Leaf, value: Fraction, answer: Leaf, other: Fraction, requested: RequestedUnit) -> bool:
    """One side has the sign: 50% is 0.5; it is 50 with its sign left out only where a percentage is asked for."""
    if answer.unit and gold.unit:
        return False
    if gold.unit == "percent":
        return other in (value, value / 100)
    if requested.percent:
        return other == value
    return other == value * 100 or (requested.percent is None and other == value and abs(value) > 1)


def units_differ(gold: Leaf, answer: Leaf, requested: RequestedUnit) -> bool:
    """Whether both name a unit and not the same, or only the answer names one and it is not what is asked for."""
    if gold.unit and answer.unit:
        rate = dimension(gold.unit) == "money" and answer.unit.startswith(f"{gold.unit}/")
        return gold.unit != answer.unit and not rate
    return bool(answer.unit) and not requested.allows(answer.unit)


def is_number(text: str) -> bool:
    """Whether a text is a written number."""
    return rational_value(text) is not None


def is_word(leaf: Leaf) -> bool:
    """Whether a value is a word of a language and no product of variables."""
    return len(leaf.text) > PRODUCT and WORD.fullmatch(leaf.text) is not None


def folded_letters(text: str) -> str:
    """A word's letters without case and quotes; a single letter keeps its case."""
    bare = re.sub(r"[.()'\"{}]", "", comparison_key(text))
    return bare if len(bare) == 1 else bare.casefold()


def has_neutral_name(leaf: Leaf) -> bool:
    """Whether what stands left of `=` does not change the value: a name, or the same number again."""
    if not leaf.name or is_name(leaf.name):
        return True
    value = rational_value(leaf.text)
    return value is not None and value in (rational_value(leaf.name), computed_value(leaf.name))


def canonical_text(answer: Structure) -> str:
    """Canonical text: equal answers mostly have equal text."""
    if isinstance(answer, Compound):
        items = [canonical_text(item) for item in answer.items]
        if answer.kind == "same":
            return items[0]
        return f"{answer.kind}: {', '.join(sorted(items) if answer.kind in ('list', 'union') else items)}"
    if not has_neutral_name(answer):
        return f"{comparison_key(answer.name)}={comparison_key(answer.text)}"
    if answer.unit in ("am", "pm") and (time := minutes_since_midnight(answer.text, answer.unit)) is not None:
        return f"{time // 60:02}:{time % 60:02}"
    if based := digits_and_base(answer):
        return "_".join(based)
    value = rational_value(answer.text)
    if value is not None:
        return f"{value}%" if answer.unit == "percent" else str(value)
    return folded_letters(answer.text) if answer.words or is_word(answer) else comparison_key(answer.text)
