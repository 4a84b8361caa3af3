"""One task from (spec, split, index): draws from a dataset until the question's hash says that split."""

from __future__ import annotations

import hashlib
import math
import pickle
import random
from base64 import b64encode
from typing import Any

from marft.envs.base import Split
from marft.envs.deadlines import DeadlineExceeded, interrupt_after
from marft.envs.reasoning.library import Dataset, draws_of, make_dataset
from marft.envs.reasoning.spec import TaskSpec
from marft.types import MarftError

SECONDS = 60  # one draw may take
LUCK = 40  # draws per expected hit: e^-40 is the chance to miss a split that is there


class TaskGenerator:
    """Where tasks are made: the datasets of a spec."""

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.datasets: dict[str, Dataset] = {}
        for name in spec.tasks:
            self.dataset(name)

    def dataset(self, name: str) -> Dataset:
        """The library's dataset of that name, made once; its seed follows from the spec's."""
        if name not in self.datasets:
            seed = hash_below(f"{self.spec.seed}/{name}", 2**31)
            self.datasets[name] = make_dataset(name, self.spec.tasks[name], seed)
        return self.datasets[name]

    def make(self, split: Split, index: int) -> dict[str, Any]:
        """A task as JSON: `entry` is the library's own record, pickled, for its scorer alone."""
        name = list(self.spec.tasks)[index % len(self.spec.tasks)]
        label = f"reasoning/{name}/{self.spec.seed}/{split}/{index}"
        share = self.spec.held_out if split == "test" else 1 - self.spec.held_out
        rng = random.Random(label)
        limit, error = math.ceil(LUCK / share), ""
        for _ in range(limit):
            try:
                entry = self.draw(name, rng.randrange(draws_of(name)))
            except DeadlineExceeded:
                raise MarftError(f"{label} took more than {SECONDS} s to make; choose easier settings") from None
            except Exception as failure:  # the library found no such puzzle
                error = f"; some draws raised {type(failure).__name__}: {failure}"
                del self.datasets[name]  # a dataset that failed may have cut its own size
                continue
            if split_of(entry["question"], self.spec.held_out) == split:
                prompt = "\n\n".join(part for part in (entry["question"], self.spec.instruction) if part)
                packed = b64encode(pickle.dumps(entry)).decode()
                return {"id": label, "prompt": prompt, "task": name, "answer": entry["answer"], "entry": packed}
        raise MarftError(
            f"{name} has too few questions for its {split} split: none in {limit} draws{error}; widen its settings"
        )

    def draw(self, name: str, position: int) -> dict[str, Any]:
        """The library's entry at `position`; DeadlineExceeded after SECONDS."""
        dataset = self.dataset(name)
        seed_global_rngs(hash_below(f"{self.spec.seed}/{name}/{position}", 2**32))
        with interrupt_after(SECONDS, f"a task of {name} took more than {SECONDS} s to make"):
            return dataset[position]


def seed_global_rngs(seed: int) -> None:
    """A few generators draw from the global states beside their own."""
    import numpy

    random.seed(seed)
    numpy.random.seed(seed)


def split_of(question: str, held_out: float) -> Split:
    """The same question never lies on both sides, whoever drew it."""
    return "test" if hash_below(question, 2**32) < held_out * 2**32 else "train"


def hash_below(text: str, below: int) -> int:
    """A hash of `text` as a number in 0…below-1."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % below
