r"""The formulas of a prompt, and whether an answer is one of them again: copied, or rewritten without any work.

`1\cdot(Q)`, `Q+0`, `-(-Q)`, `(Q)^1`, `Q` with its sides swapped or its terms in another order are all Q. What holds a
whole formula of the prompt in some other wrapping, `\sqrt{(Q)^2}`, is Q where Q itself has the value asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from marft.envs.grading.expression_parser import Tree, parse_expression
from marft.envs.grading.latex_normalization import apply_spellings, comparison_key, normalize_latex
from marft.envs.grading.tree_normalization import contains_tree, is_composed, reduced_tree, spelling_tree, subtrees

MAX_FORMULAS = 200
MAX_FORMULA = 1_000  # characters
ASYMPTOTE = re.compile(r"\[asy\].{0,8000}?\[/asy\]", re.S)
FORMULA = re.compile(r"\$\$((?:\\.|[^$\\])+)\$\$|\$((?:\\.|[^$\\])+)\$|\\\((.{1,1000}?)\\\)|\\\[(.{1,1000}?)\\\]", re.S)
# Outside of dollars: a run of numbers, lone letters and signs, at least one of which joins two others.
PLAIN = re.compile(r"(?:(?<![A-Za-z])[A-Za-z](?![A-Za-z'])|[\d√π]|sqrt|[-+*/^().=!²³⁴×·÷−<>\s])+")
ARTICLE = re.compile(r"(?<!\S)[aAI](?=\s)")
ROW_BREAK = re.compile(r"\\\\(?:\[[^\]]*\])?|&")
CHOICE = re.compile(r"[\s⟪]*\(?([A-J])\s*[).:][\s⟫]*(.{0,200})")
CHOICES = re.compile(r"(?<![A-Za-z])\(?([A-J])\s*[).:](?![A-Za-z])")
SUM_OF_NAMES = re.compile(r"[a-z](?:\s*\+\s*[a-z]){1,4}")
EQUALS = re.compile(r"(?<![<>!:=\\])=(?!=)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFormulas:
    """What a prompt writes out: the trees of its formulas and of their sides, each with the texts that it may stand
    for, every part of them, and its letters."""

    texts: dict[Tree, list[str]]
    parts: frozenset[Tree]
    letters: str


@lru_cache(maxsize=512)
def prompt_formulas(prompt: str) -> PromptFormulas:
    """The formulas that a prompt writes out."""
    texts: dict[Tree, list[str]] = {}
    for formula in formula_texts(prompt):
        sides = EQUALS.split(formula) if len(EQUALS.findall(formula)) == 1 else []
        for text in (formula, *sides):
            tree = parse_expression(normalize_latex(text))
            if tree is not None and is_composed(tree := reduced_tree(tree)):
                texts[tree] = list(dict.fromkeys((*texts.get(tree, ()), text, formula)))
    parts = frozenset(part for tree in texts for part in subtrees(tree) if is_composed(part))
    return PromptFormulas(texts=texts, parts=parts, letters=bare_letters(prompt))


def formula_texts(prompt: str) -> list[str]:
    """Formulas between dollars and in plain text."""
    prompt = ASYMPTOTE.sub(" ", prompt)
    found = [next(filter(None, match.groups())) for match in FORMULA.finditer(prompt)]
    lines = [line for formula in found for line in (formula, *ROW_BREAK.split(formula))]
    plain = ARTICLE.sub(" ; ", FORMULA.sub(" ; ", prompt))
    lines += [run[0].strip(" .\n") for run in PLAIN.finditer(plain)]
    kept = dict.fromkeys(line.strip(" ,.;\n") for line in lines if 1 < len(line.strip()) <= MAX_FORMULA)
    return list(kept)[:MAX_FORMULAS]


def bare_letters(text: str) -> str:
    """A text's letters and signs in our spelling, without spaces and braces."""
    return comparison_key(apply_spellings(text)).replace("{", "").replace("}", "")


def is_prompt_formula(answer: str, gold: str, prompt: str) -> bool:
    """Whether an answer is a formula of the prompt, or a part of one, and not the gold as it is written."""
    if not prompt:
        return False
    question, tree = prompt_formulas(prompt), parse_expression(answer)
    if tree is None:
        letters = bare_letters(answer)
        return len(letters) > 2 and letters in question.letters and letters != bare_letters(gold)
    if reduced_tree(tree) not in question.parts:
        return False
    wanted = parse_expression(gold)
    return wanted is None or spelling_tree(wanted) != spelling_tree(tree)


def requested_side(answer: str, prompt: str) -> str:
    """The value of an expression that the prompt asks for: `m+n = 18` is 18 where it says "find $m+n$"."""
    name, equals, value = answer.partition("=")
    if not equals or not re.search("[A-Za-z]", name):
        return answer
    if prompt:
        wanted = comparison_key(normalize_latex(name))
        asked = any(comparison_key(normalize_latex(formula)) == wanted for formula in formula_texts(prompt))
    else:
        asked = SUM_OF_NAMES.fullmatch(name.strip(" $")) is not None
    return value if asked else answer


def choice_letter(answer: str, gold: str, prompt: str) -> str:
    """The letter of a choice that is said with its text: `(B) 5` is B, where the prompt has that text behind (B)."""
    found = CHOICE.fullmatch(normalize_latex(answer))
    if not found or not re.fullmatch(r"\W*(?:\\text\w*\{)?\W*[A-J]\W*", gold):
        return answer
    listed = CHOICES.split(normalize_latex(prompt))
    texts = dict(zip(listed[1::2], listed[2::2], strict=False))
    said = bare_letters(found[2])
    if not said or not texts or (found[1] in texts and bare_letters(texts[found[1]]).startswith(said)):
        return found[1]
    return answer


def wrapped_formulas(answer: str, gold: str, prompt: str) -> list[str]:
    """Formulas of the prompt that stand in an answer and not in the gold."""
    tree, wanted = parse_expression(answer), parse_expression(gold)
    if not prompt or tree is None:
        return []
    tree, wanted = reduced_tree(tree), "" if wanted is None else reduced_tree(wanted)
    formulas = prompt_formulas(prompt).texts
    held = [own for own in formulas if contains_tree(tree, own) and not contains_tree(wanted, own)]
    return [text for own in held for text in formulas[own]]
