r"""The formulas of a prompt, and whether an answer is one of them again: copied, or rewritten without any work.

`1\cdot(Q)`, `Q+0`, `-(-Q)`, `(Q)^1`, `Q` with its sides swapped or its terms in another order are all Q. What holds a
whole formula of the prompt in some other wrapping, `\sqrt{(Q)^2}`, is Q where Q itself has the value asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from marft.envs.grading.expression import RELATIONS, Tree, parsed
from marft.envs.grading.latex import clean, key, respell
from marft.envs.grading.normal import MINUS_ONE, bare, contains, size, subtrees, written

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
class Question:
    """What a prompt writes out: the trees of its formulas and of their sides, each with the texts that it may stand
    for, every part of them, and its letters."""

    texts: tuple[tuple[Tree, tuple[str, ...]], ...]
    parts: frozenset[Tree]
    letters: str


@lru_cache(maxsize=512)
def question_of(prompt: str) -> Question:
    texts: dict[Tree, tuple[str, ...]] = {}
    for formula in formulas(prompt)[:MAX_FORMULAS]:
        sides = EQUALS.split(formula) if len(EQUALS.findall(formula)) == 1 else []
        for text in (formula, *sides):
            tree = parsed(clean(text))
            if tree is not None and composed(tree := bare(tree)):
                texts[tree] = tuple(dict.fromkeys((*texts.get(tree, ()), text, formula)))
    parts = {part for tree in texts for part in subtrees(tree) if composed(part)}
    return Question(texts=tuple(texts.items()), parts=frozenset(parts), letters=letters(prompt))


def formulas(prompt: str) -> list[str]:
    """Formulas between dollars and in plain text."""
    prompt = ASYMPTOTE.sub(" ", prompt)
    found = [next(filter(None, match.groups())) for match in FORMULA.finditer(prompt)]
    lines = [line for formula in found for line in (formula, *ROW_BREAK.split(formula))]
    plain = ARTICLE.sub(" ; ", FORMULA.sub(" ; ", prompt))
    lines += [run[0].strip(" .\n") for run in PLAIN.finditer(plain)]
    return list(dict.fromkeys(line.strip(" ,.;\n") for line in lines if 1 < len(line.strip()) <= MAX_FORMULA))


def composed(tree: Tree) -> bool:
    """Whether something is left to do: more than a number, a name, or one of them with its sign."""
    if isinstance(tree, str) or (size(tree) < 2 and tree[0] not in ("call", "!", *RELATIONS)):
        return False
    return not (tree[0] == "*" and len(tree) == 3 and MINUS_ONE in tree and all(isinstance(p, str) for p in tree[1:]))


def letters(text: str) -> str:
    return key(respell(text)).replace("{", "").replace("}", "")


def rewritten(answer: str, gold: str, prompt: str) -> bool:
    """Whether an answer is a formula of the prompt, or a part of one, and not the gold as it is written."""
    if not prompt:
        return False
    question, tree = question_of(prompt), parsed(answer)
    if tree is None:
        return len(letters(answer)) > 2 and letters(answer) in question.letters and letters(answer) != letters(gold)
    if not composed(bare(tree)) or bare(tree) not in question.parts:
        return False
    wanted = parsed(gold)
    return wanted is None or written(wanted) != written(tree)


def asked_for(answer: str, prompt: str) -> str:
    """The value of an expression that the prompt asks for: `m+n = 18` is 18 where it says "find $m+n$"."""
    name, equals, value = answer.partition("=")
    if not equals or not re.search("[A-Za-z]", name):
        return answer
    if not prompt:
        return value if SUM_OF_NAMES.fullmatch(name.strip(" $")) else answer
    wanted = key(clean(name))
    return value if any(key(clean(formula)) == wanted for formula in formulas(prompt)[:MAX_FORMULAS]) else answer


def chosen(answer: str, gold: str, prompt: str) -> str:
    """The letter of a choice that is said with its text: `(B) 5` is B, where the prompt has that text behind (B)."""
    found = CHOICE.fullmatch(clean(answer))
    if not found or not re.fullmatch(r"\W*(?:\\text\w*\{)?\W*[A-J]\W*", gold):
        return answer
    listed = CHOICES.split(clean(prompt))
    texts = dict(zip(listed[1::2], listed[2::2], strict=False))
    said = letters(found[2])
    if not said or not texts or (found[1] in texts and letters(texts[found[1]]).startswith(said)):
        return found[1]
    return answer


def wrapped(answer: str, gold: str, prompt: str) -> list[str]:
    """Formulas of the prompt that stand in an answer and not in the gold."""
    tree, wanted = parsed(answer), parsed(gold)
    if not prompt or tree is None:
        return []
    tree, wanted = bare(tree), "" if wanted is None else bare(wanted)
    found = [texts for own, texts in question_of(prompt).texts if contains(tree, own) and not contains(wanted, own)]
    return [text for texts in found for text in texts]
