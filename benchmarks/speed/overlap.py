"""What playing beside the learner gains: seconds an iteration, with lag and workers against one process that does both in turn.

    python benchmarks/speed/overlap.py [--iterations 8] [--rounds 3] [--out FILE] [key=value …]
    python benchmarks/speed/overlap.py --gpu [--recipe gsm8k-duo-token] [--iterations 8] [--rounds 3] [--out FILE] [key=value …]

On a CPU two cases with grpo on the default task. `compute`: nothing but computing; the learner and one worker with a thread
each against one process with one thread and with two. `latency`: an environment that lets every play wait as long as the
rollout computes; two workers. On a GPU the same two with a recipe, and one worker beside the learner on the same GPU. Runs take
turns, `--rounds` times; medians over all iterations but the first two. Prints JSON.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

import torch

from benchmarks.speed.measure import finish, machine
from marft.config import load_config
from marft.envs.arithmetic import Arithmetic, State
from marft.envs.base import LastMessage
from marft.envs.math import Math
from marft.types import Reward

WARM = 2  # iterations left out: while the first is learnt from, workers are still busy with their start
PAUSE = "MARFT_BENCHMARK_PAUSE"  # seconds that each episode's reward takes


class Slow(Arithmetic):
    """Arithmetic whose rewards come late; this process computes nothing meanwhile."""

    def reward(self, state: State) -> Reward:
        time.sleep(float(os.environ[PAUSE]))
        return super().reward(state)


class SlowMath(Math):
    """Math whose rewards come late, in the process that plays."""

    light = True

    def reward(self, state: LastMessage) -> Reward:
        time.sleep(float(os.environ[PAUSE]))
        return super().reward(state)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run: what it is given beside the common words, its threads, and how long an episode's reward takes."""

    words: Sequence[str] = ()
    threads: int = 1
    pause: float = 0.0


def seconds_of(recipe: str, given: Sequence[str], iterations: int, case: Case) -> list[dict[str, float]]:
    """Seconds by phase of every iteration of a run but the first ones, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*given, *case.words, f"train.iterations={iterations}", "eval.tasks=0", "track.tensorboard=false"]
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        own = {"OMP_NUM_THREADS": str(case.threads), PAUSE: str(case.pause), "PYTHONPATH": os.pathsep.join(paths)}
        subprocess.run(
            [sys.executable, "-m", "marft.cli", "train", recipe, *words, "--run", f"{folder}/run"],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **own},
        )
        rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    return [row["seconds"] for row in rows[WARM:]]


def whole(found: Sequence[dict[str, float]]) -> float:
    return statistics.median(sum(each.values()) for each in found)


def cases_on_cpu(pause: float) -> dict[str, Case]:
    slow = ["env.name=benchmarks.speed.overlap:Slow"]
    return {
        "compute, one process, one thread": Case(),
        "compute, one process, two threads": Case(threads=2),
        "compute, lag 1, one worker, a thread each": Case(words=["train.lag=1"]),
        "latency, one process, one thread": Case(words=slow, pause=pause),
        "latency, one process, two threads": Case(words=slow, threads=2, pause=pause),
        "latency, lag 1, two workers, a thread each": Case(
            words=[*slow, "train.lag=1", "rollout.workers=2"], pause=pause
        ),
    }


def cases_on_gpu(pause: float) -> dict[str, Case]:
    slow = ["env.name=benchmarks.speed.overlap:SlowMath"]
    return {
        "compute, one process": Case(threads=4),
        "compute, lag 1, one worker": Case(words=["train.lag=1"], threads=4),
        "latency, one process": Case(words=slow, threads=4, pause=pause),
        "latency, lag 1, one worker": Case(words=[*slow, "train.lag=1"], threads=4, pause=pause),
    }


def ratios_of(medians: Mapping[str, float]) -> dict[str, float]:
    """Of each case with lag to those without it that do the same."""
    kinds = {name: name.split(",")[0] for name in medians}
    return {
        f"{lagging} / {other}": round(medians[lagging] / medians[other], 3)
        for lagging in medians
        for other in medians
        if "lag" in lagging and "lag" not in other and kinds[lagging] == kinds[other]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--recipe", default="gsm8k-duo-token")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_intermixed_args()
    recipe, device = (options.recipe, "cuda") if options.gpu else ("duo", "cpu")
    given = [*([] if options.gpu else ["algorithm=grpo"]), *options.overrides, f"device={device}"]
    probe = seconds_of(recipe, given, options.iterations, Case())
    rollout = statistics.median(each["rollout"] for each in probe)
    train = load_config(recipe, given).train
    pause = rollout / (train.tasks * train.samples)
    cases = cases_on_gpu(pause) if options.gpu else cases_on_cpu(pause)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, case in cases.items():
            found[name] += seconds_of(recipe, given, options.iterations, case)
            print(f"{name}: {whole(found[name]):.3f} s an iteration", file=sys.stderr, flush=True)
    medians = {name: round(whole(own), 3) for name, own in found.items()}
    result: dict[str, Any] = {
        "benchmark": "overlap",
        "machine": machine(torch.device(device)),
        "seconds": medians,
        "phases": {
            name: {phase: round(statistics.median(each[phase] for each in own), 3) for phase in own[0]}
            for name, own in found.items()
        },
        "ratios": ratios_of(medians),
    }
    finish(result, options.out)


if __name__ == "__main__":
    main()
