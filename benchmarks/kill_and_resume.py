"""Kill a run at random moments, resume it, and compare its end, byte for byte, with a run that was never interrupted.

    python benchmarks/kill_and_resume.py [--trials 20] [--seed 0] [--algorithm marft-token]

Each trial kills (SIGKILL) one to three times, at moments spread over the whole run and its start-up, then lets it end. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SETTINGS = [
    "train.iterations=6",
    "train.tasks=8",
    "train.samples=4",
    "train.minibatches=2",
    "checkpoint.every=1",
    "eval.tasks=16",
]


def command(run: Path, algorithm: str, resume: bool) -> list[str]:
    words = ["--resume"] if resume else [f"algorithm={algorithm}", *SETTINGS]
    return [sys.executable, "-m", "marft.cli", "train", *words, "--run", str(run)]


def outcome(run: Path) -> dict[str, Any]:
    """Everything that must not depend on interruptions: the newest checkpoint's bytes, metrics and episodes, evaluations."""
    newest = sorted((run / "checkpoints").iterdir())[-1]
    files = {str(f.relative_to(newest)): f.read_bytes() for f in sorted(newest.rglob("*")) if f.is_file()}
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in metrics:
        row.pop("seconds")
    summary = json.loads((run / "summary.json").read_text())
    summary.pop("seconds")
    return {"files": files, "metrics": metrics, "episodes": (run / "episodes.jsonl").read_bytes(), "summary": summary}


def kill_once(run: Path, algorithm: str, resume: bool, delay: float) -> bool:
    """True if the run was still going when it was killed."""
    process = subprocess.Popen(command(run, algorithm, resume), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(timeout=delay)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True


def trial(
    number: int, folder: Path, algorithm: str, length: float, rng: random.Random, expected: dict[str, Any]
) -> dict[str, Any]:
    run = folder / f"trial-{number}"
    moments: list[float] = []
    kills = 0
    while not kills:  # a run that was quicker than its killer is no trial
        shutil.rmtree(run, ignore_errors=True)
        moments = [round(rng.uniform(0, length), 3) for _ in range(rng.randint(1, 3))]
        kills = sum(kill_once(run, algorithm, (run / "config.yaml").exists(), moment) for moment in moments)
    last = command(run, algorithm, (run / "config.yaml").exists())
    subprocess.run(last, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = outcome(run)
    differing = [part for part in expected if found[part] != expected[part]]
    return {"trial": number, "moments": moments, "kills": kills, "identical": not differing, "differing": differing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithm", default="marft-token")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.perf_counter()
        subprocess.run(command(folder / "whole", arguments.algorithm, False), check=True, stdout=subprocess.DEVNULL)
        length = time.perf_counter() - started
        expected = outcome(folder / "whole")
        trials = [
            trial(n, folder, arguments.algorithm, length, rng, expected) for n in range(arguments.trials)
        ]  # fmt: skip
    identical = sum(t["identical"] for t in trials)
    print(
        json.dumps(
            {"trials": len(trials), "identical": identical, "kills": sum(t["kills"] for t in trials), "each": trials}
        )
    )
    sys.exit(0 if identical == len(trials) else 1)


if __name__ == "__main__":
    main()
