"""What an evaluation found, as `results.json` has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from marft.evaluation.figures import Drop, Figures, Result
from marft.evaluation.intervals import IntervalEstimate


def results_json(results: Sequence[Result]) -> dict[str, Any]:
    """Each benchmark under its name. Where there is one alone, its figures stand at the top too; of several, the mean."""
    rows = {each.name: result_json(each) for each in results}
    if len(results) == 1:
        return {**rows[results[0].name], "benchmarks": rows}
    return {"benchmarks": rows, "macro": macro_average([each.team for each in results])}


def result_json(result: Result) -> dict[str, Any]:
    """One benchmark's figures; with each agent silent too, below `ablations`."""
    row = figures_json(result.team)
    if result.drops:
        row["ablations"] = {drop.agent: drop_json(drop) for drop in result.drops}
    return row


def figures_json(figures: Figures) -> dict[str, Any]:
    """The keys of an evaluation in training mean the same here."""
    row: dict[str, Any] = {"tasks": figures.tasks, "samples": figures.samples}
    if figures.accuracy is not None:
        row |= estimate_json("accuracy", figures.accuracy)
        row |= {"pass@k": with_text_keys(figures.pass_at), "maj@k": with_text_keys(figures.majority_at)}
    row |= estimate_json("reward", figures.reward)
    row |= {
        "tokens": figures.tokens_per_turn,
        "tokens_by_agent": figures.tokens_by_agent,
        "tokens_per_task": figures.tokens_per_task,
        "seconds": round(figures.seconds, 3),
        "failed": figures.failed,
    }
    if figures.errors:
        row["errors"] = figures.errors
    return row


def drop_json(drop: Drop) -> dict[str, Any]:
    """The figures without the agent, and how much less they are."""
    row = figures_json(drop.figures)
    if drop.accuracy is not None:
        row |= estimate_json("accuracy_drop", drop.accuracy)
    return row | estimate_json("reward_drop", drop.reward)


def macro_average(benchmarks: Sequence[Figures]) -> dict[str, Any]:
    """Means over benchmarks, each of the same weight; what not all of them have is left out."""
    found: dict[str, Any] = {"reward": fmean(each.reward.value for each in benchmarks)}
    accuracies = [each.accuracy.value for each in benchmarks if each.accuracy is not None]
    if len(accuracies) == len(benchmarks):
        ks = benchmarks[0].pass_at
        found["accuracy"] = fmean(accuracies)
        found["pass@k"] = with_text_keys({k: fmean(each.pass_at[k] for each in benchmarks) for k in ks})
        found["maj@k"] = with_text_keys({k: fmean(each.majority_at[k] for each in benchmarks) for k in ks})
    return found


def estimate_json(name: str, estimate: IntervalEstimate) -> dict[str, Any]:
    """A figure under `name`, and its interval (or null) under `name_ci95`."""
    return {name: estimate.value, f"{name}_ci95": list(estimate.interval) if estimate.interval else None}


def with_text_keys(values: Mapping[int, float]) -> dict[str, float]:
    """The same values with text keys, as JSON objects need them."""
    return {str(k): value for k, value in values.items()}
