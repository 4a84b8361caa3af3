"""Problems with one right answer: GSM8K, MATH, DeepScaleR, AIME and any file with a prompt and an answer column."""

from __future__ import annotations

from collections.abc import Sequence

from marft import import_paths
from marft.envs.base import LastMessage, LastMessageEnv, Split, check_text
from marft.envs.data import DataSource, read_split
from marft.envs.data.columns import answer_column, as_text, gold_of, prompt_column
from marft.envs.data.reading import SplitRows
from marft.envs.grading import final_answer, grade
from marft.terminal import warn
from marft.types import MarftError, Reward, Task

TOLERATED = 0.01  # the share of rows without prompt or answer that is left out; beyond it the column is the wrong one


class Math(LastMessageEnv):
    """Reward 1 when the last message's final answer equals the gold answer, else 0; or what a function of yours says.

    `reward` names it as `package.module:function`: called with the last message, the gold answer and the prompt, it gives
    a number (its worth), a truth value (right or wrong) or a `Reward`.
    """

    def __init__(
        self,
        data: str,
        train: str | None = None,
        test: str | None = None,
        prompt: str | None = None,
        answer: str | None = None,
        held_out: float | None = None,
        instruction: str = "",
        reward: str | None = None,
    ) -> None:
        self.source = DataSource(data=data, train=train, test=test, held_out=held_out, prompt=prompt, answer=answer)
        self.source.require_kind("math")
        check_text("instruction", instruction)
        self.instruction = instruction
        self.own_reward = None if reward is None else import_paths.find(reward, "env.reward")
        if self.own_reward is not None and not callable(self.own_reward):
            raise ValueError(f"reward: {reward!r} is not a function; write `def reward(text, answer, prompt): …`")

    def tasks(self, split: Split) -> Sequence[Task]:
        """A task for each row that has a prompt and an answer."""
        part = read_split(self.source, split)
        rows = list(part.rows.values())
        prompts = prompt_column(rows, self.source.prompt, part.origin.known)
        answers, gold = answer_column(rows, self.source.answer, part.origin.known)
        tasks: list[Task] = []
        without: list[int] = []
        for number, row in part.rows.items():
            prompt, answer = as_text(row.get(prompts)), gold_of(row.get(answers), gold)
            if not prompt or answer is None:
                without.append(number)
                continue
            shown = f"{prompt}\n{self.instruction}" if self.instruction else prompt
            tasks.append(Task(id=part.id(number), prompt=shown, data={"answer": answer}))
        report_incomplete_rows(part, without, f"{prompts} or {answers} ({gold})")
        return tasks

    def reward(self, state: LastMessage) -> Reward:
        """Grades the last message against the gold answer."""
        task = state.task
        if self.own_reward is not None and state.said is not None:
            found = self.own_reward(state.said, task.data["answer"], task.prompt)
            if isinstance(found, bool):
                return Reward(team=float(found), correct=found)
            return found if isinstance(found, Reward) else Reward(team=found)
        correct = state.said is not None and grade(state.said, task.data["answer"], task.prompt)
        return Reward(team=float(correct), correct=correct)

    def answer(self, text: str) -> str | None:
        """The final answer in canonical form."""
        return final_answer(text)

    def gold(self, task: Task) -> str:
        """The answer from the data."""
        return str(task.data["answer"])


def report_incomplete_rows(part: SplitRows, without: list[int], what: str) -> None:
    """A task without an answer is one that everything or nothing solves: a few are left out aloud, many are an error."""
    if not without:
        return
    name, named = f"{part.origin.name}/{part.split}", ", ".join(map(str, without[:10]))
    line = f"{name}: nothing in {what} of {len(without)} of {len(part.rows)} rows: {named}{'…' * (len(without) > 10)}"
    if len(without) > TOLERATED * len(part.rows):
        raise MarftError(f"{line}; repair them or choose the columns with env.prompt=COLUMN env.answer=COLUMN")
    warn(f"{line}; left out")
