r"""Math grading: finds the one answer that a message commits to, and decides whether it equals the gold answer.

    message ── markup ── extraction ───────────── answer text ── latex_normalization ── answer_structure
                 │  boxed_answers, labelled_answers,                (one spelling)    (value, list, interval …)
                 │  last_line, sentence_answers: candidates                                    │
                 └─ retraction: "4 is wrong"                                              comparison ── True, False
                                                                                               │ undecided
    prompt ── prompt_formulas: is it the question again?  requested_form: is it unfinished?    │
              requested_unit: hours or minutes, per cent …        algebra_client ── algebra_worker ── algebra

See docs/grading.md.
"""

from __future__ import annotations

from marft.envs.grading.algebra_client import CLIENT
from marft.envs.grading.answer_structure import Leaf, Structure, leaves, parse_structure
from marft.envs.grading.candidates import MAX_ANSWER
from marft.envs.grading.comparison import canonical_text, structures_equal, values_equal
from marft.envs.grading.extraction import MAX_PROMPT, answer_kind, extract_answer
from marft.envs.grading.latex_normalization import TEXT_CLOSE, TEXT_OPEN, comparison_key, normalize_latex
from marft.envs.grading.prompt_formulas import choice_letter, is_prompt_formula, requested_side, wrapped_formulas
from marft.envs.grading.requested_form import is_unfinished
from marft.envs.grading.requested_unit import requested_unit

__all__ = ["extract_answer", "final_answer", "grade"]

MAX_WRAPPED = 2  # formulas of the prompt in an answer that algebra is asked about


def grade(text: str, gold: str, prompt: str = "") -> bool:
    """Whether the message `text` commits to the answer `gold`; what copies the `prompt` commits to nothing.

    Takes any text, never raises on it, and takes at most three times the worker's limit. Letters and exact numbers decide
    first; the rest goes to algebra in a process of its own.
    """
    prompt = prompt[:MAX_PROMPT]
    wanted = extract_answer(gold, sought="formula") or gold
    if len(wanted) > MAX_ANSWER or not wanted.strip():
        return False
    gold_structure = parse_structure(normalize_latex(wanted))
    said = extract_answer(text, prompt, answer_kind(gold_structure))
    if said is None:
        return False
    said = requested_side(choice_letter(said, wanted, prompt), prompt)
    answer = parse_structure(normalize_latex(said))

    def equal(one: Leaf, other: Leaf) -> bool | None:
        alike = comparison_key(one.text) == comparison_key(other.text) and one.unit == other.unit
        return values_equal(one, other) if alike else values_equal(one, other, requested_unit(prompt))

    verdict = structures_equal(gold_structure, answer, equal)
    if verdict is False or not is_worked_out(said, answer, wanted, gold_structure, prompt):
        return False
    return verdict is True or (CLIENT.equal(wanted, said) and not wraps_prompt_formula(said, wanted, prompt))


def is_worked_out(said: str, answer: Structure, wanted: str, gold: Structure, prompt: str) -> bool:
    """Whether an answer is the gold as it is written, or neither the question over again nor short of the form asked."""
    written, cleaned = normalize_latex(wanted), normalize_latex(said).strip(TEXT_OPEN + TEXT_CLOSE)
    if comparison_key(written) == comparison_key(cleaned):
        return True
    if is_prompt_formula(cleaned, written, prompt):
        return False
    golds = list(leaves(gold))
    return not any(
        all(is_prompt_formula(leaf.text, other.text, prompt) or is_unfinished(leaf, other, prompt) for other in golds)
        for leaf in leaves(answer)
        if all(comparison_key(leaf.text) != comparison_key(other.text) for other in golds)
    )


def wraps_prompt_formula(said: str, wanted: str, prompt: str) -> bool:
    """Whether an answer only wraps a formula of the prompt that has the value asked for."""
    formulas = wrapped_formulas(normalize_latex(said), normalize_latex(wanted), prompt)
    return any(CLIENT.equal(wanted, formula) for formula in formulas[:MAX_WRAPPED])


def final_answer(text: str, prompt: str = "") -> str | None:
    """The answer a message commits to in canonical form, for counting votes; None: none."""
    said = extract_answer(text, prompt)
    return (canonical_text(parse_structure(normalize_latex(said))) or None) if said is not None else None
