"""From a question to its answer, cell by cell; what is finished is not done again."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from shlex import quote
from typing import Any

from marft.commands.train import resume_run, start_run
from marft.config import Config
from marft.evaluation.benchmarks import eval_settings
from marft.evaluation.comparison.cells import cell_config, vote_config, vote_count
from marft.evaluation.comparison.folder import PLOT, TABLE, Cell, Comparison, Question
from marft.evaluation.comparison.plot import draw_plot
from marft.evaluation.comparison.report import Report, make_report, report_grid, report_markdown
from marft.evaluation.failures import Tolerance
from marft.evaluation.held_out import evaluate_held_out
from marft.evaluation.tables import WIDE
from marft.files import Damaged
from marft.rollouts.event_loop import one_loop
from marft.runs.config_diff import first_difference
from marft.runs.directory import SUMMARY, RunDirectory
from marft.runs.lock import Lock
from marft.terminal.display import Display, ensure_display
from marft.training.loading import load_trained_team
from marft.training.tracking import require_trackers
from marft.types import Collapse, Interrupted, MarftError


def compare(question: Question, path: Path, display: Display | None = None) -> Report:
    """Every cell that is still missing, then the table, the plot and the verdict."""
    require_trackers(question.config)
    with Lock(path), one_loop(), ensure_display(display) as showing:
        try:
            return run_comparison(question, path, showing)
        except KeyboardInterrupt:  # of a cell, which has named itself
            again = f"the same question goes on there: --run {quote(str(path))}"
            raise Interrupted(f"interrupted; what was done in {path} is kept; {again}") from None


def run_comparison(question: Question, path: Path, display: Display) -> Report:
    """Run all missing cells, write the report and print it."""
    comparison = Comparison.begin(path, question)
    display.say(f"comparison in {path}; should it be stopped, the same command with --run {quote(str(path))} goes on")
    first = question.config.seed
    cells = list(product(range(first, first + question.seeds), question.cells))
    for number, (seed, name) in enumerate(cells, start=1):
        title = f"cell {number} of {len(cells)}: {name}, seed {seed}"
        if comparison.find(name, seed):
            display.say(f"{title}; done before")
            continue
        display.say(f"{title}; {describe_budget(comparison, name, seed)}")
        comparison.add(make_cell(comparison, name, seed, display))
        gc.collect()  # the models of two cells need not fit into memory together
    report = make_report(question, comparison.cells)
    display.begin("drawing the plot")
    write_report(comparison, report)
    display.rest()
    print_report(display, report, path)
    return report


def describe_budget(comparison: Comparison, name: str, seed: int) -> str:
    """What a cell has to spend."""
    match name:
        case "team":
            return "the tokens it takes are the budget of the others"
        case "untuned" | "vote":
            return "evaluation only"
    return f"budget {comparison.get('team', seed).tokens_generated:,} tokens"


# --- cells -----------------------------------------------------------------------------------------------------------
def make_cell(comparison: Comparison, name: str, seed: int, display: Display) -> Cell:
    """Train or evaluate one cell."""
    match name:
        case "untuned":
            return untuned_cell(comparison, seed)
        case "vote":
            return vote_cell(comparison, seed, display)
    return trained_cell(comparison, name, seed, display)


def trained_cell(comparison: Comparison, name: str, seed: int, display: Display) -> Cell:
    """A cell with a run of its own, started or resumed; its budget is what the team's run generated."""
    budget = 1 if name == "team" else max(1, comparison.get("team", seed).tokens_generated)
    config = cell_config(comparison.question, name, seed=seed, budget=budget)
    run = comparison.run_path(name, seed)
    try:
        summary = train_cell(config, run, display)
    except Collapse as error:
        display.say(
            f"{name}, seed {seed}: {str(error).partition(' Nothing already')[0]} The comparison goes on without it"
        )
        return collapsed_cell(name, seed, RunDirectory.open(run))
    return replace(
        cell_from_row(name, seed, summary["after"]),
        tokens_generated=summary["tokens"]["generated"],
        tokens_trained=summary["tokens"]["trained"],
        iterations=summary["iterations"],
        seconds=summary["seconds"],
    )


