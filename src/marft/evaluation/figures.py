"""From played episodes to the figures of a benchmark. The tasks are the sample: intervals are over tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from marft.evaluation.folder import Played
from marft.evaluation.intervals import ANY, IntervalEstimate, mean_estimate, paired_difference, wilson_interval
from marft.evaluation.pass_at_k import majority_at_k, pass_at_k

Figure = Literal["accuracy", "reward"]
REASONS = 5  # why episodes failed: the most frequent ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One benchmark, or the same with an agent silent."""

    tasks: int
    samples: int
    accuracy: IntervalEstimate | None  # None: the environment does not say what is right
    pass_at: dict[int, float]
    majority_at: dict[int, float]
    reward: IntervalEstimate
    tokens_per_turn: dict[str, float]  # by agent
    tokens_by_agent: dict[str, float]  # an episode
    tokens_per_task: float  # an episode, of all agents
    seconds: float
    failed: int
    errors: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """What the team loses when one agent is silent, task by task on the same tasks."""

    agent: str
    figures: Figures
    accuracy: IntervalEstimate | None
    reward: IntervalEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came out on one benchmark."""

    name: str
    team: Figures
    drops: tuple[Drop, ...] = ()


Tasks = dict[str, list[Played]]  # the samples of each task


def make_figures(rows: Sequence[Played], ks: Sequence[int], judged: bool | None = None) -> Figures:
    """All samples of all tasks of one benchmark; failed episodes count as wrong and are counted.

    `judged` says whether there are right answers, where these episodes may all have failed.
    """
    tasks = group_by_task(rows)
    known = is_judged(rows) if judged is None else judged
    graded = [samples for samples in tasks.values() if is_graded(samples)] if known else []
    errors = Counter(row.error for row in rows if row.error is not None)
    turns, tokens = sum_by_agent(rows, "turns"), sum_by_agent(rows, "tokens")
    return Figures(
        tasks=len(tasks),
        samples=len(rows) // len(tasks),
        accuracy=estimate_accuracy(graded) if graded else None,
        pass_at={k: fmean(pass_at_k(len(s), sum(map(is_right, s)), k) for s in graded) for k in ks} if graded else {},
        majority_at={k: fmean(majority_score(samples, k) for samples in graded) for k in ks} if graded else {},
        reward=mean_estimate(task_scores(list(tasks.values()), "reward")),
        tokens_per_turn={agent: tokens[agent] / turns[agent] for agent in turns},
        tokens_by_agent={agent: tokens[agent] / len(rows) for agent in turns},
        tokens_per_task=sum(tokens.values()) / len(rows),
        seconds=sum(row.seconds for row in rows),
        failed=errors.total(),
        errors=dict(errors.most_common(REASONS)),
    )


def estimate_accuracy(tasks: Sequence[Sequence[Played]]) -> IntervalEstimate:
    """The mean over tasks. Of one sample each with Wilson's interval, of more with Student's t on the tasks' means."""
    found = task_scores(tasks, "accuracy")
    if all(len(samples) == 1 for samples in tasks):
        return IntervalEstimate(value=fmean(each.value for each in found), interval=found[0].interval)
    return mean_estimate(found, within=(0.0, 1.0))


def make_drop(agent: str, team: Sequence[Played], silent: Sequence[Played], ks: Sequence[int]) -> Drop:
    """The team minus the team with `agent` silent, paired by task."""
    ours, theirs = group_by_task(team), group_by_task(silent)
    both = [task for task in ours if is_graded(ours[task]) and is_graded(theirs[task])]
    judged = is_judged(team) and bool(both)
    return Drop(
        agent=agent,
        figures=make_figures(silent, ks, judged),
        accuracy=task_difference([ours[t] for t in both], [theirs[t] for t in both], "accuracy") if judged else None,
        reward=task_difference(list(ours.values()), [theirs[task] for task in ours], "reward"),
    )


def task_difference(
    ours: Sequence[Sequence[Played]], theirs: Sequence[Sequence[Played]], figure: Figure
) -> IntervalEstimate:
    """The mean of ours minus theirs over tasks, which both list in the same order."""
    return paired_difference(
        task_scores(ours, figure), task_scores(theirs, figure), within=(-1.0, 1.0) if figure == "accuracy" else ANY
    )


# --- tasks ------------------------------------------------------------------------------------------------------------
def group_by_task(rows: Sequence[Played]) -> Tasks:
    """The episodes of each task id, in the order of the rows."""
    tasks: Tasks = {}
    for row in rows:
        tasks.setdefault(row.slot.task, []).append(row)
    return tasks


def is_judged(rows: Sequence[Played]) -> bool:
    """Whether the environment says what is right at all."""
    return any(row.correct is not None for row in rows)


def is_graded(samples: Sequence[Played]) -> bool:
    """Whether a task has a right answer; where all samples failed, it is taken for one that nobody found."""
    return is_judged(samples) or all(row.error is not None for row in samples)


def is_right(row: Played) -> bool:
    """Whether the environment judged the episode correct; one that failed was not."""
    return bool(row.correct)


def task_scores(tasks: Sequence[Sequence[Played]], figure: Figure) -> list[IntervalEstimate]:
    """Each task's mean over its samples.

    With it comes the interval that stands where tasks show no spread: Wilson's of all of them for an accuracy.
    """
    if figure == "reward":
        return [IntervalEstimate(value=fmean(row.reward for row in samples)) for samples in tasks]
    means = [fmean(map(is_right, samples)) for samples in tasks]
    interval = wilson_interval(sum(means), len(means))
    return [IntervalEstimate(value=mean, interval=interval) for mean in means]


def majority_score(samples: Sequence[Played], k: int) -> float:
    """maj@k of one task: the chance that the majority of k of its samples is right."""
    return majority_at_k([row.answer for row in samples], [is_right(row) for row in samples], k)


def sum_by_agent(rows: Sequence[Played], of: Literal["turns", "tokens"]) -> Counter[str]:
    """The sum over all rows of turns or tokens, by agent."""
    found: Counter[str] = Counter()
    for row in rows:
        found.update(row.turns if of == "turns" else row.tokens)
    return found
