"""The environment: what is asked, which part of a message is its answer, and what that is worth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from marft.envs.base import LastMessage, LastMessageEnv, Split, check_text
from marft.envs.reasoning.library import require_library
from marft.envs.reasoning.spec import TaskSpec, read_tasks
from marft.envs.reasoning.tasks import GeneratorClient, ReasoningTasks
from marft.types import Reward, Task

INSTRUCTION = "Give your final answer as <answer>…</answer>."


class Reasoning(LastMessageEnv):
    """Reward 1 where reasoning-gym gives the last message's answer its full score, else 0.

    `task` is a name, a list of names, or a mapping of names to their settings; several take turns by index. Of `size`
    tasks the share `held_out` is for testing. With `partial` the score itself is the reward; many of the library's scorers
    pay for an answer that merely contains the right one, and a team learns to give such answers.
    """

    def __init__(
        self, task: str | Sequence[str] | Mapping[str, Mapping[str, Any]], seed: int = 0, size: int = 100_000,
        held_out: float = 0.2, partial: bool = False, instruction: str = INSTRUCTION,
    ) -> None:  # fmt: skip
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise ValueError(f"seed must be a whole number of at least 0, not {seed!r}")
        if type(size) is not int or size < 2:
            raise ValueError(f"size must be a whole number of at least 2, not {size!r}")
        if type(held_out) is not float or not 0.001 <= held_out <= 0.999:
            raise ValueError(f"held_out must be a share in 0.001…0.999, not {held_out!r}")
        if type(partial) is not bool:
            raise ValueError(f"partial must be true or false, not {partial!r}")
        check_text("instruction", instruction)
        tasks = read_tasks(task)
        require_library()
        self.size, self.partial = size, partial
        self.client = GeneratorClient(TaskSpec(tasks=tasks, seed=seed, held_out=held_out, instruction=instruction))

    def tasks(self, split: Split) -> Sequence[Task]:
        """Made on demand by a process of their own."""
        self.client.start()  # a wrong name or setting ends here
        test = min(max(round(self.size * self.client.spec.held_out), 1), self.size - 1)
        return ReasoningTasks(split, test if split == "test" else self.size - test, self.client)

    def reward(self, state: LastMessage) -> Reward:
        """The library's score of the answer, made safe."""
        from marft.envs.reasoning.scoring import answer_score

        answer, data = self.answer(state.said or ""), state.task.data
        if answer is None:
            return Reward(team=0.0, correct=False)
        settings = json.dumps(self.client.spec.tasks[data["task"]], sort_keys=True)
        given = answer_score(data["task"], settings, data["entry"], answer)
        correct = given >= 1.0
        return Reward(team=given if self.partial else float(correct), correct=correct)

    def gold(self, task: Task) -> str | None:
        """The library's own answer, where it gives one."""
        answer = task.data["answer"]
        return None if answer is None else str(answer)

    def answer(self, text: str) -> str | None:
        """What stands in the last <answer>…</answer>, else after the last "Answer:" to the end of its line."""
        before, closed, _ = text.rpartition("</answer>")
        if closed and "<answer>" in before:
            return before.rpartition("<answer>")[2].strip() or None
        _, marked, last = text.rpartition("Answer:")
        return (last.partition("\n")[0].strip() or None) if marked else None
