"""Does the trust region hold? Trains over a range of learning rates and writes what became of each run.

    python benchmarks/robustness/rates.py nano [--out docs/results] [--seeds 0 1 2] [--jobs N] [key=value …]
    python benchmarks/robustness/rates.py real --model DIR --data DIR --seconds S [--out docs/results] [key=value …]
    python benchmarks/robustness/rates.py plot [--out docs/results]

`nano` is the default task, with a third to a hundred times its rate. `real` is reasoner → actor on GSM8K with a model of
yours; all rates run at once, so share one GPU, and stop after S seconds. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

from benchmarks.learning.real import data_file, marft
from benchmarks.learning.studies import COLOURS, outcome
from marft.runs.directory import RunDirectory

ALGORITHMS = ("marft-token", "marft-action", "grpo")
FACTORS = (0.33, 1, 3.3, 10, 100)  # of the default rate
DEFAULT = {"nano": 3e-3, "real": 5e-4}
WINDOW = 3  # iterations whose mean reward stands for the beginning and the end of a run
REAL = (
    "gsm8k-duo-token", "team.agents.reasoner.max_tokens=400", "team.agents.actor.max_tokens=200",
    "lora={rank: 16, alpha: 32}", "train={iterations: 60, tasks: 32, samples: 8, tokens: 8192}", "engine.slots=256",
    "engine.memory=0.05", "eval={tasks: 0, every: 0}", "checkpoint.every=100", "track.tensorboard=false", "env.workers=2",
)  # fmt: skip


def train_nano(algorithm: str, factor: float, seed: int, folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    run, rate = folder / f"{algorithm}-{factor:g}-{seed}", factor * DEFAULT["nano"]
    words = ["duo", f"algorithm={algorithm}", f"optimizer.lr={rate:g}", f"seed={seed}", *overrides]
    if "after" not in (RunDirectory(run).summary() or {}):
        begin = ["--resume"] if RunDirectory(run).exists() else words
        command = [sys.executable, "-m", "marft.cli", "train", *begin, "--run", str(run)]
        subprocess.run(command, stdout=sys.stderr, check=False)  # one that stops itself is a result too
    return {"algorithm": algorithm, "factor": factor, "lr": rate, "seed": seed} | outcome(run)


def train_real(name: str, words: Sequence[str], folder: Path, seconds: float) -> dict[str, Any]:
    """As far as the time allows; a run that stops itself has failed for `marft`, and is written down all the same."""
    run = folder / name
    try:
        marft(folder / f"{name}.log", "train", *words, "--run", str(run), seconds=seconds)
    except Exception as error:
        print(f"{name}: {error}", file=sys.stderr)
    return {"name": name, "words": list(words)} | outcome(run)


def real_runs(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    data = [f"env.{split}={data_file(arguments.data, 'gsm8k', split)}" for split in ("train", "test")]
    words = [*REAL, *data, f"model={arguments.model.resolve()}", *arguments.overrides]
    entries = {f"× {factor:g}": [*words, f"optimizer.lr={factor * DEFAULT['real']:g}"] for factor in FACTORS}
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(entries)) as pool:
        jobs = [
            pool.submit(train_real, name.replace("× ", "x"), own, arguments.folder, arguments.seconds)
            for name, own in entries.items()
        ]
    found = [job.result() for job in jobs]
    return [
        {**run, "factor": factor, "lr": factor * DEFAULT["real"]} for run, factor in zip(found, FACTORS, strict=True)
    ]


# --- what came out ----------------------------------------------------------------------------------------------------
def nano_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Held-out accuracy after training: the mean over seeds, and the worst."""
    lines = [
        "| algorithm | before | " + " | ".join(f"rate × {factor:g}" for factor in FACTORS) + " |",
        "|---" * (len(FACTORS) + 2) + "|",
    ]
    for algorithm in ALGORITHMS:
        own = [run for run in runs if run["algorithm"] == algorithm]
        cells = [f"{statistics.mean(run['before'] for run in own if 'before' in run):.3f}"]
        for factor in FACTORS:
            after = [run.get("after", 0.0) for run in own if run["factor"] == factor]  # 0: it stopped itself
            cells.append(f"**{statistics.mean(after):.3f}** (worst {min(after):.3f})")
        lines.append(f"| `{algorithm}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def real_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Training reward at the beginning and at the end, and what happened on the way."""
    lines = [
        "| learning rate | iterations | reward at first | in the end | largest KL of an update | alarms |",
        "|---" * 6 + "|",
    ]
    for run in runs:
        first, last = (statistics.mean(part) for part in (run["curve"][:WINDOW], run["curve"][-WINDOW:]))
        alarms = ", ".join(dict.fromkeys(run["alarms"])) or "none"
        lines.append(
            f"| {run['lr']:g} (× {run['factor']:g}) | {len(run['curve'])} | {first:.3f} | **{last:.3f}** | "
            f"{run['largest_kl']:.4f} | {alarms} |"
        )
    return "\n".join(lines)


def plot(out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    nano = [run for run in json.loads((out / "rates-nano.json").read_text()) if run["algorithm"] == ALGORITHMS[0]]
    real = json.loads((out / "rates-real.json").read_text())
    figure, panels = plt.subplots(1, 2, figsize=(9.6, 3.6), dpi=150)
    titles = (f"default task, {ALGORITHMS[0]}, mean of seeds", "GSM8K, 0.5B reasoner → actor, one seed")
    for axes, runs, title in zip(panels, (nano, real), titles, strict=True):
        for factor, colour in zip(FACTORS, COLOURS, strict=False):
            curves = [run["curve"] for run in runs if run["factor"] == factor]
            if not curves:
                continue
            means = [statistics.mean(column) for column in zip(*curves, strict=False)]
            axes.plot(range(1, len(means) + 1), means, color=colour, label=f"rate × {factor:g}", lw=1.8)
        axes.set(xlabel="iteration", ylabel="team reward", title=title, ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(out / "rates.png")


def main() -> None:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job ignores it, and so would its children
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["nano", "real", "plot"])
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/rates"), help="where the runs lie; given again, they go on"
    )
    arguments = parser.parse_intermixed_args()
    if arguments.what == "plot":
        plot(arguments.out)
        return
    if arguments.what == "nano":
        arguments.folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            jobs = [
                pool.submit(train_nano, algorithm, factor, seed, arguments.folder, arguments.overrides)
                for seed in arguments.seeds
                for factor in FACTORS
                for algorithm in ALGORITHMS
            ]
            runs = [job.result() for job in jobs]
    else:
        runs = real_runs(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"rates-{arguments.what}.json").write_text(json.dumps(runs, indent=1) + "\n")
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
