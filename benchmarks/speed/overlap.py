"""What playing beside the learner gains: seconds an iteration, with lag and workers against one process that does both in turn.

    python benchmarks/speed/overlap.py [--iterations 8] [--rounds 3] [--out FILE] [key=value …]

Two cases with grpo on the default task. `compute`: nothing but computing; the learner and one worker with a thread each
against one process with one thread and with two. `latency`: an environment that lets every play wait as long as the rollout
computes; two workers. Runs take turns, `--rounds` times; medians over all iterations but the first two. Prints JSON.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

import torch

from benchmarks.speed.measure import finish, machine
from marft.config import load_config
from marft.envs.arithmetic import Arithmetic, State
from marft.types import Reward

WARM = 2  # iterations left out: while the first is learnt from, workers are still busy with their start
PAUSE = "MARFT_BENCHMARK_PAUSE"  # seconds that each episode's reward takes


class Slow(Arithmetic):
    """Arithmetic whose rewards come late; this process computes nothing meanwhile."""

    def reward(self, state: State) -> Reward:
        time.sleep(float(os.environ[PAUSE]))
        return super().reward(state)


def seconds_of(given: Sequence[str], iterations: int, threads: int, pause: float = 0.0) -> list[dict[str, float]]:
    """Seconds by phase of every iteration of a run but the first ones, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*given, f"train.iterations={iterations}", "eval.tasks=0", "track.tensorboard=false", "device=cpu"]
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        subprocess.run(
            [sys.executable, "-m", "marft.cli", "train", "duo", "algorithm=grpo", *words, "--run", f"{folder}/run"],
            check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), PAUSE: str(pause), "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    return [row["seconds"] for row in rows[WARM:]]


def whole(found: Sequence[dict[str, float]]) -> float:
    return statistics.median(sum(each.values()) for each in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_intermixed_args()
    probe = seconds_of(options.overrides, options.iterations, 1)
    rollout = statistics.median(each["rollout"] for each in probe)
    train = load_config("duo", options.overrides).train
    episodes = train.tasks * train.samples
    slow = ["env.name=benchmarks.speed.overlap:Slow"]
    cases: dict[str, tuple[list[str], int, float]] = {
        "compute, one process, one thread": ([], 1, 0.0),
        "compute, one process, two threads": ([], 2, 0.0),
        "compute, lag 1, one worker, a thread each": (["train.lag=1"], 1, 0.0),
        "latency, one process, one thread": (slow, 1, rollout / episodes),
        "latency, one process, two threads": (slow, 2, rollout / episodes),
        "latency, lag 1, two workers, a thread each": (
            [*slow, "train.lag=1", "rollout.workers=2"],
            1,
            rollout / episodes,
        ),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, (given, threads, pause) in cases.items():
            found[name] += seconds_of([*options.overrides, *given], options.iterations, threads, pause)
    medians = {name: round(whole(own), 3) for name, own in found.items()}

    def ratio(one: str, other: str) -> float:
        return round(medians[one] / medians[other], 3)

    names = list(cases)
    result: dict[str, Any] = {
        "benchmark": "overlap",
        "machine": machine(torch.device("cpu")),
        "seconds": medians,
        "phases": {
            name: {phase: round(statistics.median(each[phase] for each in own), 3) for phase in own[0]}
            for name, own in found.items()
        },
        "ratios": {
            "compute, to one thread": ratio(names[2], names[0]),
            "compute, to two threads": ratio(names[2], names[1]),
            "latency, to one thread": ratio(names[5], names[3]),
            "latency, to two threads": ratio(names[5], names[4]),
        },
    }
    finish(result, options.out)


if __name__ == "__main__":
    main()
