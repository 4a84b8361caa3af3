"""Does a team learn: with every algorithm, in every workflow, on other tasks? Trains them all, writes the table and the plot.

    python benchmarks/learning/studies.py [algorithms | teams | reasoning] [--out docs/results] [--seeds 0 1 2] [--threads N] [--jobs N] [key=value …]

Prints JSON. Every number comes from a file that a run wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft.runs.directory import RunDirectory

COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d6a9f", "#e08e45", "#444444", "#2a9d8f", "#b5838d", "#7f7f00")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What is compared: a column's title, a picture's, and the words that train each entry."""

    column: str
    title: str
    entries: Mapping[str, Sequence[str]]


ALGORITHMS = ("marft-token", "marft-action", "grpo", "dr_grpo", "rloo", "gspo", "reinforce++", "rae")
TEAMS = ("trio", "quartet", "octet", "dag", "debate", "vote", "orchestrated", "rounds")
PUZZLES = {  # of reasoning-gym, as easy as a model of 0.84M parameters needs them
    "gcd": "{min_numbers: 2, max_numbers: 2, min_value: 2, max_value: 20}",
    "lcm": "{min_numbers: 2, max_numbers: 2, min_value: 1, max_value: 12}",
    "count_bits": "{min_n: 1, max_n: 500}",
    "count_primes": "{min_n: 1, max_n: 50}",
    "chain_sum": "{min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}",
    "basic_arithmetic": "{min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1}",
    "leg_counting": "{min_animals: 1, max_animals: 2, min_instances: 1, max_instances: 3}",
    "letter_counting": "{min_words: 2, max_words: 4}",
}
STUDIES = {
    "algorithms": Study(
        column="algorithm",
        title="planner → solver on the embedded nano model",
        entries={name: ["duo", f"algorithm={name}"] for name in ALGORITHMS},
    ),
    "teams": Study(
        column="team",
        title="teams on the embedded nano model",
        entries={"duo": ["duo", "algorithm=grpo"], **{name: [name] for name in TEAMS}},
    ),
    "reasoning": Study(
        column="task",
        title="planner → solver on reasoning-gym, the embedded nano model",
        entries={
            name: [
                "duo",
                "env=reasoning",
                f"env.task={{{name}: {settings}}}",
                "env.instruction='End with \"Answer: N\".'",
                "algorithm=grpo",
                "train.iterations=40",
                "train.tasks=32",
                "train.samples=8",
                "eval.tasks=200",
            ]
            for name, settings in PUZZLES.items()
        },
    ),
}


def train(entry: str, words: Sequence[str], seed: int, folder: Path) -> dict[str, Any]:
    run = folder / f"{entry}-{seed}"
    command = [sys.executable, "-m", "marft.cli", "train", *words, f"seed={seed}", "--run", str(run)]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=sys.stderr)
    seconds = time.perf_counter() - started
    return {"entry": entry, "seed": seed, "seconds": round(seconds, 1)} | outcome(run)


def outcome(run: Path) -> dict[str, Any]:
    """What became of a run: held-out figures where it was evaluated, its curve, and every alarm that was raised."""
    summary = json.loads(path.read_text()) if (path := run / "summary.json").exists() else {}
    rows, events = RunDirectory(run).metrics(), RunDirectory(run).events()
    found: dict[str, Any] = {when: summary[when]["accuracy"] for when in ("before", "after") if when in summary}
    if "after" in summary:
        found |= {"after_ci95": summary["after"]["accuracy_ci95"], "tasks": summary["after"]["tasks"]}
    if "tokens" in summary:
        found["tokens"] = summary["tokens"]
    agents = [figures for row in rows for figures in row["agents"].values()]
    return found | {
        "curve": [row["reward"] for row in rows],
        "largest_kl": max((figures.get("kl_final", figures["kl"]) for figures in agents), default=0.0),
        "shortened": sum(figures.get("kept", 1.0) < 1 for figures in agents),
        "alarms": [f"{e['event']}: {e['sign']}" for e in events if e["event"] in ("warning", "collapse")],
    }


def table(study: Study, runs: list[dict[str, Any]]) -> str:
    """A Markdown table: mean over seeds, and the spread from worst to best; of one seed, the interval of its tasks."""
    lines = [
        f"| {study.column} | seeds | held-out before | held-out after | seconds, whole command |",
        "|---|---|---|---|---|",
    ]
    for entry in study.entries:
        own = [run for run in runs if run["entry"] == entry]
        if not own:
            continue
        after = [run["after"] for run in own]
        spread = f"{min(after):.3f} – {max(after):.3f}"
        if len(own) == 1:
            spread = "95 % {:.3f} – {:.3f}".format(*own[0]["after_ci95"])
        lines.append(
            f"| `{entry}` | {len(own)} | {statistics.mean(run['before'] for run in own):.3f} | "
            f"**{statistics.mean(after):.3f}** ({spread}) | {statistics.mean(run['seconds'] for run in own):.0f} |"
        )
    return "\n".join(lines)


def plot(study: Study, runs: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.6), dpi=150)
    for entry, colour in zip(study.entries, COLOURS, strict=False):
        curves = [run["curve"] for run in runs if run["entry"] == entry]
        if not curves:
            continue
        steps, columns = range(1, len(curves[0]) + 1), list(zip(*curves, strict=True))
        axes.plot(steps, [statistics.mean(column) for column in columns], color=colour, label=entry, lw=2)
        if len(curves) > 1:
            low, high = ([pick(column) for column in columns] for pick in (min, max))
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
    axes.set(xlabel="iteration", ylabel="team reward", ylim=(0, 1), title=study.title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="algorithms | teams | reasoning | key=value")
    parser.add_argument("--only", nargs="+", help="these entries alone")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, help="CPU threads of a run (default: torch's own choice)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    arguments = parser.parse_intermixed_args()
    if arguments.threads:
        os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    overrides = [word for word in arguments.words if "=" in word]
    name = next((word for word in arguments.words if "=" not in word), "algorithms")
    study = STUDIES[name]
    chosen = {e: w for e, w in study.entries.items() if not arguments.only or e in arguments.only}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [
            pool.submit(train, entry, [*words, *overrides], seed, Path(folder))
            for entry, words in chosen.items()
            for seed in arguments.seeds
        ]
        runs = [job.result() for job in jobs]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{name}.json").write_text(json.dumps(runs, indent=1) + "\n")
    (arguments.out / f"{name}.md").write_text(table(study, runs) + "\n")
    plot(study, runs, arguments.out / f"{name}.png")
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
