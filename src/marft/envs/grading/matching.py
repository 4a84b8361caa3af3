"""When two structures are equal, given when two single values are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from marft.envs.grading.shape import Group, Leaf, Shape

LeafEqual = Callable[[Leaf, Leaf], bool | None]


def same(gold: Shape, answer: Shape, equal: LeafEqual) -> bool | None:
    """Whether two structures are equal, by `equal` for single values; None: not decided."""
    if isinstance(answer, Group) and answer.kind == "same":
        return any_of(same(gold, item, equal) for item in answer.items)
    if isinstance(gold, Leaf) and isinstance(answer, Leaf):
        return equal(gold, answer)
    if isinstance(gold, Leaf) or isinstance(answer, Leaf):
        return False
    if gold.kind == "()" and (assigned := by_name(answer)):
        return (
            every(same(g, a, equal) for g, a in zip(gold.items, assigned, strict=True))
            if len(assigned) == len(gold.items)
            else False
        )
    if gold.kind != answer.kind or len(gold.items) != len(answer.items):
        return False
    if gold.kind not in ("list", "union"):
        return every(same(g, a, equal) for g, a in zip(gold.items, answer.items, strict=True))
    return in_any_order(gold.items, answer.items, equal)


def by_name(answer: Group) -> list[Leaf]:
    """The values of `x = 3, y = 4` as the point (3, 4): in their names' order; none for any other list."""
    items = [item for item in answer.items if isinstance(item, Leaf) and re.fullmatch("[a-z]", item.name)]
    if answer.kind != "list" or len(items) != len(answer.items) or len({item.name for item in items}) != len(items):
        return []
    return [replace(item, name="") for item in sorted(items, key=lambda item: item.name)]


def every(verdicts: Iterator[bool | None]) -> bool | None:
    decided = True
    for verdict in verdicts:
        if verdict is False:
            return False
        decided = decided and verdict is not None
    return True if decided else None


def any_of(verdicts: Iterator[bool | None]) -> bool | None:
    found = list(verdicts)
    return True if True in found else None if None in found else False


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
