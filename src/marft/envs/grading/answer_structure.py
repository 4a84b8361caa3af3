"""The structure of an answer: a single value, a list, a tuple or interval, a union or a matrix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from marft.envs.grading.intervals import interval_notation
from marft.envs.grading.latex_normalization import ROW, SET_CLOSE, SET_OPEN, TEXT_CLOSE, TEXT_OPEN, comparison_key
from marft.envs.grading.number_words import BASES, leading_words_as_digits, value_of_words
from marft.envs.grading.rationals import computed_value, rational_value
from marft.envs.grading.units import ANOTHER_VALUE, conversion_factor, split_unit

MAX_DEPTH = 8  # of brackets in brackets; deeper ones are read as plain text
MAX_ITEMS = 64
MAX_SIGNS = 3  # of ± in one value

OPENING, CLOSING = f"([{{{SET_OPEN}", f")]}}{SET_CLOSE}"
SEPARATOR = re.compile(r"[,;]\s*(?:(?:and|or)(?![A-Za-z]))?|(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])")
EITHER = re.compile(r"(?<![\\A-Za-z])or(?![A-Za-z])")
UNION = re.compile(r"\\cup(?![A-Za-z])")
EQUALS = re.compile(r"(?<![<>!:=])=(?!=)")
MEMBER = re.compile(r"^[A-Za-z]\s*\\in(?![A-Za-z])")
WORDED = re.compile(rf"{TEXT_OPEN}\s*([A-Za-z][A-Za-z ]{{2,40}}){TEXT_CLOSE}")
POINT = re.compile(r"^[A-Z]\s*(?=\([^()]*,[^()]*\)$)")  # P(3,4)
COMMAND = re.compile(r"\\[A-Za-z]+")
STEP = re.compile(
    r"(?:[\w\s.+*/^(){}|!°'-]|\\(?:frac|sqrt|pi|cdot|sin|cos|tan|log|ln|binom|pm)(?![A-Za-z])){1,120}", re.ASCII
)
TWICE = re.compile(r"([^()]{1,40}?)\s*\(([^()]{1,40})\)")
COUNTED = re.compile(r"\d[\d.]* [a-z]{3,} and (?!more|some|change|counting|half|not)[a-z]{3,}")  # 42 boys and girls
THOUSANDS = re.compile(r"(?<![\d,.])(?:\d{1,3}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+)(?![\d,])")
MATRIX = re.compile(r"\\begin\{((?:[pbB]|small)?matrix)\}(.*)\\end\{\1\}", re.S)
FRAMED = re.compile(r"[(\[]\s*\\begin\{((?:small)?matrix)\}(.*)\\end\{\1\}\s*[)\]]", re.S)
# (22)_6, 22_{\text{six}}, 22 (base 6) are 22_{6}
BASED = re.compile(
    rf"^[({{]?(-?[\dA-Z]+)[)}}]?\s*(?:_\s*\{{?\s*{TEXT_OPEN}?\(?\s*|{TEXT_OPEN}?\s*\(?\s*(?:in\s+)?base\s*{TEXT_CLOSE}?\s*)"
    rf"({'|'.join(BASES)}|\d+)\s*\)?{TEXT_CLOSE}?\s*\}}?\)?{TEXT_CLOSE}?$"
)
EITHER_SIGN = re.compile(r"\\(?:pm|mp)(?![A-Za-z])")
GREEK = "alpha|beta|gamma|delta|epsilon|eta|theta|kappa|lambda|mu|nu|rho|sigma|tau|phi|varphi|psi|omega|Delta"
SYMBOL = rf"(?:[A-Za-z]|[A-Z]{{2}}|\\(?:{GREEK}))(?:_(?:\w|\{{[\w,]{{1,5}}\}}))?'*"
CALL = rf"{SYMBOL}(?:\^\{{-1\}})?(?:\([-+.,/^{{}}\w]{{1,12}}\))?"
NAME = re.compile(
    rf"{CALL}|\({CALL}(?:,{CALL})+\)|\\(?:vec|overline|hat|bar)\{{{SYMBOL}\}}|m?\\angle(?:{SYMBOL}|[A-Z]{{3}})|\|{SYMBOL}\|"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One value as written; `name` is what stood left of `=`, `words` says that it stood in \\text{…}."""

    text: str
    name: str = ""
    unit: str = ""
    words: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compound:
    """Several values: kind `list` (in any order), `union` (in any order), brackets such as `(]`, or a matrix's shape; `same`
    is one value in several units."""

    kind: str
    items: tuple[Structure, ...]


Structure = Leaf | Compound


