"""What `real.py report` writes: from the files of runs and evaluations to JSON, pictures and docs/results.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.docs.results_page import page
from benchmarks.docs.wrapping import wrapped
from marft.evaluation.intervals import estimate_mean
from marft.files import Truth, read_rows
from marft.runs.directory import EPISODES, RunDirectory
from marft.types import MarftError

LUCK = {"sampled": 0.7, "greedy": 0.0}  # how each team is measured: the temperature of all agents
SITTINGS = "sittings.jsonl"
NOTES = "notes.txt"  # what happened to the runs, in the words of whoever was there
COLOURS = {
    "untuned-single": "#bbbbbb",
    "untuned-duo": "#777777",
    "untuned-single-long": "#bbbbbb",
    "untuned-duo-long": "#777777",
    "single-token": "#e08e45",
    "duo-action": "#3a7d44",
    "duo-token": "#1b6ca8",
    "duo-grpo": "#d1495b",
}


def write_report(out: Path, docs: Path) -> None:
    """A JSON and a picture of each data set and model in `out`; then the page, of all that there are."""
    folders = [path.parent for path in sorted(out.glob(f"*/{SITTINGS}"))]
    if not folders:
        raise MarftError(f"{out} holds no results; make them with real.py run --out {out}")
    results = docs / "results"
    results.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        study = read_study(folder)
        (results / f"real-{folder.name}.json").write_text(json.dumps(study, indent=1) + "\n")
        plot(study, results / f"real-{folder.name}.png")
    (docs / "results.md").write_text(make_page(results))


def make_page(results: Path) -> str:
    return wrapped(page([json.loads(path.read_text()) for path in sorted(results.glob("real-*.json"))]))


# --- from the files --------------------------------------------------------------------------------------------------
def read_study(folder: Path) -> dict[str, Any]:
    found = {name: newest(folder, name) for name in COLOURS}
    entries = {name: read_entry(folder, name, at) for name, at in found.items() if at is not None}
    right = {name: read_right(folder / f"{name}-{row['iterations']}-sampled") for name, row in entries.items()}
    for name, row in entries.items():
        team = "untuned-duo" if "duo" in name else "untuned-single"
        untuned = max((team, f"{team}-long"), key=lambda other: sum(right.get(other, {}).values()))
        for key, other in (("gain", untuned), ("over_single", "single-token")):
            if row["iterations"] and other in right and name != other:
                row[key] = paired(right[name], right[other]) | {"over": other}
    sittings = [json.loads(line) for line in (folder / SITTINGS).read_text().splitlines()]
    unmeasured = read_unmeasured(folder, entries)
    learnt = [name for name, row in entries.items() if row["iterations"]] or list(unmeasured)
    study = {"name": folder.name, "entries": entries, "unmeasured": unmeasured}
    notes = (folder / NOTES).read_text().splitlines() if (folder / NOTES).exists() else []
    return study | {"settings": read_settings(folder, learnt), "sittings": sittings, "notes": notes}


def newest(folder: Path, name: str) -> int | None:
    """The iteration of a team's latest measurement."""
    found = (re.fullmatch(rf"{name}-(\d+)-sampled", path.parent.name) for path in folder.glob("*/results.json"))
    return max((int(match[1]) for match in found if match), default=None)


def read_entry(folder: Path, name: str, iteration: int) -> dict[str, Any]:
    row: dict[str, Any] = {"iterations": iteration, "measured": {}}
    for luck in LUCK:
        path = folder / f"{name}-{iteration}-{luck}" / "results.json"
        if path.exists():
            figures = json.loads(path.read_text())
            keys = ("tasks", "accuracy", "accuracy_ci95", "tokens_by_agent", "tokens_per_task", "seconds", "failed")
            row["measured"][luck] = {key: figures[key] for key in keys}
    if iteration:
        metrics = [each for each in RunDirectory(folder / name).metrics() if each["iteration"] <= iteration]
        row |= read_sums(metrics)
        row["curve"] = [each["accuracy"] for each in metrics]
        config = RunDirectory(folder / name).config()
        row |= {"planned": config.train.iterations, "lr": config.optimizer.lr}
    return row


