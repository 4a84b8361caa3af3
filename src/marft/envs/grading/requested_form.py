"""The form a task asks for (simplify, factor, expand, compute, as a decimal …), and what in an answer is not in it.

An answer may leave undone only what the gold leaves undone as well.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache

from marft.envs.grading.answer_structure import Leaf
from marft.envs.grading.expression_parser import Tree, parse_expression
from marft.envs.grading.latex_normalization import without_spaces
from marft.envs.grading.rationals import DECIMAL, POWER, RATIO, SCIENTIFIC, SLASH, rational_value
from marft.envs.grading.tree_normalization import MINUS_ONE, reduced_tree, subtrees

FORMS = {
    form: re.compile(pattern, re.I)
    for form, pattern in {
        "simplify": r"\bsimplif\w+|\brationali[sz]\w*|\bsimplest\b|\b(?:reduce|combine)\b(?! the)|\blowest terms\b",
        "compute": r"\b(?:compute|evaluate|calculate|work out)\b|\bvalue of\b",
        "expand": r"\bexpand\b|\bmultiply out\b|\bexpanded form\b|\bexpansion of\b|\bexpress\b.{0,80}\bas a polynomial\b",
        "factor": r"(?:^|[.?!:,;\n]\s*|\b(?:to|and|please|then|fully|completely)\s+)factor(?:i[sz]e)?\s+(?!of|in\b|by)"
        r"|\bfactor(?:i[sz]e)? (?:fully|completely)\b|\bfactored form\b|\bfactori[sz]ation of\b|\bas a product\b",
        "decimal": r"\b(?:as|to|into|in|the)(?: an?)?(?: \w+){0,2} decimals?\b(?! places?)|\bdecimal (?:form|notation)\b",
        "fraction": r"\b(?:as|to|into|in)(?: an?)?(?: \w+){0,3} fractions?\b|\blowest terms\b|\bfractional form\b"
        r"|\bsimpl\w+ fraction",
        "mixed": r"\bmixed (?:number|numeral|fraction)s?\b",
        "improper": r"\bimproper fraction\b",
        "scientific": r"\bscientific notation\b",
        "conversion": r"\b(?:convert|change|rewrite|write|express|turn)\b",
    }.items()
}
CONVERSIONS = {"simplify", "decimal", "fraction", "mixed", "improper", "scientific", "conversion"}
ARITHMETIC = {"sum of numbers", "product of numbers", "power of a number", "unreduced", "function of a number"}
TREE_FAULTS = {
    "compute": ARITHMETIC,
    "simplify": ARITHMETIC | {"like terms", "repeated factor", "square in a root", "root below", "roots multiplied"},
    "expand": {"product of sums", "power of a sum", "like terms", "repeated factor", "sum of numbers", "product of numbers"},
    "factor": {"sum", "content"},
}  # fmt: skip
OVER_ONE = re.compile(r"(?:/|\}\{)\s*1\}?$")
VARIABLE = re.compile(r"[A-Za-z]'*|\\(?!pi|sin|cos|tan|binom|log|ln)\w+")
INTEGER = re.compile(r"-?\d{1,30}")
GIVEN = re.compile(r"(?<![\w.])\d{0,30}\.\d{1,30}(?![\w.]*\d)")
MAX_ROOT = 10**9  # under a root, for its square factors to be looked for


@lru_cache(maxsize=512)
def requested_forms(prompt: str) -> frozenset[str]:
    """The forms that a prompt asks for."""
    return frozenset(form for form, pattern in FORMS.items() if pattern.search(prompt))


def is_unfinished(said: Leaf, wanted: Leaf, prompt: str) -> bool:
    """Whether an answer leaves undone what the task asks for and the gold has done."""
    forms = requested_forms(prompt)
    if forms & {"decimal", "fraction"} and said.unit == "percent" != wanted.unit:
        return True
    if rational_value(said.text) is not None and rational_value(wanted.text) is not None:
        if number_faults(said.text, prompt) - number_faults(wanted.text, prompt):
            return True
        whole = DECIMAL.fullmatch(without_spaces(wanted.text)) and "." not in wanted.text
        quotient = bool(quotient_parts(said.text)) and not OVER_ONE.search(said.text)
        return bool(whole) and quotient and wanted.unit != "percent"  # 36/2 is not yet 18
    answer, gold = parse_expression(said.text), parse_expression(wanted.text)
    if not prompt or answer is None or gold is None:
        return False
    answer, gold = reduced_tree(answer), reduced_tree(gold)
    if "factor" in forms and factor_count(answer) < factor_count(gold):
        return True
    watched = {"function of a number"}.union(*(TREE_FAULTS[form] for form in forms & TREE_FAULTS.keys()))
    return bool((tree_faults(answer) - tree_faults(gold)) & watched)


def quotient_parts(text: str) -> tuple[str, ...]:
    """What stands above and below in a fraction; nothing for any other number, mixed ones included."""
    text = without_spaces(text)
    if (found := RATIO.fullmatch(text)) and not found[2]:
        return found.group(3, 4)
    return found.group(1, 2) if (found := SLASH.fullmatch(text)) else ()


def number_faults(text: str, prompt: str) -> set[str]:
    """What a written number is not, of the forms that are asked for."""
    forms, value, text = requested_forms(prompt), rational_value(text), without_spaces(text)
    quotient, ratio = quotient_parts(text), RATIO.fullmatch(text)
    mixed = ratio is not None and bool(ratio[2])
    whole = [int(part) for part in quotient if INTEGER.fullmatch(part)]
    return named_faults({
        "not reduced": forms & {"fraction", "simplify", "compute"} and quotient and (len(whole) < 2 or math.gcd(*whole) > 1),
        "power": forms & {"simplify", "compute", "expand", "decimal"} and POWER.fullmatch(text),
        "no decimal": "decimal" in forms and (quotient or mixed),
        "not mixed": "mixed" in forms and value is not None and value.denominator > 1 and not mixed,
        "mixed": "improper" in forms and mixed,
        "not scientific": "scientific" in forms and not SCIENTIFIC.fullmatch(text),
        "as it was given": forms & CONVERSIONS and is_given_decimal(text, prompt),
    })  # fmt: skip


def named_faults(faults: dict[str, object]) -> set[str]:
    """The names of those that hold."""
    return {name for name, holds in faults.items() if holds}


def is_given_decimal(text: str, prompt: str) -> bool:
    """Whether a decimal stands in the prompt."""
    if not DECIMAL.fullmatch(text) or "." not in text:
        return False
    return any(rational_value(found[0]) == rational_value(text) for found in GIVEN.finditer(prompt))


# --- trees ------------------------------------------------------------------------------------------------------------
def tree_faults(tree: Tree) -> set[str]:
    """Operations of a reduced tree that could still be carried out."""
    found = {"sum"} if tree[0] == "+" else set()
    for part in subtrees(tree):
        if isinstance(part, str):
            continue
        match part[0]:
            case "+":
                found |= sum_faults(part[1:])
            case "*":
                found |= product_faults(part[1:])
            case "^":
                found |= power_faults(part[1], part[2])
            case "call" | "!" | r"\binom" if not any(
                isinstance(x, str) and VARIABLE.fullmatch(x) for x in subtrees(part)
            ):
                found.add("function of a number")
    return found


def sum_faults(terms: tuple[Tree, ...]) -> set[str]:
    """What is left to do in a sum."""
    factors: list[tuple[Tree, ...]] = [tuple(term[1:]) if term[0] == "*" else (term,) for term in terms]
    kinds = Counter(tuple(sorted(repr(part) for part in parts if not is_rational(part))) for parts in factors)
    numbers = [integer_coefficient(parts) for parts in factors]
    return named_faults({
        "sum of numbers": kinds[()] > 1,
        "like terms": any(count > 1 for kind, count in kinds.items() if kind),
        "content": all(numbers) and math.gcd(*numbers) > 1,
    })  # fmt: skip


def integer_coefficient(factors: tuple[Tree, ...]) -> int:
    """The whole-number factor of a term; 0 where it has a denominator."""
    rational = [part for part in factors if is_rational(part)]
    return math.prod(abs(int(str(part))) if is_integer(part) else 0 for part in rational)


def is_integer(tree: Tree) -> bool:
    """Whether a tree is a whole number."""
    return isinstance(tree, str) and INTEGER.fullmatch(tree) is not None


def is_rational(tree: Tree) -> bool:
    """Whether a tree is a number or one over a number."""
    if isinstance(tree, str):
        return tree[0].isdigit() or tree == MINUS_ONE
    return tree[0] == "^" and tree[2] == MINUS_ONE and is_rational(tree[1])


def is_root(tree: Tree) -> bool:
    """Whether a tree is a root of a number."""
    if isinstance(tree, str) or tree[0] != "^" or not is_rational(tree[1]):
        return False
    return isinstance(tree[2], tuple) and tree[2][0] == "^" and tree[2][2] == MINUS_ONE


def product_faults(parts: tuple[Tree, ...]) -> set[str]:
    """What is left to do in a product."""
    above = [part for part in parts if isinstance(part, str) and part[0].isdigit()]
    below = [part[1] for part in parts if isinstance(part, tuple) and is_rational(part)]
    whole = [int(str(part)) for part in (*above, *below) if is_integer(part)]
    bases = Counter(repr(part[1] if part[0] == "^" else part) for part in parts if not is_rational(part))
    sums = sum(part[0] == "+" for part in parts)
    return named_faults({
        "product of numbers": len(above) > 1 or len(below) > 1,
        "unreduced": above and below and len(whole) == 2 and math.gcd(*whole) > 1,
        "repeated factor": any(count > 1 for count in bases.values()),
        "roots multiplied": sum(is_root(part) for part in parts) > 1,
        "product of sums": sums > 1 or (sums and not below),
    })  # fmt: skip


def power_faults(base: Tree, exponent: Tree) -> set[str]:
    """What is left to do in a power or a root."""
    whole = is_integer(exponent) and exponent != MINUS_ONE
    return named_faults({
        "power of a number": whole and is_rational(base),
        "power of a sum": whole and base[0] == "+",
        "root below": exponent == MINUS_ONE and any(is_root(part) for part in subtrees(base)),
        "square in a root": is_root(("^", base, exponent)) and not is_power_free(base, exponent[1]),
    })  # fmt: skip


def is_power_free(base: Tree, index: Tree) -> bool:
    """Whether nothing can be taken out of a root."""
    if not (is_integer(base) and is_integer(index)):
        return not is_rational(base)
    value, power = int(str(base)), int(str(index))
    if not 1 < power < 20 or value > MAX_ROOT:
        return True
    return value > 1 and all(value % n**power for n in range(2, int(value ** (1 / power)) + 2))


def factor_count(tree: Tree) -> int:
    """How many factors a product has, powers counted."""
    if tree[0] == "*":
        return sum(factor_count(part) for part in tree[1:] if part != MINUS_ONE)
    if tree[0] == "^" and is_integer(tree[2]):
        return min(abs(int(str(tree[2]))), 100) * factor_count(tree[1])
    return 1
