"""What kind of value a gold is, and so what is looked for in prose that labels nothing."""

from __future__ import annotations

import re
from typing import Literal

from marft.envs.grading.clock import minutes
from marft.envs.grading.shape import Leaf, Shape
from marft.envs.grading.values import RATIO, is_number

Sought = Literal["number", "time", "ratio", "verdict", "words", "formula"]
VERDICT = re.compile(r"[\s⟪]*(?:yes|no|true|false)[\s⟫]*", re.I)


def sought_for(gold: Shape) -> Sought:
    if not isinstance(gold, Leaf):
        return "words"
    if VERDICT.fullmatch(gold.text):
        return "verdict"
    if minutes(gold.text, gold.unit) is not None:
        return "time"
    if RATIO.fullmatch(gold.text):
        return "ratio"
    return "number" if is_number(gold.text) else "words"
