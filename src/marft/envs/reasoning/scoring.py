"""The library's own scorers, kept from running what a model wrote and from paying for nothing.

Some of them call `eval` on the answer, some hand it to sympy's parser, which does the same; three call right what is
not; and any of them may raise or take for ever. Whatever happens is a score in 0…1.
"""

from __future__ import annotations

import ast
import pickle
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from marft.envs.deadlines import DeadlineExceeded, interrupt_after
from marft.envs.reasoning.expressions import is_safe_expression
from marft.envs.reasoning.library import Dataset, scorer

SECONDS = 5.0  # one score may take
LENGTH = 20_000  # characters of an answer; the longest right one by default settings has some 4,000
# These call eval, for an answer given as a Python list (number_sorting: the right one): literals are all it may be.
LISTS = frozenset({"binary_matrix", "n_queens", "number_sorting", "spiral_matrix", "string_insertion"})
# These hand the answer to sympy's parse_expr.
FORMULAS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
# Answers that the library calls right must pass these as well: there it takes every text, every beginning of the number
# (0 for 0.625), and nan.
ALSO: Mapping[str, Callable[[str, Any], bool]] = {
    "game_of_life_halting": lambda answer, right: bool(answer == right),
    "coin_flip": lambda answer, right: abs(Fraction(answer) - Fraction(right)) <= Fraction(1, 10_000),
    "complex_arithmetic": lambda answer, right: "nan" not in answer.lower(),
}


def answer_score(name: str, settings: str, packed: bytes, answer: str) -> float:
    """What `answer` is worth for the entry that was packed when its task was made."""
    entry = pickle.loads(packed)
    if len(answer) > LENGTH or (name in FORMULAS and not is_safe_expression(answer)):
        return 0.0
    dataset = scorer(name, settings)
    if name in LISTS:
        replace_eval(dataset)
    try:
        with interrupt_after(SECONDS, f"scoring an answer to {name} took more than {SECONDS:g} s"):
            given = float(dataset.score_answer(answer, entry))
            if given >= 1 and name in ALSO and not ALSO[name](answer, entry["answer"]):
                return 0.0
    except (Exception, DeadlineExceeded):  # hostile text: anything may come
        return 0.0
    return min(max(given, 0.0), 1.0) if given == given else 0.0


def replace_eval(dataset: Dataset) -> None:
    """Reads literals wherever the dataset's module says `eval`: a module's own names come before the built-in ones."""
    sys.modules[type(dataset).__module__].__dict__["eval"] = ast.literal_eval
