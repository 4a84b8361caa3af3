"""reasoning-gym's datasets by name, with settings checked before anything is made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Protocol

from marft.config.section import nearest
from marft.types import MarftError

OURS = ("seed", "size")  # settings of every dataset, which the environment decides
# Draws are positions in a dataset of this size. Most make each item when it is asked for; `acre` makes all of them at
# once, and `word_ladder` refuses to be larger.
DRAWS = 1_000_000
FEWER_DRAWS = {"acre": 2_000, "word_ladder": 20_000}


class Dataset(Protocol):
    """What we need of one of the library's datasets."""

    def __getitem__(self, index: int) -> dict[str, Any]: ...
    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """A score, usually in 0…1; it may raise or hang."""


def require_library() -> None:
    """MarftError where reasoning-gym is not installed."""
    if find_spec("reasoning_gym") is None:
        raise MarftError("env: reasoning needs reasoning-gym; pip install 'marft[reasoning]'")


def task_names() -> list[str]:
    """Every task there is. `composite` is the library's own mixture, which a mapping of tasks says more plainly."""
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - {"composite"})


def make_dataset(name: str, settings: Mapping[str, Any], seed: int) -> Dataset:
    """The dataset, or one line that says which name or setting is wrong."""
    known = task_names()
    if name not in known:
        raise MarftError(
            f"env.task: reasoning-gym has no task {name!r}{nearest(name, known)}; docs/reasoning.md lists them"
        )
    from reasoning_gym.factory import DATASETS, create_dataset

    allowed = [each.name for each in fields(DATASETS[name][1]) if each.name not in OURS]
    for key in settings:
        if key not in allowed:
            listed = ", ".join(allowed) or "none"
            raise MarftError(f"env.task: {name} has no setting {key!r}{nearest(key, allowed)}; it has {listed}")
    try:
        made: Dataset = create_dataset(name, seed=seed, size=draws_of(name), **settings)
    except Exception as error:  # what the library's own checks raise: AssertionError, ValueError, TypeError, …
        said = " ".join(str(error).split())
        raise MarftError(f"env.task: {name}: {said or type(error).__name__}") from None
    return made


@lru_cache(maxsize=128)
def scorer(name: str, settings: str) -> Dataset:
    """A dataset to score with, by its settings as JSON: which seed it has does not matter."""
    return make_dataset(name, json.loads(settings), seed=0)


def draws_of(name: str) -> int:
    """How many positions there are to draw from."""
    return FEWER_DRAWS.get(name, DRAWS)
