"""Problems with one right answer: GSM8K, MATH, DeepScaleR, AIME and any file with a prompt and an answer column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marft.envs.base import LastMessage, LastMessageEnv, Split, check_text
from marft.envs.data import DataSource, read_split
from marft.envs.data.columns import answer_column, gold_of, has_answers, prompt_column, prompt_text
from marft.envs.data.reading import SplitRows
from marft.envs.grading import final_answer, grade
from marft.envs.reward_functions import Given, Message, read_functions
from marft.terminal import warn
from marft.types import MarftError, Reward, Task

TOLERATED = 0.01  # the share of rows without prompt or answer that is left out; beyond it the column is the wrong one


class Math(LastMessageEnv):
    """Reward 1 when the last message's final answer equals the gold answer, else 0; or what functions of yours say.

    `reward` names one as `package.module:function`, or several with weights: called with the last message, the gold answer
    and the prompt, it gives a number (its worth), a truth value (right or wrong) or a `Reward`. One with a parameter
    `completions` is called as TRL does, with the columns of the data, and these may then do without answers.
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
        reward: Given | Sequence[Given] | None = None,
    ) -> None:
        self.source = DataSource(data=data, train=train, test=test, held_out=held_out, prompt=prompt, answer=answer)
        self.source.require_kind("math")
        check_text("instruction", instruction)
        self.instruction = instruction
        self.functions = None if reward is None else read_functions(reward)

    def tasks(self, split: Split) -> Sequence[Task]:
        """A task for each row that has a prompt and an answer."""
        part = read_split(self.source, split)
        rows = list(part.rows.values())
        prompts = prompt_column(rows, self.source.prompt, part.origin.known)
        columns = list(dict.fromkeys(column for row in rows for column in row))
        if self.functions is not None:
            self.functions.check_columns(columns)
        unanswered = self.functions is not None and self.functions.batched
        answered = self.source.answer is not None or not unanswered or has_answers(columns, part.origin.known)
        answers, gold = answer_column(rows, self.source.answer, part.origin.known) if answered else ("", "found")
        tasks: list[Task] = []
        without: list[int] = []
        for number, row in part.rows.items():
            prompt, answer = prompt_text(row.get(prompts)), gold_of(row.get(answers), gold)
            if not prompt or (answer is None and not unanswered):
                without.append(number)
                continue
            shown = f"{prompt}\n{self.instruction}" if self.instruction else prompt
            data: dict[str, Any] = {"answer": answer}
            if self.functions is not None and self.functions.need_rows:
                data |= {"row": {name: row.get(name) for name in columns}, "column": prompts}
            tasks.append(Task(id=part.id(number), prompt=shown, data=data))
        report_incomplete_rows(part, without, prompts if unanswered else f"{prompts} or {answers} ({gold})")
        return tasks

    def reward(self, state: LastMessage) -> Reward:
        """Grades the last message against the gold answer."""
        task = state.task
        if self.functions is not None:
            return Reward(team=0.0) if state.said is None else self.functions.judge(judged_message(task, state.said))
        correct = state.said is not None and grade(state.said, task.data["answer"], task.prompt)
        return Reward(team=float(correct), correct=correct)

    def answer(self, text: str) -> str | None:
        """The final answer in canonical form."""
        return final_answer(text)

    def gold(self, task: Task) -> str | None:
        """The answer from the data, where there is one."""
        answer: str | None = task.data["answer"]
        return answer


def judged_message(task: Task, text: str) -> Message:
    """A message of a task, whose data has the whole row where a function needs it."""
    row = task.data.get("row", {})
    asked = row[task.data["column"]] if row else task.prompt
    return Message(text=text, answer=task.data["answer"], prompt=task.prompt, row=row, asked=asked)


def report_incomplete_rows(part: SplitRows, without: list[int], what: str) -> None:
    """A task without an answer is one that everything or nothing solves: a few are left out aloud, many are an error."""
    if not without:
        return
    name, named = f"{part.origin.name}/{part.split}", ", ".join(map(str, without[:10]))
    line = f"{name}: nothing in {what} of {len(without)} of {len(part.rows)} rows: {named}{'…' * (len(without) > 10)}"
    if len(without) > TOLERATED * len(part.rows):
        raise MarftError(f"{line}; repair them or choose the columns with env.prompt=COLUMN env.answer=COLUMN")
    warn(f"{line}; left out")
