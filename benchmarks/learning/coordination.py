"""Does it matter who is updated when? A game in which two may not switch at once, with every schedule and several step sizes.

    python benchmarks/learning/coordination.py [--out docs/results] [--seeds 0 1 2 3 4] [--lrs 0.003 0.01 0.03 0.1] [--lengths 1 10 100]

Two agents speak at once and see nothing. If one says "switch" the team earns 1, if neither does 0, if both do −2. An
untrained agent says it one time in ten, so for each alone it pays to say it more often, and if both learn that at once, they
jump to the worst pair: the example with which HAPPO (arXiv 2109.11251) argues for updates one after another. Steps are large
on purpose: four epochs on a batch, a wide clip, and the learning rates of the table. All else is the same for all schedules.
A second table has messages of several lengths, of which the first word counts.

Prints JSON. The return is that of 128 held-out plays after each iteration, with the same luck every time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

os.environ.setdefault("OMP_NUM_THREADS", "1")  # many small matrices; to be said before torch is loaded

from benchmarks.learning.switch_game import write_model
from marft.commands.train import start_run
from marft.config import parse

ITERATIONS = 10
PLAYS = 128  # that tell the return
FALL = 0.05  # a return lower by less is no fall
SCHEDULES: Mapping[str, dict[str, Any]] = {
    "joint": {"mode": "joint"},
    "sequential": {"mode": "sequential"},
    "sequential, clip 1.2": {"mode": "sequential", "clip": 1.2},
    "resample": {"mode": "resample"},
    "alternate": {"mode": "alternate"},
}
NOTE = (
    f"{ITERATIONS} iterations of 64 plays (`resample`: of twice as many). A fall is an iteration after which the return is lower "
    f"by more than {FALL}. `sequential` has its default bound of 5 on the factor between agents. Made by "
    "`benchmarks/learning/coordination.py`."
)
LONG = ("joint", "sequential", "resample")  # with messages of several lengths
LONG_LR = 0.01
COLOURS = ("#d1495b", "#1b6ca8", "#8fb8de", "#3a7d44", "#999999")


def train(model: Path, run: Path, schedule: str, lr: float, seed: int, tokens: int = 1) -> dict[str, Any]:
    config = parse(
        {
            "model": str(model),
            "device": "cpu",
            "seed": seed,
            "env": "benchmarks.learning.switch_game:Switch",
            "team": {
                "workflow": "benchmarks.learning.switch_game:together",
                "agents": {name: {"prompt": name, "sees": [], "max_tokens": tokens} for name in ("left", "right")},
            },
            "algorithm": {"name": "rloo", "clip_low": 0.9, "clip_high": 10.0},
            "schedule": SCHEDULES[schedule],
            "lora": {"rank": 4, "targets": ["v_proj", "o_proj", "down_proj"]},
            "optimizer": {"lr": lr},
            "train": {"iterations": ITERATIONS, "tasks": 1, "samples": 64, "epochs": 4, "minibatches": 1},
            "eval": {"tasks": PLAYS, "every": 1},
            "checkpoint": {"every": ITERATIONS},
            "track": {"tensorboard": False, "episodes": 0},
        }
    )
    with contextlib.redirect_stdout(sys.stderr):
        before = start_run(config, run)["before"]["reward"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [before, *(row["eval"]["reward"] for row in rows)]
    return {
        "schedule": schedule,
        "lr": lr,
        "seed": seed,
        "tokens": tokens,
        "length": statistics.mean(agent["length"] for agent in rows[0]["agents"].values()),
        "curve": curve,
        "final": curve[-1],
        "auc": statistics.mean(curve[1:]),
        "falls": sum(new < old - FALL for old, new in pairwise(curve)),
    }


def chosen(runs: Sequence[Mapping[str, Any]], schedule: str, lr: float | None = None) -> list[Mapping[str, Any]]:
    return [run for run in runs if run["schedule"] == schedule and lr in (None, run["lr"])]


def against_joint(runs: Sequence[Mapping[str, Any]], schedule: str, lr: float | None = None) -> dict[str, Any]:
    """Means over seeds, and in how many runs the schedule is at least as good as `joint` with the same seed and step."""
    own, joint = chosen(runs, schedule, lr), chosen(runs, "joint", lr)
    pairs = list(zip(own, joint, strict=True))
    return {
        "schedule": schedule,
        "lr": lr,
        "runs": len(own),
        "final": statistics.mean(run["final"] for run in own),
        "worst_final": min(run["final"] for run in own),
        "auc": statistics.mean(run["auc"] for run in own),
        "falls": statistics.mean(run["falls"] for run in own),
        "lowest": min(min(run["curve"]) for run in own),
        "final_at_least_joint": sum(a["final"] >= b["final"] - 0.01 for a, b in pairs),
        "auc_at_least_joint": sum(a["auc"] >= b["auc"] - 0.01 for a, b in pairs),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| lr | schedule | final return (worst) | mean over iterations | lowest | falls a run | final ≥ joint | mean ≥ joint |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        counts = [f"{row[key]} of {row['runs']}" for key in ("final_at_least_joint", "auc_at_least_joint")]
        compared = " | ".join(["–", "–"] if row["schedule"] == "joint" else counts)
        lines.append(
            f"| {'all' if row['lr'] is None else row['lr']} | {row['schedule']} | **{row['final']:.2f}** "
            f"({row['worst_final']:.2f}) | **{row['auc']:.2f}** | {row['lowest']:.2f} | {row['falls']:.1f} | {compared} |"
        )
    return "\n".join([*lines, "", NOTE])


def length_table(runs: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| words, at most (at first, on average) | " + " | ".join(LONG) + " |", "|---" * (len(LONG) + 1) + "|"]
    for tokens in dict.fromkeys(run["tokens"] for run in runs):
        own = [run for run in runs if run["tokens"] == tokens]
        means = (statistics.mean(run["auc"] for run in own if run["schedule"] == schedule) for schedule in LONG)
        length = statistics.mean(run["length"] for run in own)
        lines.append(f"| {tokens} ({length:.1f}) | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")
    seeds = len({run["seed"] for run in runs})
    return "\n".join([*lines, "", f"Return, mean over {ITERATIONS} iterations and {seeds} seeds, lr {LONG_LR}."])


def plot(runs: Sequence[Mapping[str, Any]], lrs: Sequence[float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(lrs), figsize=(2.9 * len(lrs), 3.2), dpi=150, sharey=True, squeeze=False)
    for axes, lr in zip(panels[0], lrs, strict=True):
        for schedule, colour in zip(SCHEDULES, COLOURS, strict=True):
            curves = [run["curve"] for run in chosen(runs, schedule, lr)]
            mean = [statistics.mean(column) for column in zip(*curves, strict=True)]
            line = "--" if schedule == "joint" else "-"  # it hides under the others
            axes.plot(range(len(mean)), mean, line, color=colour, label=schedule, lw=2, zorder=3 if line == "--" else 2)
        axes.set(xlabel="iteration", title=f"lr {lr}", ylim=(-2.1, 1.1))
        axes.grid(alpha=0.3)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0][0].set_ylabel("team return, mean of seeds")
    panels[0][-1].legend(loc="lower right", frameon=False, fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for coordination.json, .md and .png")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--lrs", type=float, nargs="+", default=[0.003, 0.01, 0.03, 0.1])
    arguments = parser.parse_args()
    started = time.perf_counter()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(model)
        for lr in arguments.lrs:
            for schedule in SCHEDULES:
                for seed in arguments.seeds:
                    runs.append(train(model, Path(folder) / f"{len(runs)}", schedule, lr, seed))
        long = [
            train(model, Path(folder) / f"{tokens}-{schedule}-{seed}", schedule, LONG_LR, seed, tokens)
            for tokens in arguments.lengths
            for schedule in LONG
            for seed in range(2 * len(arguments.seeds))
        ]
    rows = [against_joint(runs, schedule, lr) for lr in (None, *arguments.lrs) for schedule in SCHEDULES]
    report = {"seconds": round(time.perf_counter() - started, 1), "rows": rows, "runs": runs, "lengths": long}
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "coordination.json").write_text(json.dumps(report, indent=1) + "\n")
        (arguments.out / "coordination.md").write_text(f"{table(rows)}\n\n{length_table(long)}\n")
        plot(runs, arguments.lrs, arguments.out / "coordination.png")
    print(table(rows), length_table(long), sep="\n\n", file=sys.stderr)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
