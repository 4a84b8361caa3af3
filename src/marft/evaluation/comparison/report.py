"""What a comparison says: a table of means with intervals and costs, and one sentence that the intervals support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from marft.evaluation.comparison.folder import Cell, Question
from marft.evaluation.intervals import ANY, IntervalEstimate, mean_estimate, paired_difference
from marft.evaluation.tables import Grid, format_count, format_estimate

Figure = Literal["accuracy", "reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One cell over all seeds; figures and costs are means over those that did not collapse, if there are any."""

    name: str
    label: str
    seeds: tuple[float, ...]  # each one's figure
    collapsed: int  # seeds
    score: IntervalEstimate | None  # None: all have collapsed
    lead: (
        IntervalEstimate | None
    )  # of the team over it, on the seeds that both have; None: it is the team, or there are none
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
    graded = all(cell.accuracy is not None for cell in cells if not cell.collapsed)
    figure: Figure = "accuracy" if graded else "reward"
    lines = tuple(make_line(name, own, by_name["team"], figure) for name, own in by_name.items())
    return Report(
        figure=figure, lines=lines, verdict=make_verdict(lines), basis=describe_intervals(by_name["team"], cells)
    )


def make_line(name: str, own: Sequence[Cell], team: Sequence[Cell], figure: Figure) -> Line:
    """One cell's row: its mean over seeds, and the team's lead over it, paired by seed."""
    graded = figure == "accuracy"
    scores, teams = seed_estimates(own, figure), seed_estimates(team, figure)
    both = [seed for seed in scores if seed in teams and name != "team"]
    lead = paired_difference(
        [teams[seed] for seed in both], [scores[seed] for seed in both], within=(-1.0, 1.0) if graded else ANY
    ) if both else None  # fmt: skip
    counted = [cell for cell in own if not cell.collapsed] or own
    return Line(
        name=name,
        label=cell_label(own),
        seeds=tuple(score.value for score in scores.values()),
        collapsed=len(own) - len(scores),
        score=mean_estimate(list(scores.values()), within=(0.0, 1.0) if graded else ANY) if scores else None,
        lead=lead,
        tokens_generated=fmean(cell.tokens_generated for cell in counted),
        tokens_trained=fmean(cell.tokens_trained for cell in counted),
        iterations=fmean(cell.iterations for cell in counted),
        tokens_per_task=fmean(cell.tokens_per_task for cell in counted),
        seconds=fmean(cell.seconds for cell in counted),
    )


def seed_estimates(cells: Sequence[Cell], figure: Figure) -> dict[int, IntervalEstimate]:
    """The figure of each seed that did not collapse; an accuracy comes with the interval on its tasks."""
    found = {}
    for cell in cells:
        if figure == "accuracy" and cell.accuracy is not None:
            found[cell.seed] = IntervalEstimate(value=cell.accuracy, interval=cell.accuracy_ci95)
        elif cell.reward is not None:
            found[cell.seed] = IntervalEstimate(value=cell.reward)
    return found


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
        f"vs {line.label} {describe_score(line)}: {describe_lead(line.lead) if line.lead else 'they cannot be compared'}"
        for line in rivals
    )
    return f"team {describe_score(team)} {'; '.join(said)}"


def describe_score(line: Line) -> str:
    """The mean with its interval, and how many seeds collapsed."""
    if line.score is None:
        return "collapsed"
    few = f" ({line.collapsed} of {line.collapsed + len(line.seeds)} collapsed)" if line.collapsed else ""
    return f"{format_estimate(line.score)}{few}"


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


def describe_intervals(team: Sequence[Cell], cells: Sequence[Cell]) -> str:
    """How many seeds and tasks the intervals are over, how many episodes failed and how many runs collapsed."""
    tasks, failed = team[0].tasks, sum(cell.failed for cell in cells)
    collapsed = [f"{cell.name} (seed {cell.seed})" for cell in cells if cell.collapsed]
    if len(team) == 1:
        text = f"One seed, {tasks} held-out tasks; intervals are 95 % on these tasks and say nothing of other seeds."
    else:
        text = f"Means of {len(team)} seeds on the same {tasks} held-out tasks; intervals are 95 % over seeds."
    text += f" {failed} held-out episodes failed and count as wrong." if failed else ""
    return f"{text} Collapsed, and left out of the means: {', '.join(collapsed)}." if collapsed else text


# --- the table -------------------------------------------------------------------------------------------------------
def report_grid(report: Report) -> Grid:
    """A line a cell; the costs come last, and may be left out where there is little room."""
    header = ["cell", f"held-out {report.figure}", "team minus it", "tokens a task", "tokens generated in training"]
    rows = [
        [
            line.label,
            describe_score(line),
            format_estimate(line.lead, sign="+") if line.lead else "",
            f"{line.tokens_per_task:.1f}",
            format_count(line.tokens_generated),
            format_count(line.tokens_trained),
            f"{round(line.iterations, 1):g}",
            format_count(line.seconds),
        ]
        for line in report.lines
    ]
    return Grid(header=[*header, "tokens trained", "iterations", "seconds"], rows=rows, whole=range(3))


def report_markdown(report: Report, title: str) -> str:
    """The report as the text of `compare.md`."""
    table = report_grid(report).markdown()
    return f"# {title}\n\n{table}\n\n{report.verdict}\n\n{report.basis}\n\n![{title}](compare.png)\n"