def parse_structure(text: str, depth: int = 0) -> Structure:
    """The structure of a cleaned answer."""
    text = text.strip().removeprefix("+").strip()
    if depth > MAX_DEPTH:
        return Leaf(text=text)
    while is_enclosed(text, "{", "}"):
        text = text[1:-1].strip()
    text = BASED.sub(lambda found: f"{found[1]}_{{{BASES.get(found[2], found[2])}}}", text)
    if (intervals := interval_notation(text)) is not None:
        text = intervals
    text = POINT.sub("", MEMBER.sub("", text)).strip()
    if text.startswith(TEXT_OPEN) and text.find(TEXT_CLOSE) == len(text) - 1:
        inside = parse_structure(text[1:-1], depth + 1)
        return replace(inside, words=True) if isinstance(inside, Leaf) else inside
    if found := MATRIX.fullmatch(text) or FRAMED.fullmatch(text):
        return parse_matrix(found[2], depth)
    if (
        r"\infty" in text
        and len(parts := split_outside_brackets(text, EITHER)) > 1
        and all(is_bracketed(part) for part in parts)
    ):
        return make_compound("union", parts, depth)
    if len(parts := split_outside_brackets(text, UNION)) > 1:
        return make_compound("union", parts, depth)
    for opening, closing in product(f"([{SET_OPEN}", f")]{SET_CLOSE}"):
        if is_enclosed(text, opening, closing):
            inside_text = text[1:-1]
            if len(parts := split_outside_brackets(inside_text, SEPARATOR)) > 1:
                return make_compound("list" if opening == SET_OPEN else opening + closing, parts, depth)
            if opening + closing in ("()", "[]", SET_OPEN + SET_CLOSE) and inside_text.strip():
                return parse_structure(inside_text, depth + 1)
    if value_of_words(text) is not None:  # one hundred and five is no list
        return Leaf(text=text)
    text = THOUSANDS.sub(lambda found: re.sub("[, ]", "", found[0]), leading_words_as_digits(text))
    if (
        (twice := TWICE.fullmatch(text))
        and rational_value(twice[1]) is not None
        and rational_value(twice[1]) in (rational_value(twice[2]), computed_value(twice[2]))
    ):
        text = twice[1]  # eighteen (18)
    elif twice and is_one_quantity(both := (parse_leaf(twice[1]), parse_leaf(twice[2]))):
        return Compound(kind="same", items=both)
    if len(parts := split_outside_brackets(text, SEPARATOR)) > 1 and not COUNTED.fullmatch(text):
        return make_compound("list", parts, depth)
    return parse_equation(text, depth)


def make_compound(kind: str, parts: list[str], depth: int) -> Structure:
    if len(parts) > MAX_ITEMS:
        return Leaf(text="")
    items = tuple(parse_structure(part, depth + 1) for part in parts)
    if kind == "list":  # x = 1, ±2 is a list of three
        items = tuple(i for item in items for i in (item.items if is_list(item) else (item,)))  # type: ignore[union-attr]
        values = {rational_value(item.text) if isinstance(item, Leaf) else None for item in items}
        texts = {comparison_key(item.text) for item in items if isinstance(item, Leaf)}
        if len(values) == 1 and None not in values and len(texts) == len(items):  # 18, or eighteen
            return items[0]
        if is_one_quantity(items):
            return Compound(kind="same", items=items)
    return Compound(kind=kind, items=items)


def is_one_quantity(items: tuple[Structure, ...]) -> bool:
    """Whether two values are one in two units: `90 minutes, 1.5 hours`, `3/4, 75%`."""
    if len(items) != 2:
        return False
    first, second = items
    if not (isinstance(first, Leaf) and isinstance(second, Leaf)):
        return False
    one, other = rational_value(first.text), rational_value(second.text)
    if one is None or other is None or first.unit == second.unit:
        return False
    if "percent" in (first.unit, second.unit) and "" in (first.unit, second.unit):
        return one / (100 if first.unit else 1) == other / (100 if second.unit else 1)
    factor = conversion_factor(first.unit, second.unit)
    return factor is not None and one * factor == other


def is_bracketed(text: str) -> bool:
    return any(is_enclosed(text.strip(), opening, closing) for opening, closing in product("([", ")]"))


def is_list(shape: Structure) -> bool:
    return isinstance(shape, Compound) and shape.kind == "list"


def parse_matrix(inside: str, depth: int) -> Structure:
    rows = [row.split("&") for row in inside.split(ROW) if row.strip()]
    if not rows or len({len(row) for row in rows}) > 1:
        return Leaf(text="")
    return make_compound(f"matrix {len(rows)}×{len(rows[0])}", [cell for row in rows for cell in row], depth)


