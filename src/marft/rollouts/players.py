"""Who plays a batch: players are given assignments, and asked for what came of them. Here those of this process."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from marft.config import Config
from marft.engines.base import Adapters
from marft.envs.base import Split
from marft.rollouts.credit import Credit
from marft.rollouts.event_loop import run_async
from marft.rollouts.runner import EpisodeRunner, Start
from marft.types import Episode, Task

Swaps = tuple[tuple[int, int], ...]  # steps of a play's engines, from 1, and the version that entered before each


class Key(NamedTuple):
    """Of an assignment. The smallest is played first: training before evaluation, earlier iterations before later ones."""

    held_out: bool
    iteration: int
    play: int  # of the iteration; of an evaluation, the number of its environment
    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A shard of a play. What comes of it depends on nothing else, whoever plays it and however often; but with
    `rollout.swap: token`, on when newer versions come, unless it is said by `swaps`."""

    key: Key
    version: int  # of the policy that plays it, or begins to
    seed: str
    tasks: tuple[int, ...]  # indices among those of the split
    first_samples: tuple[int, ...]  # the number of each one's first episode
    samples: int  # episodes of each task
    swaps: Swaps | None = None  # None: newer versions enter as they come, where they may at all
    benchmark: str | None = None  # of an evaluation, where it is not at the run's own environment

    @property
    def split(self) -> Split:
        """Where its tasks are from."""
        return "test" if self.key.held_out else "train"

    @property
    def episodes(self) -> int:
        """How many there will be."""
        return len(self.tasks) * self.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The episodes of an assignment, how many tokens were generated for them, and which versions entered meanwhile."""

    episodes: Sequence[Episode]
    tokens: int
    swaps: Swaps = ()


class Players(Protocol):
    """Whoever plays assignments: in this process, in others, on other machines."""

    @property
    def copies(self) -> bool:
        """Whether they play with copies of the adapters, which come with each assignment."""

    def published(self, version: int, adapters: Adapters) -> None:
        """The learner's adapters are of this version from now on; a copy of them where players need one."""

    def offer(self, assignment: Assignment, adapters: Adapters, tasks: Sequence[Task]) -> None:
        """To be played with these adapters (none: the learner's, as they are when it is taken); `tasks` are those that its
        indices name. Returns at once."""

    def take(self, key: Key) -> Played:
        """What came of an assignment, once; waits until it is played."""

    def incidents(self) -> list[str]:
        """What went wrong with players since it was asked last, and was mended: a line each."""

    def forget(self) -> None:
        """Nobody asks any more for what was offered."""

    def close(self) -> None:
        """Nothing is left running; may be called again."""


class Policy(Protocol):
    """The team's engines and the adapters they speak with."""

    @property
    def tokens(self) -> int:
        """Generated so far."""

    def snapshot(self) -> Adapters:
        """A copy of all agents' adapters."""

    def publish(self, version: int, adapters: Adapters | None = None) -> None:
        """The engines speak with these adapters, which are this version's; None: with the team's as they are."""


class LocalPlayers:
    """Plays in this process, one assignment after the other, when it is asked for it.

    With lag the team's adapters are exchanged for those of the assignment's version while it is played.
    """

    def __init__(self, config: Config, runner: EpisodeRunner, policy: Policy) -> None:
        self.config, self.runner, self.policy = config, runner, policy
        self._present = 0
        self._offered: dict[Key, tuple[Assignment, Adapters, Sequence[Task]]] = {}

    @property
    def copies(self) -> bool:
        """Only where the adapters that play are not the learner's present ones."""
        return self.config.train.lag > 0

    def published(self, version: int, adapters: Adapters) -> None:
        """What to go back to after playing with another one."""
        self._present = version

    def offer(self, assignment: Assignment, adapters: Adapters, tasks: Sequence[Task]) -> None:
        """Kept until it is asked for."""
        self._offered[assignment.key] = assignment, adapters, tasks

    def take(self, key: Key) -> Played:
        """Plays it now."""
        assignment, adapters, tasks = self._offered.pop(key)
        before = self.policy.tokens
        with self._speaking_with(assignment.version, adapters):
            episodes = run_async(playing(self.config, self.runner, assignment, tasks))
        return Played(episodes=episodes, tokens=self.policy.tokens - before)

    def incidents(self) -> list[str]:
        """None: what fails here fails the run."""
        return []

    def forget(self) -> None:
        """Nothing is under way."""
        self._offered.clear()

    def close(self) -> None:
        """There is nothing to end."""

    @contextmanager
    def _speaking_with(self, version: int, adapters: Adapters) -> Iterator[None]:
        if not adapters or version == self._present:
            yield
            return
        present = self.policy.snapshot()
        self.policy.publish(version, adapters)
        try:
            yield
        finally:
            self.policy.publish(self._present, present)


def playing(
    config: Config, runner: EpisodeRunner, assignment: Assignment, tasks: Sequence[Task]
) -> Coroutine[Any, Any, list[Episode]]:
    """All its episodes at once; in training with the play-outs that the credit asks for."""
    starts = [
        Start(task=task, sample=first + n)
        for task, first in zip(tasks, assignment.first_samples, strict=True)
        for n in range(assignment.samples)
    ]
    if assignment.key.held_out:
        return runner.episodes(starts, assignment.seed)
    assert isinstance(config.credit, Credit)
    learns = set(config.team.trained)
    return config.credit.play(runner, starts, assignment.seed, samples=assignment.samples, learns=learns)
