"""When two structures are equal, given when two single values are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from marft.envs.grading.shape import Leaf, Shape

LeafEqual = Callable[[Leaf, Leaf], bool | None]


def same(gold: Shape, answer: Shape, equal: LeafEqual) -> bool | None:
    """Whether two structures are equal, by `equal` for single values; None: not decided."""
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return equal(gold, answer)
    if isinstance(gold, Leaf) or isinstance(answer, Leaf):
        return False
    if gold.kind != answer.kind or len(gold.items) != len(answer.items):
        return False
    if gold.kind not in ("list", "union"):
        return every(same(g, a, equal) for g, a in zip(gold.items, answer.items, strict=True))
    return in_any_order(gold.items, answer.items, equal)


def every(verdicts: Iterator[bool | None]) -> bool | None:
    decided = True
    for verdict in verdicts:
        if verdict is False:
            return False
        decided = decided and verdict is not None
    return True if decided else None


def in_any_order(gold: tuple[Shape, ...], answer: tuple[Shape, ...], equal: LeafEqual) -> bool | None:
    """Each of gold's items against one of the answer's own."""
    left = list(answer)
    undecided = False
    for item in gold:
        verdicts = [same(item, other, equal) for other in left]
        if True in verdicts:
            del left[verdicts.index(True)]
        elif None in verdicts:
            undecided = True
        else:
            return False
    return None if undecided else True
