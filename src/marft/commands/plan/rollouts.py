"""Episodes played for a plan: many short ones for the speed at the run's width, a few whole ones for what is usual."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marft.commands.dry_run import StandIn
from marft.config import Config
from marft.game.play import Agent
from marft.rollouts.credit import Credit, Difference
from marft.rollouts.event_loop import run_async
from marft.rollouts.runner import EpisodeRunner, Start
from marft.rollouts.source import SynchronousSource
from marft.training.build import Assembly
from marft.types import Episode, MarftError, Turn

WHOLE = 16  # episodes played to their end, or two tasks' samples where these are more
SHORT, LONGER = 4, 20  # most tokens a turn of the wide, short plays


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    episodes: tuple[Episode, ...]
    tokens: int  # generated, for play-outs too
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds of a play: so many however little is said, and so many a token, with `rows` episodes at once."""

    start: float
    token: float
    rows: int

    def seconds(self, episodes: int, tokens: float) -> float:
        return self.start * max(1.0, episodes / self.rows) + self.token * tokens


class Rollouts:
    def __init__(self, config: Config, parts: Assembly) -> None:
        assert isinstance(config.credit, Credit)
        self.config, self.parts, self.credit, self.seed = config, parts, config.credit, f"{config.seed}/plan"

    def pace(self) -> Pace:
        """From two plain plays of the run's width: one says more, all else is the same. The longer is also played before
        them, so that caches have grown and graphs are captured."""
        starts = self.starts(self.config.train.tasks)[: self.config.engine.slots]
        _, short, longer = (self.play(self.runner(n).episodes(starts, self.seed)) for n in (LONGER, SHORT, LONGER))
        more = longer.tokens - short.tokens
        token = max(0.0, longer.seconds - short.seconds) / more if more > 0 else 0.0
        token = token or longer.seconds / max(longer.tokens, 1)
        return Pace(start=max(0.0, short.seconds - token * short.tokens), token=token, rows=len(starts))

    def whole(self) -> Played:
        """With the play-outs that the credit asks for; of two tasks at least, since these differ."""
        tasks = max(2, -(-WHOLE // self.config.train.samples))
        samples, learns = self.config.train.samples, set(self.config.team.trained)
        playing = self.credit.play(self.runner(None), self.starts(tasks), self.seed, samples=samples, learns=learns)
        played = self.play(playing)
        usable = [episode for episode in played.episodes if episode.turns and episode.ended != "failed"]
        if not usable:
            first = played.episodes[0]
            raise MarftError(f"every episode of the probe failed: {first.error}", first.trace)
        if not any(turn.agent in self.config.team.trained for episode in usable for turn in episode.turns):
            raise MarftError("nobody who learns acted in any episode; the workflow must call game.act")
        return played

    def starts(self, tasks: int) -> list[Start]:
        learner = self.parts.learner
        source = SynchronousSource(self.config, self.parts.runner, learner.members, self.credit, Path())
        chosen = source.next_tasks()[:tasks]
        return [Start(task=task, sample=i) for task in chosen for i in range(self.config.train.samples)]

    def play(self, playing: Coroutine[Any, Any, list[Episode]]) -> Played:
        before, started = self.parts.tokens, time.perf_counter()
        episodes = run_async(playing)
        seconds = time.perf_counter() - started
        return Played(episodes=tuple(episodes), tokens=self.parts.tokens - before, seconds=seconds)

    def runner(self, most: int | None) -> EpisodeRunner:
        """Where nobody of ours says more than `most` tokens a turn."""
        return replace(
            self.parts.runner, team={name: self.seated(a, most) for name, a in self.parts.runner.team.items()}
        )

    def seated(self, agent: Agent, most: int | None) -> Agent:
        """A plan asks no remote model: somebody else speaks for it, at once."""
        match self.config.team.agents[agent.name].kind:
            case "remote":
                return replace(agent, voice=StandIn(agent.name, agent.voice.encode, iter(())))
            case "trained" | "frozen" if most is not None:
                limit = min(most, agent.sampling.max_tokens)
                return replace(agent, sampling=replace(agent.sampling, max_tokens=limit))
            case _:
                return agent


def said(config: Config, turn: Turn, *, most: bool = False) -> int:
    """Tokens of ours in a turn, or the most that it may have; what is not ours costs us nothing to say."""
    agent = config.team.agents.get(turn.agent)
    if agent is None or agent.kind not in ("trained", "frozen"):
        return 0
    return agent.max_tokens if most else len(turn.completion.token_ids)


def most_generated(config: Config, episode: Episode) -> int:
    """By an episode of as many turns, with the play-outs that its credit asks for."""
    limits = [said(config, turn, most=True) for turn in episode.turns]
    total = sum(limits)
    if isinstance(config.credit, Difference):
        again = 1 if config.credit.baseline == "blank" else 0  # a blanked turn is not said again, the base's is
        learns = [k for k, turn in enumerate(episode.turns) if turn.agent in config.team.trained]
        total += sum(sum(limits[k + again :]) for k in learns)
    return total
