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
INTEGER = re.compile(r"-?\d{1,30}")
GIVEN = re.compile(r"(?<![\w.])\d{0,30}\.\d{1,30}(?![\w.]*\d)")
MAX_ROOT = 10**9  # under a root, for its square factors to be looked for


@lru_cache(maxsize=512)
def requested_forms(prompt: str) -> frozenset[str]:
    return frozenset(form for form, pattern in FORMS.items() if pattern.search(prompt))


def is_unfinished(said: Leaf, wanted_leaf: Leaf, prompt: str) -> bool:
    """Whether an answer leaves undone what the task asks for and the gold has done."""
    answer, gold = said.text, wanted_leaf.text
    if requested_forms(prompt) & {"decimal", "fraction"} and said.unit == "percent" != wanted_leaf.unit:
        return True
    if rational_value(answer) is not None and rational_value(gold) is not None:
        return bool(number_faults(answer, prompt) - number_faults(gold, prompt)) or (
            wanted_leaf.unit != "percent" and is_uncomputed_quotient(answer, gold)
        )
    forms = requested_forms(prompt)
    done, wanted = parse_expression(answer), parse_expression(gold)
    if not prompt or done is None or wanted is None:
        return False
    done, wanted = reduced_tree(done), reduced_tree(wanted)
    watched = {"function of a number"}.union(*(TREE_FAULTS[form] for form in forms & TREE_FAULTS.keys()))
    if "factor" in forms and factor_count(done) < factor_count(wanted):
        return True
    return bool((tree_faults(done) - tree_faults(wanted)) & watched)


def is_uncomputed_quotient(answer: str, gold: str) -> bool:
    """A quotient where the gold is a whole number: 36/2 is not yet 18."""
    return (
        bool(DECIMAL.fullmatch(without_spaces(gold)))
        and "." not in gold
        and is_quotient(answer)
        and not OVER_ONE.search(answer)
    )


def is_quotient(text: str) -> bool:
    found = RATIO.fullmatch(without_spaces(text))
    return bool(found and not found[2]) or SLASH.fullmatch(without_spaces(text)) is not None


def number_faults(text: str, prompt: str) -> set[str]:
    """What a written number is not, of the forms that are asked for."""
    forms, value, text = requested_forms(prompt), rational_value(text), without_spaces(text)
    ratio, slash = RATIO.fullmatch(text), SLASH.fullmatch(text)
    mixed = ratio is not None and bool(ratio[2])
    found = set()
    if forms & {"fraction", "simplify", "compute"} and is_quotient(text) and not is_reduced(ratio, slash):
        found.add("not reduced")
    if forms & {"simplify", "compute", "expand", "decimal"} and POWER.fullmatch(text):
        found.add("power")
    if "decimal" in forms and (is_quotient(text) or mixed):
        found.add("no decimal")
    if "mixed" in forms and value is not None and value.denominator > 1 and not mixed:
        found.add("not mixed")
    if "improper" in forms and mixed:
        found.add("mixed")
    if "scientific" in forms and not SCIENTIFIC.fullmatch(text):
        found.add("not scientific")
    if forms & CONVERSIONS and is_given_decimal(text, prompt):
        found.add("as it was given")
    return found


def is_reduced(ratio: re.Match[str] | None, slash: re.Match[str] | None) -> bool:
    top, bottom = ratio.group(3, 4) if ratio else slash.group(1, 2) if slash else ("", "")
    if not INTEGER.fullmatch(top) or not INTEGER.fullmatch(bottom):
        return False
    return math.gcd(int(top), int(bottom)) == 1


def is_given_decimal(text: str, prompt: str) -> bool:
    """Whether a decimal stands in the prompt."""
    if not DECIMAL.fullmatch(text) or "." not in text:
        return False
    return any(rational_value(found[0]) == rational_value(text) for found in GIVEN.finditer(prompt))


# --- trees ------------------------------------------------------------------------------------------------------------
def tree_faults(tree: Tree) -> set[str]:
    """Operations of a bare tree that could still be carried out."""
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
            case "call" | "!" | r"\binom" if not any(is_variable(leaf) for leaf in subtrees(part)):
                found.add("function of a number")
    return found