def read_sums(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds and tokens of a whole training."""
    parts = {"seconds": ("rollout", "credit", "update"), "tokens": ("rollout", "update")}
    return {of: {kind: sum(each[of][kind] for each in metrics) for kind in kinds} for of, kinds in parts.items()}


def read_unmeasured(folder: Path, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Runs that learnt but were never measured, as one that was put aside under another name."""
    found = {}
    for path in sorted(folder.glob("*/metrics.jsonl")):
        run, name = RunDirectory(path.parent), path.parent.name
        metrics = run.metrics()
        if metrics and name not in entries:
            clipped = [max(agent["clip_fraction"] for agent in each["agents"].values()) for each in metrics]
            curve = [each["accuracy"] for each in metrics]
            found[name] = {"lr": run.config().optimizer.lr, "curve": curve, "clipped": clipped, **read_sums(metrics)}
    return found


def read_settings(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """How these runs were trained; what differs among them with all its values."""
    runs = [RunDirectory(folder / name).config() for name in names]
    found = [
        {"tasks": each.train.tasks, "samples": each.train.samples, "steps": each.train.minibatches * each.train.epochs,
         "decay": each.optimizer.decay, "rank": each.lora.rank, "seed": each.seed}
        for each in runs
    ]  # fmt: skip
    limits = {name: f"{name} {agent.max_tokens}" for each in runs for name, agent in each.team.agents.items()}
    said = {key: " or ".join(sorted({str(each[key]) for each in found})) for key in (found[0] if found else ())}
    return said | ({"limits": ", ".join(limits.values())} if limits else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What is read of an evaluation's line."""

    task: str
    correct: Truth | None


def read_right(evaluation: Path) -> dict[str, bool]:
    rows = read_rows(evaluation / EPISODES, Judged)
    return {row.data["task"]: bool(row.data["correct"]) for row in rows}


def paired(ours: Mapping[str, bool], theirs: Mapping[str, bool]) -> dict[str, Any]:
    """Ours minus theirs on the same tasks."""
    gaps = [float(ours[task]) - float(theirs[task]) for task in sorted(ours.keys() & theirs.keys())]
    found = estimate_mean(gaps, None, within=(-1.0, 1.0))
    return {"value": found.value, "ci95": found.interval, "tasks": len(gaps)}


# --- pictures -----------------------------------------------------------------------------------------------------------
def plot(study: Mapping[str, Any], path: Path) -> None:
    """Left: accuracy in training, on tasks that are new in each iteration. Right: held out, at temperature 0.7."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (curves, bars) = plt.subplots(1, 2, figsize=(9.6, 3.6), dpi=150, width_ratios=(3, 2))
    for at, (name, row) in enumerate(study["entries"].items()):
        if row["iterations"]:
            curves.plot(range(1, len(row["curve"]) + 1), row["curve"], color=COLOURS[name], label=name, lw=1.8)
        found = row["measured"]["sampled"]
        low, high = found["accuracy_ci95"]
        reach = [[found["accuracy"] - low], [high - found["accuracy"]]]
        bars.barh(at, found["accuracy"], xerr=reach, color=COLOURS[name], capsize=2)
    for name, row in study["unmeasured"].items():
        curves.plot(range(1, len(row["curve"]) + 1), row["curve"], color="black", label=name, lw=1.0, ls=":")
    curves.set(xlabel="iteration", ylabel="accuracy on its training tasks", ylim=(0, None), title=study["name"])
    curves.legend(loc="lower right", frameon=False, fontsize=8)
    bars.set(xlabel="held-out accuracy, temperature 0.7", yticks=range(len(study["entries"])), xlim=(0, None))
    bars.set_yticklabels(list(study["entries"]), fontsize=8)
    bars.invert_yaxis()
    if not study["entries"]:
        bars.remove()
        curves.set_subplotspec(figure.add_gridspec(1, 1)[0])
    for axes in (curves, bars):
        axes.grid(alpha=0.3)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
