"""Grade-school word problems (GSM8K, arXiv 2110.14168): free text in, one number out.

Read from a folder with `gsm8k_train.jsonl` and `gsm8k_test.jsonl` (or `train.jsonl` and `test.jsonl`) in the publisher's
own format: `question`, and `answer` that ends in `#### number`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marft.envs.base import Environment, Split
from marft.types import Reward, Task, Turn

BOXED = re.compile(r"\\boxed\{([^{}]{1,40})\}")
LABELLED = re.compile(r"(?:Answer:|####)\s*\**\s*\$?(-?[\d,]{1,20}(?:\.\d{1,10})?)")
PLAIN = re.compile(r"-?[\d,]{1,20}(?:\.\d{1,10})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    task: Task
    said: str | None = None


class Gsm8k(Environment[State]):
    """Reward 1 when the last message's final answer is the right number, else 0."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser()

    def tasks(self, split: Split) -> Sequence[Task]:
        found = next(
            (f for f in (self.path / f"gsm8k_{split}.jsonl", self.path / f"{split}.jsonl") if f.is_file()), None
        )
        if found is None:
            raise FileNotFoundError(
                f"env.path: {self.path} holds no gsm8k_{split}.jsonl; download GSM8K and name its folder"
            )
        rows = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines() if line.strip()]
        return [
            Task(
                id=f"gsm8k/{split}/{i}",
                prompt=row["question"],
                data={"answer": number(row["answer"].split("####")[-1])},
            )
            for i, row in enumerate(rows)
        ]

    def reset(self, task: Task) -> State:
        return State(task=task)

    def transition(self, state: State, turn: Turn) -> State:
        return State(task=state.task, said=turn.text)

    def reward(self, state: State) -> Reward:
        correct = final_number(state.said or "") == state.task.data["answer"]
        return Reward(team=float(correct), correct=correct)


def final_number(text: str) -> float | None:
    """The last boxed number, else the last labelled one, else the last number at all; never evaluated as code."""
    for pattern in (BOXED, LABELLED, PLAIN):
        if found := pattern.findall(text):
            return number(found[-1])
    return None


def number(text: str) -> float | None:
    try:
        return float(text.strip().strip("$").replace(",", ""))
    except ValueError:
        return None
