"""Does the default team learn, with every algorithm and seed? Trains them all and writes the table and the plot.

    python benchmarks/learning.py [--out docs/results] [--seeds 0 1 2] [--threads N] [key=value …]

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
from pathlib import Path
from typing import Any

ALGORITHMS = ["marft-token", "marft-action", "grpo"]


def train(algorithm: str, seed: int, folder: Path, overrides: list[str]) -> dict[str, Any]:
    run = folder / f"{algorithm}-{seed}"
    words = [f"algorithm={algorithm}", f"seed={seed}", *overrides]
    command = [sys.executable, "-m", "marft.cli", "train", *words, "--run", str(run)]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=sys.stderr)
    seconds = time.perf_counter() - started
    summary = json.loads((run / "summary.json").read_text())
    curve = [json.loads(line)["reward"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "algorithm": algorithm,
        "seed": seed,
        "before": summary["before"]["accuracy"],
        "after": summary["after"]["accuracy"],
        "tasks": summary["after"]["tasks"],
        "seconds": round(seconds, 1),
        "tokens": summary["tokens"],
        "curve": curve,
    }


def table(runs: list[dict[str, Any]]) -> str:
    """A Markdown table: mean over seeds, and the spread from worst to best."""
    lines = [
        "| algorithm | seeds | held-out before | held-out after (worst – best) | seconds, whole command |",
        "|---|---|---|---|---|",
    ]
    for algorithm in ALGORITHMS:
        own = [run for run in runs if run["algorithm"] == algorithm]
        if own:
            after = [run["after"] for run in own]
            lines.append(
                f"| `{algorithm}` | {len(own)} | {statistics.mean(run['before'] for run in own):.3f} | "
                f"**{statistics.mean(after):.3f}** ({min(after):.3f} – {max(after):.3f}) | "
                f"{statistics.mean(run['seconds'] for run in own):.0f} |"
            )
    return "\n".join(lines)


def plot(runs: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.6), dpi=150)
    for algorithm, colour in zip(ALGORITHMS, ("#1b6ca8", "#d1495b", "#3a7d44"), strict=True):
        curves = [run["curve"] for run in runs if run["algorithm"] == algorithm]
        if not curves:
            continue
        steps = range(1, len(curves[0]) + 1)
        axes.plot(
            steps,
            [statistics.mean(column) for column in zip(*curves, strict=True)],
            color=colour,
            label=algorithm,
            lw=2,
        )
        low, high = ([pick(column) for column in zip(*curves, strict=True)] for pick in (min, max))
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
    axes.set(
        xlabel="iteration",
        ylabel="team reward",
        ylim=(0, 1),
        title="planner → solver on the embedded nano model",
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own choice)")
    arguments = parser.parse_args()
    if arguments.threads:
        os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        runs = [train(a, seed, Path(folder), arguments.overrides) for a in ALGORITHMS for seed in arguments.seeds]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "learning.json").write_text(json.dumps(runs, indent=1) + "\n")
    (arguments.out / "learning.md").write_text(table(runs) + "\n")
    plot(runs, arguments.out / "learning.png")
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
