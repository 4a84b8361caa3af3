"""Tables and curves of docs/scaling.md, from what the simulation of a cluster and its check against real runs left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Result = Mapping[str, Any]
SHOWN = (2, 8, 64, 512, 1024)  # GPUs of the table
COLOURS = {0: "#7f7f7f", 1: "#1f77b4", 2: "#2ca02c", 4: "#d62728"}  # by lag
LARGEST = 32  # GPUs with which the queues were compared


def scaling_table(result: Result) -> str:
    """The time of a run over that of the synchronous one, by size, tails and lag."""
    lines = [
        "| GPUs | σ | lag 0 | lag 1 | lag 2 | lag 4 | learner : players | learner idle | players idle |",
        "|---" * 9 + "|",
    ]
    for gpus in SHOWN:
        for sigma in dict.fromkeys(row["sigma"] for row in result["scaling"]):
            own = {row["lag"]: row for row in result["scaling"] if (row["gpus"], row["sigma"]) == (gpus, sigma)}
            if 1 not in own:
                continue
            ratios = " | ".join(f"{own[lag]['time_ratio']:.2f}" for lag in COLOURS)
            one = own[1]
            waits = f"{share(one['learner_idle'])} | {share(one['player_idle'])}"
            lines.append(f"| {gpus:,} | {sigma} | {ratios} | {one['learners']} : {one['players']} | {waits} |")
    return "\n".join(lines)


def queue_table(result: Result) -> str:
    """The rule of marft beside the queue of other systems: time over that of the synchronous run, and worst lag."""
    head = [
        "GPUs",
        "σ",
        "lag asked for",
        "in order, shards",
        "in order, groups",
        "ready first, groups",
        "its worst lag",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in result["queues"]:
        where = [row[key] for key in ("gpus", "sigma", "lag")]
        times = [f"{row[key]['time_ratio']:.2f}" for key in ("shards", "groups", "ready_first")]
        assert row["shards"]["worst_lag"] == row["groups"]["worst_lag"] == row["lag"]
        lines.append("| " + " | ".join(map(str, [*where, *times, f"**{row['ready_first']['worst_lag']}**"])) + " |")
    return "\n".join(lines)


def limits_table(result: Result) -> str:
    """What failures, publication and an assumption change."""
    lines = ["| what is varied | lag | time |", "|---|---|---|"]
    for row in result["failures"]:
        what = f"a player fails {row['failures_per_hour']:g} times an hour: {row['replays']} replays"
        lines.append(f"| {what} | {row['lag']} | {row['seconds_over_none']:.2f} × that without failures |")
    for row in result["publication"]:
        how = "handed on from player to player" if row["tree"] else "sent to one after the other"
        what = f"adapters for {row['players']} players {how}"
        lines.append(f"| {what} | {row['lag']} | {row['seconds_over_free']:.2f} × that without sending |")
    for row in result["assumptions"]:
        what = f"{share(row['fixed_share'])} of a step of 256 rows is there with one row"
        lines.append(
            f"| {what}; {row['learners']} : {row['players']} | 1 | {row['time_ratio']:.2f} × the synchronous |"
        )
    return "\n".join(lines)


def error_table(result: Result) -> str:
    """Simulated against real seconds of an iteration."""
    head = [
        "players",
        "an episode waits",
        "a shard",
        "an update",
        "in turn",
        "simulated",
        "measured",
        "error",
        "an update beside players",
        "error with that",
    ]
    keys = ("seconds_of_a_shard", "seconds_of_an_update", "in_turn", "simulated", "measured")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in result["rows"]:
        cells = [
            str(row["players"]),
            f"{row['pause']} s",
            *(f"{row[key]:.2f}" for key in keys),
            f"**{100 * row['error']:+.0f} %**",
        ]
        cells += [f"{row['update_beside_players']:.2f}", f"{100 * row['error_with_that_update']:+.1f} %"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def share(number: float) -> str:
    return f"{100 * number:.0f} %"


def plot(result: Result, path: Path) -> None:
    """Three panels: one learner and more and more players; the best split of a cluster; what two queues pay in true lag."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (few, many, lags) = plt.subplots(1, 3, figsize=(13, 3.8), dpi=150)
    for lag, colour in COLOURS.items():
        own = [row for row in result["one_learner"] if (row["lag"], row["sigma"]) == (lag, 0.7)]
        draw(few, own, "players", "speed", color=colour, label=f"lag {lag}")
        for sigma, style in ((0.3, ":"), (1.2, "-")):
            own = [row for row in result["scaling"] if (row["lag"], row["sigma"]) == (lag, sigma)]
            draw(many, own, "gpus", "time_ratio", color=colour, ls=style, label=f"lag {lag}, σ {sigma}")
    for sigma, colour in ((0.3, "#1f77b4"), (0.7, "#2ca02c"), (1.2, "#d62728")):
        own = [row for row in result["queues"] if row["gpus"] == LARGEST and row["sigma"] == sigma]
        for queue, style in (("shards", "-"), ("ready_first", "--")):
            name = "in order" if queue == "shards" else "ready first"
            draw(
                lags,
                [row[queue] for row in own],
                "worst_lag",
                "time_ratio",
                color=colour,
                ls=style,
                label=f"{name}, σ {sigma}",
            )
    few.set(xlabel="players beside one learner", ylabel="speed-up over in turn", title="64 tasks × 8, σ 0.7")
    many.set(xlabel="GPUs, best split", ylabel="time / synchronous", title="against all GPUs in turn")
    lags.set(xlabel="true worst lag", ylabel="time / synchronous", title=f"{LARGEST} GPUs, lag 1, 2, 4 asked for")
    few.set_xscale("log", base=2)
    many.set_xscale("log", base=2)
    for axes in (few, many, lags):
        axes.set_ylim(0, None)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=7, loc="lower left" if axes is lags else "lower right", ncols=2)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def draw(axes: Any, rows: Sequence[Result], across: str, up: str, **style: Any) -> None:
    axes.plot([row[across] for row in rows], [row[up] for row in rows], lw=1.6, marker=".", **style)