def parse_equation(text: str, depth: int) -> Structure:
    name, value = "", text
    sides = [side.strip() for side in EQUALS.split(text)]
    if len(sides) > 1:
        sides = [side[1:-1].strip() if is_enclosed(side, "{", "}") else side for side in sides]
        name, value = sides[0], sides[-1]
        if (
            rational_value(name) is not None
            and rational_value(value) is None
            and computed_value(value) == rational_value(name)
        ):
            value = name  # 18 = 9·2
        if not all(is_step(side, value) for side in sides[1:-1]):
            return Leaf(text=text)
        if len(sides) > 1 and is_constant(name) and rational_value(value) is None:
            name = ""  # \\sqrt{1+4} = \\sqrt{5}
        inside = parse_structure(value, depth + 1)
        if isinstance(inside, Compound):
            return inside if not name or is_name(name) else Leaf(text=text)
    if 0 < len(EITHER_SIGN.findall(value)) <= MAX_SIGNS:
        return Compound(kind="list", items=tuple(replace(parse_leaf(way), name=name) for way in sign_choices(value)))
    return replace(parse_leaf(value), name=name)


def is_step(side: str, value: str) -> bool:
    r"""Whether a side may stand between a name and its value: `\sqrt{9+16}` in `d = \sqrt{9+16} = 5`; no other number."""
    worked_out = computed_value(side)
    if worked_out is not None:
        return rational_value(value) in (rational_value(side), worked_out)
    return STEP.fullmatch(side) is not None and (rational_value(value) is None or "\\" in side)


def is_constant(text: str) -> bool:
    return (
        computed_value(text) is None
        and STEP.fullmatch(text) is not None
        and not re.search("[A-Za-z]", COMMAND.sub("", text))
    )


def is_name(text: str) -> bool:
    r"""Whether what stands left of `=` names the value: `x`, `x_1`, `AB`, `f(x)`, `\theta`, `(x,y)`, `\text{Total}`."""
    if worded := WORDED.fullmatch(text.strip()):
        return re.search(rf"\b{ANOTHER_VALUE}", worded[1]) is None
    return NAME.fullmatch(comparison_key(text)) is not None and not names_are_swapped(comparison_key(text))


def names_are_swapped(name: str) -> bool:
    """Whether a tuple names its places in another order than they come in: `(y,x)`."""
    letters = name.strip("()").split(",")
    apart = [ord(letter) for letter in letters if len(letter) == 1]
    return 1 < len(apart) == len(letters) and apart != sorted(apart) and max(apart) - min(apart) == len(set(apart)) - 1


def parse_leaf(text: str) -> Leaf:
    text = text.strip().removeprefix("+").strip()
    head = re.match(r"[-+]?[\d.,/\s]*(?:\\frac\{\d+\}\{\d+\})?", text)
    is_number = head is not None and rational_value(head[0]) is not None
    value, unit = split_unit(text, is_number)
    return Leaf(text=value, unit=unit)


def sign_choices(text: str) -> Iterator[str]:
    signs, pieces = EITHER_SIGN.findall(text), EITHER_SIGN.split(text)
    upper = ["+" if sign == r"\pm" else "-" for sign in signs]
    lower = ["-" if sign == r"\pm" else "+" for sign in signs]
    together = r"\mp" in signs  # then upper signs belong together
    for way in (upper, lower) if together else product("+-", repeat=len(signs)):
        yield pieces[0] + "".join(sign + piece for sign, piece in zip(way, pieces[1:], strict=True))


def is_enclosed(text: str, opening: str, closing: str) -> bool:
    """Whether the first character opens a bracket that only the last one closes."""
    if len(text) < 2 or text[0] != opening or text[-1] != closing:
        return False
    depth = 0
    for place, character in enumerate(text):
        depth += (character in OPENING) - (character in CLOSING)
        if depth == 0:
            return place == len(text) - 1
    return False


def split_outside_brackets(text: str, separator: re.Pattern[str]) -> list[str]:
    """The parts between separators that stand in no bracket."""
    inside = [0]
    for character in text:
        inside.append(max(0, inside[-1] + (character in OPENING) - (character in CLOSING)))
    parts, start = [], 0
    for found in separator.finditer(text):
        if inside[found.start()] == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def leaves(shape: Structure) -> Iterator[Leaf]:
    if isinstance(shape, Leaf):
        yield shape
    else:
        for item in shape.items:
            yield from leaves(item)
