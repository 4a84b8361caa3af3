"""Programming tasks: the team's last program is run against tests, inside the sandbox."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from marft.envs.base import LastMessage, LastMessageEnv, Split
from marft.envs.code.cases import describe_tests
from marft.envs.code.formats import read_task
from marft.envs.code.grading import Allowance, passed_tests
from marft.envs.data import DataSource, read_split
from marft.envs.sandbox import require_sandbox
from marft.envs.sandbox.limits import MIB
from marft.types import Reward, Task

PYTHON = ("", "python", "py", "python3")  # how a block that holds the program may be labelled
FENCE = "```"


class Code(LastMessageEnv):
    """Reward 1 when the last message's program passes all tests, else 0; with `reward="share"`, the share it passes.

    `seconds` of computing per test, `seconds_in_all` by the clock for a whole grading (keep it below `env.deadline`),
    `memory` in MiB, at most `tests` tests of a task.
    """

    def __init__(
        self,
        data: str,
        train: str | None = None,
        test: str | None = None,
        held_out: float | None = None,
        reward: Literal["all", "share"] = "all",
        seconds: float = 4.0,
        seconds_in_all: float = 40.0,
        memory: int = 1024,
        tests: int = 15,
    ) -> None:
        self.source = DataSource(data=data, train=train, test=test, held_out=held_out)
        self.source.require_kind("code")
        if reward not in ("all", "share"):
            raise ValueError(f"reward must be all or share, not {reward!r}")
        for key, value in (("seconds", seconds), ("seconds_in_all", seconds_in_all)):
            if type(value) not in (int, float) or not 0.5 <= value < math.inf:
                raise ValueError(f"{key} must be a number of at least 0.5, not {value!r}")
        for key, value, least in (("memory", memory, 64), ("tests", tests, 1)):
            if type(value) is not int or value < least:
                raise ValueError(f"{key} must be a whole number of at least {least}, not {value!r}")
        self.all_or_nothing, self.most_tests, self.patience = reward == "all", tests, float(seconds_in_all)
        self.allowance = Allowance(seconds=seconds, together=seconds_in_all, memory=memory * MIB)

    def tasks(self, split: Split) -> Sequence[Task]:
        """A task for each row of the data; MarftError where no sandbox works."""
        require_sandbox()  # before anybody generates anything
        part = read_split(self.source, split)
        return [read_task(row, part.id(number), self.most_tests) for number, row in part.rows.items()]

    def reward(self, state: LastMessage) -> Reward:
        """Runs the tests inside the sandbox."""
        program = None if state.said is None else program_in(state.said)
        if program is None:
            return Reward(team=0.0, correct=False)
        passed = passed_tests(program, state.task.data["tests"], self.allowance, stop=self.all_or_nothing)
        correct = all(passed)
        return Reward(team=float(correct) if self.all_or_nothing else sum(passed) / len(passed), correct=correct)

    def gold(self, task: Task) -> str:
        """The first tests that a program must pass."""
        return describe_tests(task.data["tests"])

    def answer(self, text: str) -> str | None:
        """The program without empty lines and spaces at line ends, so that they divide no votes."""
        program = program_in(text)
        return None if program is None else "\n".join(line.rstrip() for line in program.split("\n") if line.strip())


def program_in(text: str) -> str | None:
    """The last closed fenced block that is labelled as Python or not at all; other text is no program."""
    program: str | None = None
    block: list[str] | None = None
    label = ""
    for line in text.split("\n"):
        mark = line.strip()
        if block is None:
            if mark.startswith(FENCE) and FENCE not in mark.lstrip("`"):
                block, label = [], mark.lstrip("`").strip().lower()
        elif mark == FENCE:
            if label in PYTHON and any(each.strip() for each in block):
                program = "\n".join(block) + "\n"
            block = None
        else:
            block.append(line)
    return program
