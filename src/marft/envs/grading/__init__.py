"""Math grading: the one answer a message commits to, and whether it equals the gold answer. See docs/grading.md."""

from __future__ import annotations

from marft.envs.grading.extract import MAX_PROMPT, committed
from marft.envs.grading.forms import unfinished
from marft.envs.grading.found import MAX_ANSWER
from marft.envs.grading.latex import TEXT_CLOSE, TEXT_OPEN, clean, key
from marft.envs.grading.matching import same
from marft.envs.grading.measure import measure_of
from marft.envs.grading.question import asked_for, chosen, rewritten, wrapped
from marft.envs.grading.shape import Leaf, Shape, leaves, read
from marft.envs.grading.sought import sought_for
from marft.envs.grading.symbolic import CLIENT
from marft.envs.grading.values import cheap, render

__all__ = ["committed", "final_answer", "grade"]

MAX_WRAPPED = 2  # formulas of the prompt in an answer that algebra is asked about


def grade(text: str, gold: str, prompt: str = "") -> bool:
    """Whether the message `text` commits to the answer `gold`; what copies the `prompt` commits to nothing.

    Takes any text, never raises on it, and takes at most three times the helper's limit. Letters and exact numbers decide first;
    the rest goes to algebra in a process of its own.
    """
    wanted = committed(gold, sought="formula") or gold
    if len(wanted) > MAX_ANSWER or not wanted.strip():
        return False
    gold_shape = read(clean(wanted))
    said = committed(text, prompt, sought_for(gold_shape))
    if said is None:
        return False
    said = asked_for(chosen(said, wanted, prompt[:MAX_PROMPT]), prompt[:MAX_PROMPT])
    answer = read(clean(said))
    verdict = same(gold_shape, answer, lambda one, other: equal(one, other, prompt[:MAX_PROMPT]))
    if verdict is False or not worked_out(said, answer, wanted, gold_shape, prompt[:MAX_PROMPT]):
        return False
    return verdict is True or (CLIENT.equal(wanted, said) and not in_wrapping(said, wanted, prompt[:MAX_PROMPT]))


def equal(gold: Leaf, answer: Leaf, prompt: str) -> bool | None:
    """Whether two values are equal; the prompt is read only where they are not written alike."""
    alike = key(gold.text) == key(answer.text) and gold.unit == answer.unit
    return cheap(gold, answer) if alike else cheap(gold, answer, measure_of(prompt))


def worked_out(said: str, answer: Shape, wanted: str, gold: Shape, prompt: str) -> bool:
    """Whether an answer is the gold as it is written, or neither the question over again nor short of the form asked."""
    written, cleaned = clean(wanted), clean(said).strip(TEXT_OPEN + TEXT_CLOSE)
    if key(written) == key(cleaned):
        return True
    if rewritten(cleaned, written, prompt):
        return False
    golds = list(leaves(gold))
    for leaf in leaves(answer):
        if any(key(leaf.text) == key(other.text) for other in golds):
            continue
        if all(rewritten(leaf.text, other.text, prompt) or unfinished(leaf, other, prompt) for other in golds):
            return False
    return True


def in_wrapping(said: str, wanted: str, prompt: str) -> bool:
    """Whether an answer only wraps a formula of the prompt that has the value asked for."""
    return any(CLIENT.equal(wanted, formula) for formula in wrapped(clean(said), clean(wanted), prompt)[:MAX_WRAPPED])


def final_answer(text: str, prompt: str = "") -> str | None:
    """The answer a message commits to in canonical form, for counting votes; None: none."""
    said = committed(text, prompt)
    return (render(read(clean(said))) or None) if said is not None else None
