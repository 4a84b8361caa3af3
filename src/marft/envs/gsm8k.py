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
from marft.types import MarftError, Reward, Task, Turn

BOXED = re.compile(r"\\boxed\{([^{}]{1,40})\}")
NUMBER = r"-?\d[\d,]{0,19}(?:\.\d+)?(?!\d)"
LABELLED = re.compile(rf"(?:Answer:|####)\s*\**\s*\$?({NUMBER})")
PLAIN = re.compile(rf"(?<!\d){NUMBER}")


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
            raise MarftError(f"env.path: {self.path} holds no gsm8k_{split}.jsonl; download GSM8K and name its folder")
        lines = [line for line in found.read_text(encoding="utf-8").split("\n") if line.strip()]
        try:
            return [read_task(f"gsm8k/{split}/{i}", line) for i, line in enumerate(lines)]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MarftError(f"{found} is not GSM8K: {type(error).__name__}: {error}") from None

    def reset(self, task: Task) -> State:
        return State(task=task)

    def transition(self, state: State, turn: Turn) -> State:
        return State(task=state.task, said=turn.text)

    def reward(self, state: State) -> Reward:
        correct = final_number(state.said or "") == state.task.data["answer"]
        return Reward(team=float(correct), correct=correct)

    def answer(self, text: str) -> float | None:
        return final_number(text)


def read_task(name: str, line: str) -> Task:
    row = json.loads(line)
    answer = number(row["answer"].split("####")[-1])
    if answer is None:  # a reply without a number would count as right
        raise ValueError(f"{name} has no number after ####")
    return Task(id=name, prompt=row["question"], data={"answer": answer})


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
