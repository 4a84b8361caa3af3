"""Credit: how an episode's reward becomes rewards of single turns, and which episodes must be played for that.

A config names one of the table in `config/algorithm.py`, or the user's own as `package.module:Class`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from marft.algorithms import credit
from marft.algorithms.credit import RewardStream
from marft.config.algorithm import CreditConfig, Fraction
from marft.types import Episode, MarftError, Turn

if TYPE_CHECKING:
    from marft.rollouts.runner import EpisodeRunner, Start


class Credit(CreditConfig):
    """Settings and behaviour in one class; what a credit has no opinion on is as below."""

    siblings_only: ClassVar[bool] = False  # only turns of one group may be compared

    @abstractmethod
    def assign(self, episode: Episode) -> RewardStream:
        """Rewards of the episode's turns."""

    async def play(
        self, runner: EpisodeRunner, starts: Sequence[Start], seed: str, *, samples: int, learns: Collection[str]
    ) -> list[Episode]:
        """The episodes, `samples` of each task one after the other, and whatever must be played beside them."""
        return await runner.episodes(starts, seed)

    def group(self, episode: Episode, turn: Turn) -> Hashable:
        """Turns of equal groups are compared: by default an agent's same turn in all samples of a task."""
        return (episode.task.id, turn.agent, turn.nth)

    def check(self, played: Sequence[Episode]) -> None:
        """Whether the environment gives what this credit needs; else one line that says what to do."""


class Equal(Credit):
    """Every turn scores the team's reward."""

    name: str = "equal"

    def assign(self, episode: Episode) -> RewardStream:
        """The team's reward for every turn."""
        return credit.equal(episode)


class StepDiscounted(Credit):
    """The team's reward, discounted by β for every turn that followed."""

    name: str = "step_discounted"
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.9

    def assign(self, episode: Episode) -> RewardStream:
        """The team's reward, less for early turns."""
        return credit.step_discounted(episode, beta=self.beta)


class OwnRewards(Credit):
    """What credits with the environment's own rewards of turns share."""

    gamma: Fraction = 1.0

    @property
    def chained(self) -> bool:
        """Whether a turn's score includes later rewards: without discount it is its own reward alone."""
        return self.gamma > 0

    def check(self, played: Sequence[Episode]) -> None:
        """Raise a MarftError where no episode has rewards of single turns."""
        if not any(episode.reward.turns for episode in played):
            raise MarftError(
                f"credit: {self.name} needs rewards of single turns (Reward.turns), and this environment gives none; "
                "use credit=equal"
            )


class PerStep(OwnRewards):
    """The environment's own reward of each turn, and the team's on the last."""

    name: str = "per_step"

    def assign(self, episode: Episode) -> RewardStream:
        """The environment's rewards of single turns, in one return of the team."""
        return credit.per_step(episode, gamma=self.gamma)


class PerPlayer(OwnRewards):
    """Every player's own rewards, each with its own return-to-go: for opponents."""

    name: str = "per_player"

    def assign(self, episode: Episode) -> RewardStream:
        """The environment's rewards of single turns, in a return of each player."""
        return credit.per_player(episode, gamma=self.gamma)


class Replayed(Credit):
    """What credits that play on from turns share: a turn scores its own credit alone."""

    @property
    def chained(self) -> bool:
        """Never: a replayed turn's credit stands alone."""
        return False

    def assign(self, episode: Episode) -> RewardStream:
        """The credits that were found by playing on."""
        return credit.replayed(episode)


class Difference(Replayed):
    """What the team's reward loses when a message is blanked, or given by the untrained base, and the rest is replayed."""

    name: str = "difference"
    baseline: Literal["blank", "base"] = "blank"

    async def play(
        self, runner: EpisodeRunner, starts: Sequence[Start], seed: str, *, samples: int, learns: Collection[str]
    ) -> list[Episode]:
        """The episodes, and one more for each learning turn, in which that turn is replaced."""
        from marft.rollouts.counterfactuals import with_differences

        episodes = await runner.episodes(starts, seed)
        return await with_differences(runner, episodes, seed, learns=learns, baseline=self.baseline)


class Tree(Replayed):
    """A task's samples fork from one episode, so that siblings from the same state are compared."""

    least_samples: ClassVar[int] = 2
    siblings_only: ClassVar[bool] = True

    name: str = "tree"

    async def play(
        self, runner: EpisodeRunner, starts: Sequence[Start], seed: str, *, samples: int, learns: Collection[str]
    ) -> list[Episode]:
        """The first sample of each task as a trunk, the others as forks of it."""
        from marft.rollouts.counterfactuals import with_forks

        return await with_forks(runner, starts, seed, samples=samples, learns=learns)

    def group(self, episode: Episode, turn: Turn) -> Hashable:
        """The children of one state: a fork's first own turn belongs to the trunk's branch."""
        shares = episode.trunk is not None and turn.index <= episode.forked_at
        return (episode.task.id, episode.trunk if shares else episode.sample, turn.index)
