"""Whether a run is ruining itself: signs of collapse, read off the metrics of its iterations.

A sign warns when it is first seen. Where it lasts, the run has collapsed. The watch keeps nothing but the rows it was
shown, so that a resumed run, shown the rows that were kept, knows what an uninterrupted one would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

Name = Literal["reward", "kl", "entropy", "truncated", "constant", "not finite"]

PATIENCE = 3  # iterations for which a sign must last
LONG_PATIENCE = 10  # where it was there from the start, and nothing was ever learnt
WINDOW = 3  # iterations whose mean reward is compared
SURE = 4.0  # standard errors by which a reward must have been above its floor
BETTER = 3.0  # standard errors by which the last iterations must have earned more, or less, than the first
FLOOR = 0.1  # of the way from the floor to the best: less counts as being there
KL = 1.0  # a token, of one update
NOISE = 1 / 3  # of the way from the first entropy to that of uniform noise
CERTAIN = 0.01  # of the first entropy
CUT = 0.9  # of an agent's turns
NOBODY = {"steps": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What is wrong, with whom (None: the team), since which iteration, and whether it has lasted too long."""

    name: Name
    agent: str | None
    line: str
    since: int
    collapsed: bool


class CollapseWatch:
    """Looks at one iteration after the other. `noise` is the entropy of uniform noise in each agent's vocabulary."""

    def __init__(self, noise: Mapping[str, float]) -> None:
        self.noise = noise
        self.rows: list[Mapping[str, Any]] = []
        self.since: dict[tuple[Name, str | None], int] = {}  # when each sign that is there now was first seen

    def look(self, row: Mapping[str, Any]) -> list[Sign]:
        """The signs that are new, or have just lasted too long."""
        self.rows.append(row)
        seen = {(name, agent): (line, patience) for name, agent, line, patience in self._signs(row)}
        self.since = {key: self.since.get(key, row["iteration"]) for key in seen}
        suspect = min((key for key in seen if key[1] is not None), key=self.since.__getitem__, default=None)
        found = []
        for key, (line, patience) in seen.items():
            lasted = row["iteration"] - self.since[key] + 1
            if lasted not in (1, patience):
                continue
            name, agent = key
            if agent is None and suspect is not None:  # what happens to the team has a cause in somebody
                agent, line = suspect[1], f"{line}; {seen[suspect][0]}"
            found.append(Sign(name=name, agent=agent, line=line, since=self.since[key], collapsed=lasted == patience))
        return found

    def _signs(self, row: Mapping[str, Any]) -> Iterator[tuple[Name, str | None, str, int | None]]:
        """Every sign of one iteration, and for how many iterations it may last (None: for ever)."""
        yield from self._of_the_team(row)
        for agent, now in row["agents"].items():
            yield from self._of_an_agent(agent, now)

    def _of_the_team(self, row: Mapping[str, Any]) -> Iterator[tuple[Name, str | None, str, int | None]]:
        reward, best = row["reward"], self._best()
        floor = min(each["reward_min"] for each in self.rows)
        if best is not None and reward <= floor + FLOOR * (best - floor):
            yield "reward", None, f"reward {reward:.3f} is at its floor, after {best:.3f}", PATIENCE
        if row["reward_min"] == row["reward_max"]:
            highest = max(each["reward_max"] for each in self.rows)
            if any(each["reward_min"] < each["reward_max"] for each in self.rows):
                if reward < highest:  # at the highest that was ever earned, the task is solved
                    yield (
                        "constant",
                        None,
                        f"every episode earns {reward:.3f}, and nothing is left to learn from",
                        PATIENCE,
                    )
            else:
                yield (
                    "constant",
                    None,
                    f"every episode has earned {reward:.3f} so far: there is nothing to learn from",
                    None,
                )

    def _of_an_agent(self, agent: str, now: Mapping[str, Any]) -> Iterator[tuple[Name, str | None, str, int | None]]:
        if not now["steps"]:
            return  # it did not learn, and nobody looked at its policy
        first = next(each["agents"][agent] for each in self.rows if each["agents"].get(agent, NOBODY)["steps"])
        moved = now.get("kl_final", now["kl"])
        if not moved <= KL:
            yield "kl", agent, f"an update moved {agent} by a KL of {moved:.2f} a token", PATIENCE
        loud = first["entropy"] + NOISE * (self.noise[agent] - first["entropy"])
        if first["entropy"] < NOISE * self.noise[agent] and not now["entropy"] <= loud:  # some begin as noise
            entropy = f"{first['entropy']:.2f} to {now['entropy']:.2f}, that of noise being {self.noise[agent]:.2f}"
            yield "entropy", agent, f"the entropy of {agent} has risen from {entropy}", PATIENCE
        if now["entropy"] < CERTAIN * first["entropy"] and self._gain() < -BETTER:
            entropy = f"{first['entropy']:.3f} to {now['entropy']:.5f}"
            yield (
                "entropy",
                agent,
                f"the entropy of {agent} has vanished, from {entropy}, and the reward is worse",
                PATIENCE,
            )
        if now["truncated"] >= CUT and not self._is_well():  # who earns more by it may need all its words
            share = f"{now['truncated']:.0%} of the turns of {agent} are cut at its max_tokens"
            gained = ", and the reward is no better" if len(self.rows) > 1 else ""
            meant = first["truncated"] >= CUT / 2
            useless = all(each["reward_min"] == each["reward_max"] for each in self.rows)
            patience = PATIENCE if not meant else LONG_PATIENCE if useless else None
            yield "truncated", agent, f"{share}{gained}", patience

    def _best(self) -> float | None:
        """The best mean of some iterations in a row before this one, where it was surely above the floor."""
        before, floor = self.rows[:-1], min(each["reward_min"] for each in self.rows)
        windows = [before[i : i + WINDOW] for i in range(len(before) - WINDOW + 1)]
        sure = [mean for mean, error in map(mean_and_error, windows) if mean - floor > SURE * error]
        return max(sure, default=None)

    def _is_well(self) -> bool:
        """Whether the last iterations surely earned more than the first, or the last nearly the most that was ever earned."""
        floor, highest = min(each["reward_min"] for each in self.rows), max(each["reward_max"] for each in self.rows)
        nearly = self.rows[-1]["reward"] > highest - FLOOR * (highest - floor)
        return len(self.rows) > 1 and (nearly or self._gain() > BETTER)

    def _gain(self) -> float:
        """What the last iterations earned more than the first, in standard errors."""
        size = max(1, min(WINDOW, len(self.rows) // 2))
        (first, error), (last, other) = mean_and_error(self.rows[:size]), mean_and_error(self.rows[-size:])
        return (last - first) / max(math.hypot(error, other), 1e-12)


def mean_and_error(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The mean reward of some iterations, and its standard error over their tasks."""
    errors = [row["reward_error"] for row in rows]
    return fmean(row["reward"] for row in rows), math.hypot(*errors) / len(rows)
