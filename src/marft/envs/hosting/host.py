"""What a host offers, and the one that hosts in this very process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from marft.envs.base import Environment, Split
from marft.envs.deadlines import DeadlineExceeded, interrupt_after
from marft.envs.task_validation import UNREADABLE, load_tasks
from marft.game.validation import EnvironmentFault, fault_from_exception, validate_output
from marft.types import BadTask, Stopped, Task
from marft.untrusted_values import described


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds that the user's code has in this process: for the tasks of a split, and for any other call; None: all."""

    tasks: float | None
    call: float | None


NO_DEADLINES = Deadlines(tasks=None, call=None)


class Host(ABC):
    """An environment that answers questions; close it when nobody plays any more."""

    def __init__(self, env: Environment[Any], *, deadlines: Deadlines = NO_DEADLINES) -> None:
        self.env, self.deadlines = env, deadlines
        self._tasks: dict[Split, Sequence[Task]] = {}

    def tasks(self, split: Split) -> Sequence[Task]:
        """The tasks of a split, read once."""
        if split not in self._tasks:
            self._tasks[split] = load_tasks(
                self.env, split, deadline=self.deadlines.tasks, row_deadline=self.deadlines.call
            )
        return self._tasks[split]

    def gold(self, task: Task) -> str | None:
        """The right answer of a task, for transcripts. Asked in this process, as `tasks` is, and no agent is told.

        An environment that fails to say is quoted in its place: what was played counts all the same.
        """
        if isinstance(task, BadTask) or type(self.env).gold is Environment.gold:
            return None
        late = f"environment.gold took more than {self.deadlines.call or 0:g} s (env.deadline)"
        try:
            with interrupt_after(self.deadlines.call, late):
                found = self.env.gold(task)
                gold: str | None = validate_output(
                    "gold", found if found is None or isinstance(found, str) else str(found)
                )
                return gold
        except DeadlineExceeded:
            return f"({late})"
        except EnvironmentFault as fault:
            return f"(environment.gold {fault.line})"
        except UNREADABLE as error:
            return f"(environment.gold raised {described(error)})"

    @abstractmethod
    async def ask(self, method: str, *arguments: Any, last: bool = False) -> Any:
        """What `env.method(*arguments)` returns; whatever goes wrong with it is an EnvironmentFault.

        The `last` question of an episode may be answered at any time; nothing is generated before all others are.
        """

    @abstractmethod
    def close(self) -> None:
        """Nothing is left running; once more is no harm."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class InProcess(Host):
    """Asks at once. Nobody can cut it off, so it is for environments that take microseconds, and for classes that only
    this process knows."""

    async def ask(self, method: str, *arguments: Any, last: bool = False) -> Any:
        """Calls the method here and now."""
        try:
            return getattr(self.env, method)(*arguments)
        except Stopped:
            raise
        except BaseException as error:  # the user's code: anything may come, SystemExit too
            raise fault_from_exception(error) from error

    def close(self) -> None:
        """There is nothing to end."""
