"""What an environment is: tasks, and a pure state machine that turns a team's messages into a reward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar, overload

from marft.types import Reward, Task, Turn

Split = Literal["train", "test"]
State = TypeVar("State")


def check_text(key: str, value: object) -> None:
    """ValueError where a setting is no text: on the command line `env.rules=3` is a number."""
    if not isinstance(value, str):
        raise ValueError(f"{key} must be a text, not {value!r}; on the command line: 'env.{key}=\"…\"'")


class GeneratedTasks(Sequence[Task]):
    """Tasks that are made when they are asked for, each from its index."""

    @abstractmethod
    def make(self, index: int) -> Task:
        """Task `index`, the same each time; `index` is one of those there are."""

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self.make(i) for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.make(index)


class Environment(ABC, Generic[State]):
    """Subclass it with four methods. States are values: `transition` returns a new one and changes nothing, so that an
    episode can be forked and replayed from any turn.

    It runs in worker processes, each call under a deadline, unless it is `light`: all its methods take microseconds and
    cannot hang. `takes_prompts` says whether a task is what its prompt says, so that people may ask the team questions of
    their own; not where the task's data decide what is played.
    """

    light: ClassVar[bool] = False
    takes_prompts: ClassVar[bool] = True
    patience: float = 0.0  # seconds that one call may rightly take; a deadline that is not longer is refused

    @abstractmethod
    def tasks(self, split: Split) -> Sequence[Task]:
        """All tasks of a split, in a fixed order; the two splits share none."""

    @abstractmethod
    def reset(self, task: Task) -> State:
        """The state before anybody has spoken."""

    @abstractmethod
    def transition(self, state: State, turn: Turn) -> State:
        """The state after `turn`."""

    @abstractmethod
    def reward(self, state: State) -> Reward:
        """What `state` is worth, should the episode end here.

        `done=False` says that another round makes sense. `turns` are rewards of single turns by index; an environment
        that gives them always gives the mapping, for every turn it has heard.
        """

    def observe(self, state: State, agent: str) -> str:
        """What the environment shows `agent`, who is about to act, beside the task; nothing by default."""
        return ""

    def whose_turn(self, state: State) -> str | None:
        """Who acts next, for workflow `turns`; None: nobody, the game is over."""
        return None

    def answer(self, text: str) -> Hashable | None:
        """What a message answers, for counting votes: equal answers are equal votes, None is none. By default its text."""
        return text.strip() or None

    def gold(self, task: Task) -> str | None:
        """The right answer of a task, for people who read transcripts; None: there is none to show. No agent sees it."""
        return None

    def step(self, state: State, turn: Turn) -> tuple[State, Reward]:
        """One turn: the next state and its reward."""
        following = self.transition(state, turn)
        return following, self.reward(following)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMessage:
    """The task, and the last message; None: nobody has spoken."""

    task: Task
    said: str | None = None


class LastMessageEnv(Environment[LastMessage]):
    """Of what a team says, only the last message counts."""

    def reset(self, task: Task) -> LastMessage:
        """Nobody has spoken."""
        return LastMessage(task=task)

    def transition(self, state: LastMessage, turn: Turn) -> LastMessage:
        """Keeps the message, and forgets the one before."""
        return LastMessage(task=state.task, said=turn.text)
