"""Chained integer arithmetic: "Start with 17. Add 5. Multiply by 3. Subtract 4." → 62.

Level L has L + 1 operations; every intermediate result lies in 0…99. Tasks are made from (split, level, index), and a
hash of the chain decides which split it belongs to, so train and test never share a chain.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from marft.envs.base import Environment, GeneratedTasks, Split
from marft.types import Reward, Task, Turn

VERBS = {"+": "Add", "-": "Subtract", "*": "Multiply by"}
HELD_OUT = 8  # one chain in HELD_OUT belongs to the test split
SIZES: dict[Split, int] = {"train": 100_000, "test": 5_000}
WRONG_TRY = -0.1  # what one costs the agent who made it, with feedback
ANSWER = re.compile(r"Answer:\s*(-?\d{1,9})(?!\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A start value and the operations done to it, in order."""

    start: int
    steps: tuple[tuple[str, int], ...]

    def values(self) -> list[int]:
        """Start value and every intermediate result; the last one is the answer."""
        values = [self.start]
        for operator, operand in self.steps:
            values.append(apply_operator(operator, values[-1], operand))
        return values

    def prompt(self) -> str:
        """The chain in words, as agents read it."""
        return " ".join([f"Start with {self.start}.", *(f"{VERBS[o]} {n}." for o, n in self.steps)])


def apply_operator(operator: str, value: int, operand: int) -> int:
    """The result of one operation; ValueError for an operator that is none of + - *."""
    match operator:
        case "+":
            return value + operand
        case "-":
            return value - operand
        case "*":
            return value * operand
    raise ValueError(f"unknown operator {operator!r}")


def draw_chain(rng: random.Random, operations: int) -> Chain:
    """A random chain whose intermediate results stay in 0…99."""
    value = start = rng.randint(2, 60)
    steps: list[tuple[str, int]] = []
    for _ in range(operations):
        choices = [o for o, possible in (("+", value < 99), ("-", value > 0), ("*", 0 < value < 50)) if possible]
        operator = rng.choice(choices)
        limit = {"+": 99 - value, "-": value, "*": 99 // max(value, 1)}[operator]
        operand = rng.randint(2, min(9, limit)) if operator == "*" else rng.randint(1, min(40, limit))
        steps.append((operator, operand))
        value = apply_operator(operator, value, operand)
    return Chain(start=start, steps=tuple(steps))


def split_of(chain: Chain) -> Split:
    """The split that a hash of the chain's words puts it in."""
    digest = hashlib.sha256(chain.prompt().encode()).digest()
    return "test" if digest[0] % HELD_OUT == 0 else "train"


class ArithmeticTasks(GeneratedTasks):
    """Tasks of one split and level, made on demand from their index."""

    def __init__(self, split: Split, level: int) -> None:
        self.split: Split = split
        self.level = level

    def __len__(self) -> int:
        return SIZES[self.split]

    def make(self, index: int) -> Task:
        """The first chain drawn from the task's own name that belongs to this split."""
        name = f"arithmetic/{self.split}/{self.level}/{index}"
        rng = random.Random(name)
        while split_of(chain := draw_chain(rng, self.level + 1)) != self.split:
            pass
        return Task(id=name, prompt=chain.prompt(), data={"answer": chain.values()[-1]})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardAnswer:
    """A message as this environment hears it: which turn it was, and its one answer."""

    index: int
    answer: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The task, and the answers heard so far, in order."""

    task: Task
    heard: tuple[HeardAnswer, ...] = ()


class Arithmetic(Environment[State]):
    """Reward 1 when the team's last message ends in the right "Answer: N", else 0.

    With `feedback` the team is told which answer is wrong and may try again, each wrong try at a price; what counts then
    is its latest answer.
    """

    light = True

    def __init__(self, level: int = 2, feedback: bool = False) -> None:
        if type(level) is not int or not 1 <= level <= 8:
            raise ValueError(f"level must be a whole number in 1…8, not {level!r}")
        if type(feedback) is not bool:
            raise ValueError(f"feedback must be true or false, not {feedback!r}")
        self.level, self.feedback = level, feedback

    def tasks(self, split: Split) -> Sequence[Task]:
        """Of the level that was set."""
        return ArithmeticTasks(split, self.level)

    def reset(self, task: Task) -> State:
        """Nobody has answered yet."""
        return State(task=task)

    def observe(self, state: State, agent: str) -> str:
        """With feedback: that the latest answer is wrong."""
        answer = self.counted_answer(state)
        wrong = self.feedback and answer is not None and not is_right(state, answer)
        return f"{answer} is wrong." if wrong else ""

    def transition(self, state: State, turn: Turn) -> State:
        """Keeps the answer of the message, not its text."""
        return replace(state, heard=(*state.heard, HeardAnswer(index=turn.index, answer=self.answer(turn.text))))

    def reward(self, state: State) -> Reward:
        """1 or 0 for the team; with feedback also a price for each wrong try, and done once the answer is right."""
        correct = is_right(state, self.counted_answer(state))
        if not self.feedback:
            return Reward(team=float(correct), correct=correct)
        prices = {h.index: 0.0 if h.answer is None or is_right(state, h.answer) else WRONG_TRY for h in state.heard}
        return Reward(team=float(correct), turns=prices, correct=correct, done=correct)

    def answer(self, text: str) -> int | None:
        """The number of the one "Answer: N"; whoever bets on several has none."""
        answers = ANSWER.findall(text)
        return int(answers[0]) if len(answers) == 1 else None

    def gold(self, task: Task) -> str:
        """The last value of the chain."""
        return str(task.data["answer"])

    def counted_answer(self, state: State) -> int | None:
        """The answer that counts: the last message's, or with feedback the latest there is."""
        answers = [h.answer for h in state.heard if h.answer is not None or not self.feedback]
        return answers[-1] if answers else None


def is_right(state: State, answer: int | None) -> bool:
    """Whether `answer` is the task's; None is not."""
    return bool(answer == state.task.data["answer"])
