"""The sets known by name: where the hub keeps them, what their splits and columns are called, where the gold answer is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["math", "code"]
Gold = Literal["as it is", "after ####", "last boxed", "found"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPart:
    """One split of one configuration of a hub set; the split may be a slice, as in `train[:500]`."""

    config: str | None = None
    split: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRanges:
    """Which rows of a file belong to a split, where the publisher tells by number: first and last, both included."""

    column: str
    train: tuple[int, int]
    test: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSet:
    """One published set. Sets of programs have no answer column: their tests are the answer."""

    name: str
    kind: Kind
    hub: str
    train: tuple[HubPart, ...] = ()
    test: tuple[HubPart, ...] = ()
    prompt: str
    answer: str | None = None
    gold: Gold = "as it is"
    ids: IdRanges | None = None


def hub_part(split: str, config: str | None = None) -> tuple[HubPart, ...]:
    """The one part that most sets' splits consist of."""
    return (HubPart(config=config, split=split),)


DEEPCODER = "agentica-org/DeepCoder-Preview-Dataset"

SETS = (
    KnownSet(
        name="gsm8k", kind="math", hub="openai/gsm8k", train=hub_part("train", "main"), test=hub_part("test", "main"),
        prompt="question", answer="answer", gold="after ####",
    ),
    KnownSet(
        name="math", kind="math", hub="DigitalLearningGmbH/MATH-lighteval", train=hub_part("train"),
        test=hub_part("test"), prompt="problem", answer="solution", gold="last boxed",
    ),
    KnownSet(
        name="math-500", kind="math", hub="HuggingFaceH4/MATH-500", test=hub_part("test"), prompt="problem",
        answer="answer",
    ),
    KnownSet(
        name="deepscaler", kind="math", hub="agentica-org/DeepScaleR-Preview-Dataset", train=hub_part("train"),
        prompt="problem", answer="answer",
    ),
    KnownSet(
        name="aime-2024", kind="math", hub="HuggingFaceH4/aime_2024", test=hub_part("train"), prompt="problem",
        answer="answer",
    ),  # the publisher calls its only split train
    KnownSet(
        name="aime-2025", kind="math", hub="math-ai/aime25", test=hub_part("test"), prompt="problem", answer="answer",
    ),
    KnownSet(name="amc", kind="math", hub="math-ai/amc23", test=hub_part("test"), prompt="question", answer="answer"),
    KnownSet(
        name="minerva", kind="math", hub="math-ai/minervamath", test=hub_part("test"), prompt="question",
        answer="answer",
    ),
    KnownSet(
        name="olympiadbench", kind="math", hub="math-ai/olympiadbench", test=hub_part("test"), prompt="question",
        answer="final_answer",
    ),
    KnownSet(
        name="mbpp", kind="code", hub="google-research-datasets/mbpp", train=hub_part("train", "full"),
        test=hub_part("test", "full"), prompt="text",
        ids=IdRanges(column="task_id", train=(601, 974), test=(11, 510)),
    ),
    KnownSet(name="humaneval", kind="code", hub="openai/openai_humaneval", test=hub_part("test"), prompt="prompt"),
    KnownSet(
        name="deepcoder", kind="code", hub=DEEPCODER,
        train=hub_part("train", "primeintellect") + hub_part("train", "taco") + hub_part("train", "lcbv5"),
        test=hub_part("test", "codeforces") + hub_part("test", "lcbv5"), prompt="problem",
    ),
    KnownSet(
        name="livecodebench", kind="code", hub=DEEPCODER, train=hub_part("train", "lcbv5"),
        test=hub_part("test", "lcbv5"), prompt="problem",
    ),
    KnownSet(
        name="code-contests", kind="code", hub="deepmind/code_contests", train=hub_part("train"),
        test=hub_part("test"), prompt="description",
    ),
)  # fmt: skip
KNOWN = {known.name: known for known in SETS}
