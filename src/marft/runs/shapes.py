"""What the files of a run, an evaluation and a comparison hold, as far as anybody reads it; they may hold more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from marft.files import ABSENT, Count, Finite, Truth

When = Literal["before", "during", "after"]  # of training


# --- manifest.json ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    name: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Held-out tasks of one benchmark that also stand in the training data; examples are pairs of ids."""

    tasks: Count
    of: Count
    examples: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    model: Base
    leaks: Mapping[str, Leak] = field(default_factory=dict)


# --- lines -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Of `metrics.jsonl` and `episodes.jsonl`."""

    iteration: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    iteration: Count
    event: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    agent: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    iteration: Count
    when: When
    benchmark: str | None
    task: str
    sample: Count
    turns: list[Spoken]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A line of an evaluation's `episodes.jsonl`."""

    benchmark: str
    silent: str | None
    task: str
    sample: Count
    reward: Finite
    correct: Truth | None
    answer: str | None
    tokens: Mapping[str, Count]
    turns: list[Spoken]
    error: str | None
    seconds: Finite


# --- summary.json ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    generated: Count
    trained: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one evaluation."""

    iteration: Count
    settings: Mapping[str, Any]
    tasks: Count
    failed: Count
    reward: Finite
    tokens_per_task: Finite
    accuracy: Finite = ABSENT
    accuracy_ci95: tuple[Finite, Finite] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run that has not ended has only evaluations."""

    iterations: Count = ABSENT
    seconds: Finite = ABSENT
    tokens: Tokens = ABSENT
    before: Figures = ABSENT
    after: Figures = ABSENT

    def __post_init__(self) -> None:
        costs = (self.iterations, self.seconds, self.tokens)
        if any(cost is None for cost in costs) and any(cost is not None for cost in costs):
            raise ValueError("iterations, seconds and tokens stand together or not at all")


# --- an evaluation's and a checkpoint's manifest ---------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an evaluation was asked beside its config."""

    weights: str
    tasks: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """The SHA-256 of each file of a checkpoint, by its path there."""

    iteration: Count
    files: Mapping[str, str]
