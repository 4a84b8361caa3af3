"""A comparison at a glance: each cell's mean with its interval, and every seed as a dot."""

from __future__ import annotations

from io import BytesIO

from marft.evaluation.comparison.report import Report, describe_score


def draw_plot(report: Report, title: str) -> bytes:
    """A PNG. Nothing in it is told by colour alone: the mean is a filled square, seeds are hollow circles beside it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = report.lines
    figure = Figure(figsize=(7.2, 1.2 + 0.55 * len(lines)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if lines[0].score is not None:
        axes.axvline(lines[0].score.value, color="0.6", ls=":", lw=1)  # the team's, to compare with
    for y, line in enumerate(lines):
        if line.score is not None and line.score.interval is not None:
            axes.plot(line.score.interval, (y, y), color="black", lw=1.5, marker="|", ms=9)
        if line.score is not None:
            axes.plot(line.score.value, y, color="black", marker="s", ms=6)
        beside = [y + 0.25] * len(line.seeds)
        axes.plot(line.seeds, beside, color="#1b6ca8", marker="o", ms=5, mfc="none", ls="none")
        axes.annotate(
            describe_score(line),
            (1.02, y),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            annotation_clip=False,
        )
    axes.set(
        xlabel=f"held-out {report.figure}: ■ mean and its 95 % interval, ○ each seed",
        ylim=(len(lines) - 0.4, -0.6),
    )
    axes.set_title(title, parse_math=False)  # a name with $ is no formula
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.grid(axis="x", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    data = BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()
