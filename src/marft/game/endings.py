"""How a game ends before its workflow is done.

None of these is an `Exception`: a workflow that wraps `game.act` in `except Exception` and tries again would never stop,
for nothing it does can bring an ended game back. They pass through it as a KeyboardInterrupt does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from types import TracebackType, coroutine
from typing import TYPE_CHECKING, Any

from marft.types import (
    BadTask,
    ChatRefused,
    Ended,
    Episode,
    FaultKind,
    MarftError,
    PromptTooLong,
    Reward,
    Stopped,
    Turn,
)
from marft.untrusted_values import described, traced
from marft.watchdog import leave_behind

if TYPE_CHECKING:
    from marft.game.play import Game
    from marft.game.workflows import Workflow

MAX_REFUSED = 16  # refused calls of a game that is over


class GameOver(BaseException):
    """The game has ended already, and still the workflow goes on."""


class EpisodeFailed(GameOver):
    """The user's environment or workflow or a model's output failed; carries what to record."""

    def __init__(self, line: str, fault: FaultKind, trace: str = "") -> None:
        super().__init__(line)
        self.fault, self.trace = fault, trace


class ContextOverflow(GameOver):
    """What the team has said outgrew what one of its agents can read."""


class CutOff(GameOver):
    """The limit of turns was reached; carries who would have acted next, and what it would have been shown."""

    def __init__(self, before: str, shown: str) -> None:
        super().__init__(before)
        self.before, self.shown = before, shown


class EndsGameOnError:
    """What escapes from the game's own methods ends it, whatever the workflow makes of it."""

    def __init__(self, game: Game) -> None:
        self.game = game

    async def __aenter__(self) -> None:
        if self.game.over is not None:
            self.game.refused += 1
            await asyncio.sleep(0)  # a workflow that tries again for ever is left here
            raise GameOver(str(self.game.over)) from self.game.over

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # a workflow may set its agents a time limit, and may ask with a shorter prompt or in another form
        if error is not None and not isinstance(error, asyncio.CancelledError | PromptTooLong | ChatRefused):
            self.game.over = error


@coroutine
def await_or_abandon(workflow: Awaitable[None], refused: Callable[[], int]) -> Generator[Any, None, None]:
    """Awaits `workflow`, step by step in this very task, until it is done or was `refused` too often.

    One that swallows whatever ends its game, and goes on for ever, is left behind.
    """
    steps: Any = workflow.__await__()
    thrown: BaseException | None = None
    while True:
        try:
            waited = steps.send(None) if thrown is None else steps.throw(thrown)
        except StopIteration:
            return
        if refused() > MAX_REFUSED:
            leave_behind(steps)  # it would not let itself be closed either
            return
        thrown = None
        try:
            yield waited
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:  # what is raised in this task is raised in the workflow
            thrown = error


def unplayable_episode(task: BadTask, sample: int, trunk: int | None) -> Episode:
    """Of a task that says why it cannot be played."""
    return Episode(
        task=task, sample=sample, turns=(), reward=Reward(team=0.0), ended="failed", fault="raised",
        error=f"the task {task.id!r} {task.flaw}", trunk=trunk,
    )  # fmt: skip


def how_ended(over: GameOver | None) -> Ended:
    """The episode's `ended` for what ended its game; None: the workflow was done."""
    match over:
        case EpisodeFailed():
            return "failed"
        case ContextOverflow():
            return "overflow"
        case CutOff():
            return "cut_off"
    return "terminated"


def overflow_reward(reward: Reward) -> Reward:
    """What a team earns that could not go on: nothing for its answer, and what it had lost by then."""
    turns = {index: min(0.0, own) for index, own in reward.turns.items()} if reward.itemised else reward.turns
    correct = None if reward.correct is None else False
    return replace(reward, team=min(0.0, reward.team), turns=turns, correct=correct, parts={})


async def run_workflow(workflow: Workflow, game: Game) -> CutOff | ContextOverflow | None:
    """The workflow until it is done or the game is over; gives what ended it but is no failure of others."""
    try:
        await await_or_abandon(workflow(game), lambda: game.refused)
    except (MarftError, Stopped):
        raise
    except BaseException as error:  # the user's code: anything may come, SystemExit too
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise
        if isinstance(error, EpisodeFailed) and game.over is None:  # of our own workflows
            raise
        if isinstance(error, PromptTooLong) and game.over is None and game.turns:
            return ContextOverflow(str(error))
        if game.over is None:
            raise EpisodeFailed(f"the workflow raised {described(error)}", "workflow", traced()) from error
    if game.over is None or isinstance(game.over, CutOff | ContextOverflow):
        return game.over
    raise game.over


def check_replay(recorded: Turn, now: str) -> Turn:
    """The recorded turn, which must be `now`'s again."""
    if recorded.agent != now:
        raise MarftError(
            f"the workflow did not repeat itself: turn {recorded.index} was {recorded.agent}'s and is now {now}'s; "
            "it must depend on game.turns and game.task alone"
        )
    return recorded


def is_cancelled() -> bool:
    """Whether somebody cancelled this task, as opposed to a CancelledError that was raised for no reason."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
