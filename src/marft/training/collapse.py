"""Whether a run is ruining itself: signs of collapse, read off the metrics of its iterations.

A sign warns when it is first seen. Where it lasts, the run has collapsed. The watch keeps nothing but what the rows it was
shown have told it, so that a resumed run, shown the rows that were kept, knows what an uninterrupted one would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from marft.files import ABSENT, Count, Finite, Natural

Name = Literal["reward", "constant", "no advantage", "kl", "entropy", "truncated", "not finite"]

PATIENCE = 3  # iterations for which a sign must last
LONG_PATIENCE = 10  # where it may be meant, or may pass
WINDOW = 3  # iterations whose mean reward is compared
SURE = 4.0  # standard errors by which a reward must have been above its floor
BETTER = 3.0  # standard errors by which the last iterations must have earned more, or less, than the first
FLOOR = 0.1  # of the way from the floor to the best: less counts as being there
KL = 1.0  # a token, of one update
NOISE = 1 / 3  # of the way from the first entropy to that of uniform noise
CERTAIN = 0.01  # of the first entropy
CUT = 0.9  # of an agent's turns
OF_AN_UPDATE: frozenset[Name] = frozenset({"kl", "entropy", "no advantage"})  # nobody sees them where an agent rests


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedAgent:
    """What is read of an agent's figures in a row."""

    steps: Count
    truncated: Finite
    score_min: Finite
    score_max: Finite
    advantage_std: Finite
    entropy: Finite
    kl: Finite
    kl_final: Finite = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is read of a row."""

    iteration: Count
    episodes: Natural
    reward: Finite
    reward_error: Finite | None
    reward_min: Finite
    reward_max: Finite
    agents: Mapping[str, WatchedAgent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What is wrong, with whom (None: the team), since which iteration, and whether it has lasted too long.

    `good` is the last iteration whose checkpoint can be trusted: a row is played by the checkpoint before it, so that only
    what an update itself did is not in that checkpoint yet.
    """

    name: Name
    agent: str | None
    line: str
    since: int
    good: int
    collapsed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A sign in one row, and for how many iterations it may last; None: for ever."""

    name: Name
    agent: str | None
    line: str
    patience: int | None


@dataclass(slots=True)
class Streak:
    """Since when a sign is there, in how many rows it was seen, and whether it was told that this is too many."""

    since: int
    seen: int = 0
    told: bool = False


class CollapseWatch:
    """Looks at one iteration after the other. `noise` is the entropy of uniform noise in each agent's vocabulary."""

    def __init__(self, noise: Mapping[str, float]) -> None:
        self.noise = noise
        self.rows: list[Mapping[str, Any]] = []
        self.streaks: dict[tuple[Name, str | None], Streak] = {}
        self.first: dict[str, Mapping[str, Any]] = {}  # each agent's figures when it first learnt
        self.lowest: list[float] = []
        self.floor = self.highest = 0.0
        self.best: float | None = None  # mean of some iterations in a row that was surely above the floor
        self.ever_differed = False

    def forget_told(self) -> None:
        """Another process watches from here on, and may have to act on what this one only told."""
        for streak in self.streaks.values():
            streak.told = False

    def look(self, row: Mapping[str, Any]) -> list[Sign]:
        """The signs that are new, or have lasted too long and were not told so yet."""
        self._learn(row)
        seen = {(sight.name, sight.agent): sight for sight in self._sights(row)}
        resting = {agent for agent, now in row["agents"].items() if not now["steps"]}
        self.streaks = {
            key: streak
            for key, streak in self.streaks.items()
            if key in seen or (key[1] in resting and key[0] in OF_AN_UPDATE)
        }
        found = []
        for key, sight in seen.items():
            streak = self.streaks.setdefault(key, Streak(row["iteration"]))
            streak.seen += 1
            collapsed = sight.patience is not None and streak.seen >= sight.patience and not streak.told
            if streak.seen == 1 or collapsed:
                streak.told = streak.told or collapsed
                found.append(self._sign(sight, streak, seen, collapsed))
        return found

    def _sign(
        self, sight: Sight, streak: Streak, seen: Mapping[tuple[Name, str | None], Sight], collapsed: bool
    ) -> Sign:
        """What happens to the team has a cause in somebody: whose sign is oldest, of those that must not last."""
        agent, line = sight.agent, sight.line
        causes = [key for key, other in seen.items() if key[1] is not None and other.patience is not None]
        if agent is None and causes:
            cause = min(causes, key=lambda key: self.streaks[key].since if key in self.streaks else math.inf)
            agent, line = cause[1], f"{line}; {seen[cause].line}"
        good = streak.since - (1 if sight.name == "kl" else 2)
        return Sign(name=sight.name, agent=agent, line=line, since=streak.since, good=good, collapsed=collapsed)

    # --- what is known -----------------------------------------------------------------------------------------------
    def _learn(self, row: Mapping[str, Any]) -> None:
        window = self.rows[-WINDOW:]
        self.rows.append(row)
        if self._differs(row) or not self.lowest:  # what all episodes earn alike may be where it has fallen to
            self.lowest = sorted([*self.lowest, row["reward_min"]])[:2]
            self.floor = self.lowest[-1]  # seen twice: one unlucky episode is no floor
        self.highest = max(self.highest if len(self.rows) > 1 else row["reward_max"], row["reward_max"])
        if len(window) == WINDOW:
            mean, error = self._mean(window)
            if mean - self.floor > SURE * error:
                self.best = max(mean, self.best if self.best is not None else mean)
        self.ever_differed |= self._differs(row)
        for agent, now in row["agents"].items():
            if now["steps"]:
                self.first.setdefault(agent, now)

    def _differs(self, row: Mapping[str, Any]) -> bool:
        """Whether there is anything to learn from: rewards, or what credit makes of them."""
        scores = ((now["score_min"], now["score_max"]) for now in row["agents"].values())
        return row["reward_min"] < row["reward_max"] or any(low < high for low, high in scores)

    def _mean(self, rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
        """The mean reward of some iterations, and its standard error: over their tasks, and at least the largest that so
        many episodes can have. Of one task nobody knows."""
        widest = 0.5 * (self.highest - self.floor)
        errors = [
            max(math.inf if row["reward_error"] is None else row["reward_error"], widest / math.sqrt(row["episodes"]))
            for row in rows
        ]
        return fmean(row["reward"] for row in rows), math.hypot(*errors) / len(rows)

    def _nearly_best(self, row: Mapping[str, Any]) -> bool:
        return bool(self.floor < self.highest and row["reward"] >= self.highest - FLOOR * (self.highest - self.floor))

    def _gain(self) -> float:
        """What the last iterations earned more than the first, in standard errors."""
        size = max(1, min(WINDOW, len(self.rows) // 2))
        (first, error), (last, other) = self._mean(self.rows[:size]), self._mean(self.rows[-size:])
        return (last - first) / max(math.hypot(error, other), 1e-12)

    # --- what is seen ------------------------------------------------------------------------------------------------
    def _sights(self, row: Mapping[str, Any]) -> Iterator[Sight]:
        yield from self._of_the_team(row)
        for agent, now in row["agents"].items():
            if now["steps"]:
                yield from self._of_an_update(agent, now, row)
            yield from self._of_turns(agent, now, row)

    def _of_the_team(self, row: Mapping[str, Any]) -> Iterator[Sight]:
        reward, best = row["reward"], self.best
        if best is not None and reward <= self.floor + FLOOR * (best - self.floor):
            line = f"reward {reward:.3f} is at its floor, after {best:.3f}"
            yield Sight(name="reward", agent=None, line=line, patience=PATIENCE)
        if self._differs(row):
            return
        if not self.ever_differed:
            line = f"every episode has earned {reward:.3f} so far: there is nothing to learn from"
            yield Sight(name="constant", agent=None, line=line, patience=None)
        elif not self._nearly_best(row):  # else the task is solved
            sparse = best is None and reward <= self.floor  # a success now and then, and just now none
            line = f"every episode earns {reward:.3f}, and there is nothing to learn from"
            yield Sight(name="constant", agent=None, line=line, patience=None if sparse else PATIENCE)

    def _of_an_update(self, agent: str, now: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Sight]:
        moved, first, noise = now.get("kl_final", now["kl"]), self.first[agent]["entropy"], self.noise[agent]
        if moved > KL:
            line = f"an update moved {agent} by a KL of {moved:.2f} a token"
            yield Sight(name="kl", agent=agent, line=line, patience=PATIENCE)
        if first < NOISE * noise and now["entropy"] > first + NOISE * (noise - first):  # some begin as noise
            line = f"the entropy of {agent} has risen from {first:.2f} to {now['entropy']:.2f}, that of noise being {noise:.2f}"
            yield Sight(name="entropy", agent=agent, line=line, patience=PATIENCE)
        elif now["entropy"] < CERTAIN * first and self._gain() < -BETTER:
            line = f"the entropy of {agent} has vanished, from {first:.3f} to {now['entropy']:.5f}, and the reward is worse"
            yield Sight(name="entropy", agent=agent, line=line, patience=PATIENCE)
        if now["advantage_std"] == 0 and self._differs(row) and not self._nearly_best(row):  # else it is nearly solved
            line = f"no advantage of {agent} differs from 0, although rewards differ: its groups have no spread"
            yield Sight(name="no advantage", agent=agent, line=line, patience=LONG_PATIENCE)

    def _of_turns(self, agent: str, now: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Sight]:
        begun = len(self.rows) > 1
        if now["truncated"] < CUT or (begun and (self._nearly_best(row) or self._gain() > BETTER)):
            return  # who earns more by it, or nearly all there is, may need all its words
        line = f"{now['truncated']:.0%} of the turns of {agent} are cut at its max_tokens"
        first = next(each["agents"][agent]["truncated"] for each in self.rows if agent in each["agents"])
        meant = first >= CUT / 2  # an agent of one token, or a tight limit
        patience = PATIENCE if not meant else None if self.ever_differed else LONG_PATIENCE
        gained = ", and the reward is no better" if begun else ""
        yield Sight(name="truncated", agent=agent, line=f"{line}{gained}", patience=patience)