def collapsed_cell(name: str, seed: int, run: RunDirectory) -> Cell:
    """A run that stopped itself has no figures after training, but what it cost until then."""
    rows = run.metrics()
    return replace(
        cell_from_row(name, seed, evaluation_before(run)),
        failed=0,
        reward=None,
        accuracy=None,
        accuracy_ci95=None,
        tokens_generated=sum(row["tokens"]["rollout"] for row in rows),
        tokens_trained=sum(row["tokens"]["update"] for row in rows),
        iterations=len(rows),
        seconds=sum(sum(row["seconds"].values()) for row in rows),
        collapsed=True,
    )


def untuned_cell(comparison: Comparison, seed: int) -> Cell:
    """The team's run knows how well it did before training."""
    return cell_from_row("untuned", seed, evaluation_before(RunDirectory.open(comparison.run_path("team", seed))))


def evaluation_before(run: RunDirectory) -> Mapping[str, Any]:
    """A run's held-out figures before training."""
    summary = run.summary() or {}
    if "before" not in summary:
        raise Damaged(run.path / SUMMARY, "has no evaluation before training")
    found: Mapping[str, Any] = summary["before"]
    return found


def vote_cell(comparison: Comparison, seed: int, display: Display) -> Cell:
    """The trained single agent; what its training cost is the vote's cost too. One that collapsed has nothing to vote."""
    team, single = comparison.get("team", seed), comparison.get("single", seed)
    votes = vote_count(team.tokens_per_task, single.tokens_per_task)
    if single.collapsed:
        return replace(single, name="vote", votes=votes)
    run = RunDirectory.open(comparison.run_path("single", seed))
    started = time.perf_counter()
    row = evaluate_run(vote_config(run.config(), votes), run, display)
    return replace(
        cell_from_row("vote", seed, row),
        tokens_generated=single.tokens_generated,
        tokens_trained=single.tokens_trained,
        iterations=single.iterations,
        seconds=single.seconds + time.perf_counter() - started,
        votes=votes,
    )


def cell_from_row(name: str, seed: int, row: Mapping[str, Any]) -> Cell:
    """What an evaluation says of a cell; costs are filled in by who knows them."""
    interval = row.get("accuracy_ci95")
    return Cell(
        name=name, seed=seed, tasks=row["tasks"], failed=row["failed"], reward=row["reward"],
        accuracy=row.get("accuracy"), accuracy_ci95=(interval[0], interval[1]) if interval else None,
        tokens_per_task=row["tokens_per_task"], tokens_generated=0, tokens_trained=0, iterations=0, seconds=0.0,
    )  # fmt: skip


def train_cell(config: Config, path: Path, display: Display) -> dict[str, Any]:
    """The run's summary: of a new run, or of one that goes on, if there is anything left to do."""
    run = RunDirectory(path)
    if not run.exists():
        return start_run(config, path, display=display)
    if first_difference(run.config(), config):
        raise MarftError(run.taken_message(config))
    return resume_run(path, [], display=display)


def evaluate_run(config: Config, run: RunDirectory, display: Display) -> Mapping[str, Any]:
    """An evaluation as `marft eval` does it, with the adapters of a run."""
    _, parts = load_trained_team(run.path, config.model_dump(mode="json"), status=display)
    with parts:
        display.begin("evaluating", unit="episodes")
        tolerance = Tolerance(share=config.train.failures, remedy="mend it, then give the same command with --run DIR")
        return evaluate_held_out(parts.runner, eval_settings(config), config.seed, parts.lockstep, tolerance=tolerance)


# --- the answer ------------------------------------------------------------------------------------------------------
def write_report(comparison: Comparison, report: Report) -> None:
    """Into the comparison's folder."""
    config = comparison.question.config
    title = f"Is the team worth it? {config.env.name} with {config.model}"
    comparison.write(PLOT, draw_plot(report, title))
    comparison.write(TABLE, report_markdown(report, title).encode())
    comparison.save(asdict(report))


def print_report(display: Display, report: Report, path: Path) -> None:
    """Where the terminal is narrow, without the costs that come last."""
    grid = report_grid(report)
    if display.console.width < WIDE:
        grid = replace(grid, header=grid.header[:5], rows=[row[:5] for row in grid.rows])
    grid.show(display.console)
    display.say(report.verdict)
    display.say(report.basis)
    display.say(f"see {path / 'compare.md'}, compare.png and compare.json")
