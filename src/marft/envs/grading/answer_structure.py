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
INTERVALS = ("()", "[]", "(]", "[)")
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
    while brackets_around(text) == "{}":
        text = text[1:-1].strip()
    text = BASED.sub(lambda found: f"{found[1]}_{{{BASES.get(found[2], found[2])}}}", text)
    text = interval_notation(text) or text
    text = POINT.sub("", MEMBER.sub("", text)).strip()
    if text.startswith(TEXT_OPEN) and text.find(TEXT_CLOSE) == len(text) - 1:
        inside = parse_structure(text[1:-1], depth + 1)
        return replace(inside, words=True) if isinstance(inside, Leaf) else inside
    if found := MATRIX.fullmatch(text) or FRAMED.fullmatch(text):
        rows = [row.split("&") for row in found[2].split(ROW) if row.strip()]
        if not rows or len({len(row) for row in rows}) > 1:
            return Leaf(text="")
        return make_compound(f"matrix {len(rows)}×{len(rows[0])}", [cell for row in rows for cell in row], depth)
    parts = split_outside_brackets(text, EITHER)
    if r"\infty" not in text or not all(brackets_around(part.strip()) in INTERVALS for part in parts):
        parts = [text]
    if len(parts) > 1 or len(parts := split_outside_brackets(text, UNION)) > 1:
        return make_compound("union", parts, depth)
    brackets = brackets_around(text)
    if brackets and not {"{", "}"} & set(brackets):
        if len(parts := split_outside_brackets(text[1:-1], SEPARATOR)) > 1:
            return make_compound("list" if brackets[0] == SET_OPEN else brackets, parts, depth)
        if brackets in ("()", "[]", SET_OPEN + SET_CLOSE) and text[1:-1].strip():
            return parse_structure(text[1:-1], depth + 1)
    if value_of_words(text) is not None:  # one hundred and five is no list
        return Leaf(text=text)
    text = THOUSANDS.sub(lambda found: re.sub("[, ]", "", found[0]), leading_words_as_digits(text))
    if twice := TWICE.fullmatch(text):  # eighteen (18)
        value, both = rational_value(twice[1]), (parse_leaf(twice[1]), parse_leaf(twice[2]))
        if value is not None and value in (rational_value(twice[2]), computed_value(twice[2])):
            text = twice[1]
        elif is_one_quantity(both):
            return Compound(kind="same", items=both)
    if len(parts := split_outside_brackets(text, SEPARATOR)) > 1 and not COUNTED.fullmatch(text):
        return make_compound("list", parts, depth)
    return parse_equation(text, depth)


def make_compound(kind: str, parts: list[str], depth: int) -> Structure:
    """Several values, lists in lists as one; a list that says one value twice is that value."""
    if len(parts) > MAX_ITEMS:
        return Leaf(text="")
    items = tuple(parse_structure(part, depth + 1) for part in parts)
    if kind != "list":
        return Compound(kind=kind, items=items)
    flat: list[Structure] = []  # x = 1, ±2 is a list of three
    for item in items:
        flat += item.items if isinstance(item, Compound) and item.kind == "list" else [item]
    values = {rational_value(item.text) if isinstance(item, Leaf) else None for item in flat}
    texts = {comparison_key(item.text) for item in flat if isinstance(item, Leaf)}
    if len(values) == 1 and None not in values and len(texts) == len(flat):  # 18, or eighteen
        return flat[0]
    return Compound(kind="same" if is_one_quantity(tuple(flat)) else "list", items=tuple(flat))


def is_one_quantity(items: tuple[Structure, ...]) -> bool:
    """Whether two values are one in two units: `90 minutes, 1.5 hours`, `3/4, 75%`."""
    pair = [(item.unit, rational_value(item.text)) for item in items if isinstance(item, Leaf)]
    if len(items) != 2 or len(pair) != 2:
        return False
    (unit, one), (other_unit, other) = pair
    if one is None or other is None or unit == other_unit:
        return False
    if {unit, other_unit} == {"percent", ""}:
        return one / (100 if unit else 1) == other / (100 if other_unit else 1)
    factor = conversion_factor(unit, other_unit)
    return factor is not None and one * factor == other


def parse_equation(text: str, depth: int) -> Structure:
    """A value with what stands left of `=`; steps in between are passed over, another equation is plain text."""
    name, value = "", text
    sides = [side.strip() for side in EQUALS.split(text)]
    if len(sides) > 1:
        sides = [side[1:-1].strip() if brackets_around(side) == "{}" else side for side in sides]
        name, value = sides[0], sides[-1]
        given = rational_value(name)
        if given is not None and rational_value(value) is None and computed_value(value) == given:
            value = name  # 18 = 9·2
        if not all(is_step(side, value) for side in sides[1:-1]):
            return Leaf(text=text)
        is_constant = STEP.fullmatch(name) and not re.search("[A-Za-z]", COMMAND.sub("", name))
        if is_constant and computed_value(name) is None and rational_value(value) is None:
            name = ""  # \\sqrt{1+4} = \\sqrt{5}
        inside = parse_structure(value, depth + 1)
        if isinstance(inside, Compound):
            return inside if not name or is_name(name) else Leaf(text=text)
    if 0 < len(EITHER_SIGN.findall(value)) <= MAX_SIGNS:
        return Compound(kind="list", items=tuple(replace(parse_leaf(way), name=name) for way in sign_choices(value)))
    return replace(parse_leaf(value), name=name)


def is_step(side: str, value: str) -> bool:
    r"""Whether a side may stand between a name and its value: `\sqrt{9+16}` in `d = \sqrt{9+16} = 5`; no other number."""
    computed = computed_value(side)
    if computed is not None:
        return rational_value(value) in (rational_value(side), computed)
    return STEP.fullmatch(side) is not None and (rational_value(value) is None or "\\" in side)


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
    """A single value and its unit."""
    text = text.strip().removeprefix("+").strip()
    head = re.match(r"[-+]?[\d.,/\s]*(?:\\frac\{\d+\}\{\d+\})?", text)
    value, unit = split_unit(text, is_number=head is not None and rational_value(head[0]) is not None)
    return Leaf(text=value, unit=unit)


def sign_choices(text: str) -> Iterator[str]:
    r"""The values that `\pm` and `\mp` stand for; with both of them the upper signs belong together."""
    signs, pieces = EITHER_SIGN.findall(text), EITHER_SIGN.split(text)
    upper = "".join("+" if sign == r"\pm" else "-" for sign in signs)
    lower = upper.translate(str.maketrans("+-", "-+"))
    for way in (upper, lower) if r"\mp" in signs else product("+-", repeat=len(signs)):
        yield pieces[0] + "".join(sign + piece for sign, piece in zip(way, pieces[1:], strict=True))


def brackets_around(text: str) -> str:
    """The brackets that the first character opens and only the last one closes; empty where there are none."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in OPENING) - (character in CLOSING)
        if depth == 0:
            return text[0] + text[-1] if 0 < place == len(text) - 1 else ""
    return ""


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


def leaves(answer: Structure) -> Iterator[Leaf]:
    """The single values of an answer."""
    if isinstance(answer, Leaf):
        yield answer
    else:
        for item in answer.items:
            yield from leaves(item)
