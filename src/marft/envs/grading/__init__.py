"""Math grading: the one answer a message commits to, and whether it equals the gold answer. See docs/grading.md."""

from __future__ import annotations

from marft.envs.grading.extract import MAX_ANSWER, MAX_PROMPT, committed
from marft.envs.grading.latex import clean, key, respell
from marft.envs.grading.matching import same
from marft.envs.grading.shape import Leaf, read
from marft.envs.grading.symbolic import CLIENT
from marft.envs.grading.values import cheap, is_number, render

__all__ = ["committed", "final_answer", "grade"]


def grade(text: str, gold: str, prompt: str = "") -> bool:
    """Whether the message `text` commits to the answer `gold`; what copies the `prompt` commits to nothing.

    Takes any text, never raises on it, and takes at most the helper's limit. Letters and exact numbers decide first;
    the rest goes to algebra in a process of its own.
    """
    wanted = committed(gold, bare_number=False) or gold
    if len(wanted) > MAX_ANSWER or not wanted.strip():
        return False
    gold_shape = read(clean(wanted))
    numeric = isinstance(gold_shape, Leaf) and is_number(gold_shape.text)
    said = committed(text, prompt, bare_number=numeric)
    if said is None:
        return False
    cleaned = clean(said)
    verdict = same(gold_shape, read(cleaned), cheap)
    if verdict is not None:
        return verdict
    if copied(said, prompt):  # the question's own expression, not worked out
        return False
    return CLIENT.equal(wanted, said)


def final_answer(text: str, prompt: str = "") -> str | None:
    """The answer a message commits to in canonical form, for counting votes; None: none."""
    said = committed(text, prompt)
    return (render(read(clean(said))) or None) if said is not None else None


def copied(said: str, prompt: str) -> bool:
    """Whether an answer stands in the prompt letter by letter."""
    answer, question = (key(respell(text)).replace("{", "").replace("}", "") for text in (said, prompt[:MAX_PROMPT]))
    return answer in question
