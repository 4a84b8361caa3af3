"""What an evaluation found: two tables for people, as Markdown and on the terminal, and `results.json` for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from marft.evaluation.figures import Drop, Figures, Result
from marft.evaluation.intervals import IntervalEstimate
from marft.evaluation.tables import WIDE, Grid, format_count, format_estimate
from marft.terminal.console import PlainConsole

ONE = "95 % intervals over tasks: Wilson's, of a reward Student's t."
SEVERAL = "Means over samples; 95 % intervals over tasks: Student's t on the tasks' means, or Wilson's where all agree."
PAIRED = (
    "The drop is the team's figure minus the one with that agent silent, paired by task; its interval is "
    "Student's t, or Newcombe's where all tasks agree."
)


def main_grid(results: Sequence[Result], wide: bool = True) -> Grid:
    """A line a benchmark, and their mean; pass@1 and maj@1 are the accuracy and need no column.

    Where there is little room, the largest k stands for all.
    """
    judged = any(each.team.accuracy for each in results)
    ks = [k for k in max((each.team.pass_at for each in results), key=len) if k > 1]
    ks = ks if wide else ks[-1:]
    header = ["benchmark", "tasks × samples", "accuracy" if judged else "reward"]
    header += [f"{kind}@{k}" for kind in ("pass", "maj") for k in ks]
    rows = [benchmark_row(each.name, each.team, ks, judged) for each in results]
    if len(results) > 1 and all(each.team.accuracy for each in results):
        mean = macro_average([each.team for each in results])
        found = [f"{mean[kind][str(k)]:.3f}" for kind in ("pass@k", "maj@k") for k in ks]
        rows.append(["mean", "", f"{mean['accuracy']:.3f}", *found, "", ""])
    return make_grid([*header, "tokens a task", "seconds"], rows)


def benchmark_row(name: str, figures: Figures, ks: Sequence[int], judged: bool) -> list[str]:
    """An environment that does not judge has its reward among the accuracies of others, and says so."""
    score = figures.accuracy or figures.reward
    told = format_estimate(score) if figures.accuracy or not judged else f"reward {format_estimate(score)}"
    found = [f"{at[k]:.3f}" if at else "" for at in (figures.pass_at, figures.majority_at) for k in ks]
    costs = [f"{figures.tokens_per_task:.1f}", format_count(figures.seconds)]
    return [name, f"{figures.tasks} × {figures.samples}", told, *found, *costs]


def drop_grid(results: Sequence[Result]) -> Grid:
    """A row for every benchmark and agent: the score without that agent, and how much is lost."""
    return make_grid(
        ["benchmark", "silent", "without it", "drop", "tokens a task"],
        [[each.name, *drop_row(drop)] for each in results for drop in each.drops],
    )


def make_grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    """A table whose intervals and numbers are never broken."""
    whole = [i for i, name in enumerate(header) if i in (2, 3) or (i > 0 and " " not in name)]
    return Grid(header=header, rows=rows, whole=whole)


def drop_row(drop: Drop) -> list[str]:
    """The cells of one row: agent, score without it, drop, tokens a task."""
    score, loss = (drop.figures.accuracy, drop.accuracy) if drop.accuracy else (drop.figures.reward, drop.reward)
    assert score is not None
    return [drop.agent, format_estimate(score), format_estimate(loss, sign="+"), f"{drop.figures.tokens_per_task:.1f}"]


def remarks(results: Sequence[Result]) -> list[str]:
    """What the main table has no room for."""
    said = [SEVERAL if any(each.team.samples > 1 for each in results) else ONE]
    for each in results:
        spoken = ", ".join(f"{agent} {tokens:.1f}" for agent, tokens in each.team.tokens_per_turn.items())
        said.append(f"{each.name}: tokens a turn: {spoken}.")
        for who, figures in (("", each.team), *((f" with {drop.agent} silent", drop.figures) for drop in each.drops)):
            if figures.failed:
                reason = " ".join(next(iter(figures.errors)).split())
                said.append(
                    f"{each.name}{who}: {figures.failed} of {figures.tasks * figures.samples} episodes failed and count as "
                    f"wrong; the most frequent reason: {reason}"
                )
    return said


def results_markdown(results: Sequence[Result], title: str) -> str:
    """The whole report as the text of `results.md`."""
    parts = [f"# {title}", main_grid(results).markdown(), *remarks(results)]
    if any(each.drops for each in results):
        parts += ["## With one agent silent", drop_grid(results).markdown(), PAIRED]
    return "\n\n".join(parts) + "\n"


def print_results(console: PlainConsole, results: Sequence[Result]) -> None:
    """Print the report on a console, with fewer columns where it is narrow."""
    main_grid(results, wide=console.width >= WIDE).show(console)
    for text in remarks(results):
        console.say(text)
    if any(each.drops for each in results):
        drop_grid(results).show(console)
        console.say(PAIRED)


# --- results.json ----------------------------------------------------------------------------------------------------
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
