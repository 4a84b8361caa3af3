"""What a comparison says: a table of means with intervals and costs, and one sentence that the intervals support."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from marft.evaluation.comparison.folder import Cell, Question
from marft.evaluation.intervals import ANY, IntervalEstimate, mean_estimate, paired_difference

Figure = Literal["accuracy", "reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One cell over all seeds; costs are means."""

    name: str
    label: str
    seeds: tuple[float, ...]  # each one's figure
    score: IntervalEstimate
    lead: IntervalEstimate | None  # of the team over it; None: it is the team
    tokens_generated: float
    tokens_trained: float
    iterations: float
    tokens_per_task: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The table, the sentence that its intervals support, and what these intervals are about."""

    figure: Figure
    lines: tuple[Line, ...]
    verdict: str
    basis: str  # what the intervals are about


def make_report(question: Question, cells: Sequence[Cell]) -> Report:
    """The report of all cells; it is about accuracy where every cell has one, else about reward."""
    by_name = {
        name: sorted((cell for cell in cells if cell.name == name), key=lambda cell: cell.seed)
        for name in question.cells
    }
    figure: Figure = "accuracy" if all(cell.accuracy is not None for cell in cells) else "reward"
    lines = tuple(make_line(name, own, by_name["team"], figure) for name, own in by_name.items())
    return Report(
        figure=figure, lines=lines, verdict=make_verdict(lines), basis=describe_intervals(by_name["team"], cells)
    )


def make_line(name: str, own: Sequence[Cell], team: Sequence[Cell], figure: Figure) -> Line:
    """One cell's row: its mean over seeds, and the team's lead over it, paired by seed."""
    graded = figure == "accuracy"
    scores, teams = ([cell_estimate(cell, figure) for cell in found] for found in (own, team))
    return Line(
        name=name,
        label=cell_label(own),
        seeds=tuple(score.value for score in scores),
        score=mean_estimate(scores, within=(0.0, 1.0) if graded else ANY),
        lead=None if name == "team" else paired_difference(teams, scores, within=(-1.0, 1.0) if graded else ANY),
        tokens_generated=fmean(cell.tokens_generated for cell in own),
        tokens_trained=fmean(cell.tokens_trained for cell in own),
        iterations=fmean(cell.iterations for cell in own),
        tokens_per_task=fmean(cell.tokens_per_task for cell in own),
        seconds=fmean(cell.seconds for cell in own),
    )


def cell_estimate(cell: Cell, figure: Figure) -> IntervalEstimate:
    """One seed's figure; an accuracy comes with the interval on its tasks."""
    if figure == "accuracy" and cell.accuracy is not None:
        return IntervalEstimate(value=cell.accuracy, interval=cell.accuracy_ci95)
    return IntervalEstimate(value=cell.reward)


def cell_label(own: Sequence[Cell]) -> str:
    """A vote says how many answers it counts, which may differ from seed to seed."""
    votes = [cell.votes for cell in own if cell.votes is not None]
    if not votes:
        return own[0].name
    few, many = min(votes), max(votes)
    return f"{own[0].name}×{few}" if few == many else f"{own[0].name}×{few}–{many}"


# --- words -----------------------------------------------------------------------------------------------------------
def make_verdict(lines: Sequence[Line]) -> str:
    """The team against one agent alone, and against that agent's majority."""
    team = next(line for line in lines if line.name == "team")
    rivals = [line for line in lines if line.name in ("single", "vote")]
    said = (
        f"vs {line.label} {format_estimate(line.score)}: {describe_lead(line.lead)}"
        for line in rivals
        if line.lead is not None
    )
    return f"team {format_estimate(team.score)} {'; '.join(said)}"


def describe_lead(lead: IntervalEstimate) -> str:
    """What the interval of a lead supports: better, worse, or nothing."""
    if lead.interval is None:
        return "no difference can be told from one seed; give --seeds 3"
    low, high = lead.interval
    if low > 0:
        return f"the team is better by {format_estimate(lead)}"
    if high < 0:
        return f"the team is worse by {format_estimate(IntervalEstimate(value=-lead.value, interval=(-high, -low)))}"
    return f"no difference can be told ({format_estimate(lead, sign='+')})"


def format_estimate(estimate: IntervalEstimate, sign: Literal["", "+"] = "") -> str:
    """`0.512 [0.480, 0.544]`, or the value alone where there is no interval; with `sign` a plus is written."""
    value = f"{estimate.value:{sign}.3f}"
    if estimate.interval is None:
        return value
    low, high = estimate.interval
    return f"{value} [{low:.3f}, {high:.3f}]"


def describe_intervals(team: Sequence[Cell], cells: Sequence[Cell]) -> str:
    """How many seeds and tasks the intervals are over, and how many episodes failed."""
    tasks, failed = team[0].tasks, sum(cell.failed for cell in cells)
    if len(team) == 1:
        text = f"One seed, {tasks} held-out tasks; intervals are 95 % on these tasks and say nothing of other seeds."
    else:
        text = f"Means of {len(team)} seeds on the same {tasks} held-out tasks; intervals are 95 % over seeds."
    return f"{text} {failed} held-out episodes failed and count as wrong." if failed else text


# --- the table -------------------------------------------------------------------------------------------------------
def table_columns(report: Report) -> dict[str, Callable[[Line], str]]:
    """The table's header, and for each column how its cell is made from a line."""
    return {
        "cell": lambda line: line.label,
        f"held-out {report.figure}": lambda line: format_estimate(line.score),
        "team minus it": lambda line: format_estimate(line.lead, sign="+") if line.lead else "",
        "tokens a task": lambda line: f"{line.tokens_per_task:.1f}",
        "tokens generated in training": lambda line: format_count(line.tokens_generated),
        "tokens trained": lambda line: format_count(line.tokens_trained),
        "iterations": lambda line: f"{round(line.iterations, 1):g}",
        "seconds": lambda line: format_count(line.seconds),
    }


def format_count(value: float) -> str:
    """Rounded half up to an integer, with thousands separated by commas."""
    return f"{math.floor(value + 0.5):,}"


def report_markdown(report: Report, title: str) -> str:
    """The report as the text of `compare.md`."""
    found = table_columns(report)
    rows = [list(found), ["---"] * len(found), *([cell(line) for cell in found.values()] for line in report.lines)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"# {title}\n\n{table}\n\n{report.verdict}\n\n{report.basis}\n\n![{title}](compare.png)\n"