def is_variable(tree: Tree) -> bool:
    return isinstance(tree, str) and re.fullmatch(r"[A-Za-z]'*|\\(?!pi|sin|cos|tan|binom|log|ln)\w+", tree) is not None


def sum_faults(terms: tuple[Tree, ...]) -> set[str]:
    found = set()
    kinds = Counter(tuple(sorted(map(repr, irrational_factors(term)))) for term in terms)
    if kinds[()] > 1:
        found.add("sum of numbers")
    if any(count > 1 for kind, count in kinds.items() if kind):
        found.add("like terms")
    numbers = [integer_coefficient(term) for term in terms]
    if all(numbers) and math.gcd(*numbers) > 1:
        found.add("content")
    return found


def irrational_factors(term: Tree) -> list[Tree]:
    """The factors of a term that are no rational number."""
    parts = term[1:] if term[0] == "*" else (term,)
    return [part for part in parts if not is_rational(part)]


def integer_coefficient(term: Tree) -> int:
    """The whole-number factor of a term; 0 where it has a denominator."""
    value = 1
    for part in term[1:] if term[0] == "*" else (term,):
        if isinstance(part, str) and INTEGER.fullmatch(part):
            value *= abs(int(part))
        elif is_rational(part):
            return 0
    return value


def is_rational(tree: Tree) -> bool:
    if isinstance(tree, str):
        return tree[0].isdigit() or tree == MINUS_ONE
    return tree[0] == "^" and tree[2] == MINUS_ONE and is_rational(tree[1])


def product_faults(parts: tuple[Tree, ...]) -> set[str]:
    found = set()
    above = [part for part in parts if isinstance(part, str) and part[0].isdigit()]
    below = [part[1] for part in parts if isinstance(part, tuple) and is_rational(part)]
    if len(above) > 1 or len(below) > 1:
        found.add("product of numbers")
    whole = [int(n) for n in (*above, *below) if isinstance(n, str) and INTEGER.fullmatch(n)]
    if above and below and len(whole) == 2 and math.gcd(*whole) > 1:
        found.add("unreduced")
    bases = Counter(repr(part[1] if part[0] == "^" else part) for part in parts if not is_rational(part))
    if any(count > 1 for count in bases.values()):
        found.add("repeated factor")
    if sum(is_root(part) for part in parts) > 1:
        found.add("roots multiplied")
    if any(part[0] == "+" for part in parts) and any(part[0] != "+" and not below for part in parts):
        found.add("product of sums")
    if sum(part[0] == "+" for part in parts) > 1:
        found.add("product of sums")
    return found


def is_root(tree: Tree) -> bool:
    return tree[0] == "^" and tree[2][0] == "^" and tree[2][2] == MINUS_ONE and is_rational(tree[1])


def power_faults(base: Tree, exponent: Tree) -> set[str]:
    found = set()
    whole = isinstance(exponent, str) and INTEGER.fullmatch(exponent) is not None and exponent != MINUS_ONE
    if whole and is_rational(base):
        found.add("power of a number")
    if whole and base[0] == "+":
        found.add("power of a sum")
    if exponent == MINUS_ONE and any(is_root(part) for part in subtrees(base)):
        found.add("root below")
    if is_root(("^", base, exponent)) and not is_power_free(base, exponent[1]):
        found.add("square in a root")
    return found


def is_power_free(base: Tree, index: Tree) -> bool:
    if not (isinstance(base, str) and INTEGER.fullmatch(base) and isinstance(index, str) and INTEGER.fullmatch(index)):
        return not is_rational(base)
    value, power = int(base), int(index)
    if not 1 < power < 20 or value > MAX_ROOT:
        return True
    return value > 1 and all(value % n**power for n in range(2, int(value ** (1 / power)) + 2))


def factor_count(tree: Tree) -> int:
    """How many factors a product has, powers counted."""
    if tree[0] == "*":
        return sum(factor_count(part) for part in tree[1:] if part != MINUS_ONE)
    if tree[0] == "^" and isinstance(tree[2], str) and INTEGER.fullmatch(tree[2]):
        return min(abs(int(tree[2])), 100) * factor_count(tree[1])
    return 1
