"""A long run with workers, one of which is killed or stopped every now and then: does memory grow, does it stall, is each
episode learnt from once?

    python benchmarks/robustness/soak.py [--iterations 2000] [--every 60] [--seed 0] [--out FILE] [key=value …]

nano learns the default task in very small batches, with lag 1 and two workers. Memory is the resident set of the trainer and
of all below it, sampled every 5 seconds; it is compared between the second and the last quarter of the run. A stall is a
minute and a half without a new iteration. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

from benchmarks.robustness.kill_and_resume import is_worker
from marft.processes import descendants

SETTINGS = [
    "algorithm=grpo", "device=cpu", "train.tasks=2", "train.samples=2", "train.minibatches=1", "train.lag=1",
    "rollout.workers=2", "rollout.threads=1", "rollout.patience=10", "eval.tasks=0", "track.tensorboard=false",
    "track.episodes=4", "checkpoint.every=50", "optimizer.lr=1e-4", "train.on_collapse=warn",
]  # fmt: skip
SAMPLE_S, STALL_S = 5.0, 90.0


def resident(pid: int) -> int:
    """Bytes in memory of a process; 0 when it has gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def harm(pid: int, rng: random.Random) -> str | None:
    """Kill or stop one of the workers below; what was done."""
    if not (workers := [each for each in descendants(pid) if is_worker(each)]):
        return None
    what = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
    try:
        os.kill(rng.choice(workers), what)
    except ProcessLookupError:
        return None
    return what.name


def soak(run: Path, words: list[str], every: float, rng: random.Random) -> dict[str, Any]:
    """Run to the end with failures; what was seen meanwhile."""
    trainer = subprocess.Popen(
        [sys.executable, "-m", "marft.cli", "train", "duo", *words, "--run", str(run)], stdout=subprocess.DEVNULL
    )
    samples: list[tuple[int, int]] = []  # of the trainer, and of all
    harms: list[str] = []
    began = moved = harmed = time.monotonic()
    iterations, longest = 0, 0.0
    while trainer.poll() is None:
        time.sleep(SAMPLE_S)
        now, metrics = time.monotonic(), run / "metrics.jsonl"
        done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if done > iterations:
            iterations, moved = done, now
            own = resident(trainer.pid)
            samples.append((own, own + sum(resident(pid) for pid in descendants(trainer.pid))))
        longest = max(longest, now - moved)
        if now - moved > STALL_S:
            trainer.kill()
        if iterations and now - harmed > every and (done_to := harm(trainer.pid, rng)):
            harms.append(done_to)
            harmed = now
    return {
        "seconds": round(time.monotonic() - began, 1), "exit_code": trainer.wait(), "failures": len(harms),
        "killed": harms.count("SIGKILL"), "stopped": harms.count("SIGSTOP"), "longest_wait_s": round(longest, 1),
        "memory_MB": {"trainer": quarters([own for own, _ in samples]), "all": quarters([all_ for _, all_ in samples])},
    }  # fmt: skip


def quarters(samples: list[int]) -> dict[str, float]:
    """Medians of the second and the last quarter, and how they compare."""
    size = max(1, len(samples) // 4)
    second, last = statistics.median(samples[size : 2 * size] or samples), statistics.median(samples[-size:])
    return {"second": round(second / 1e6, 1), "last": round(last / 1e6, 1), "growth": round(last / second - 1, 4)}


def account(run: Path, iterations: int, episodes: int) -> dict[str, Any]:
    """Whether every iteration was learnt once, from as many episodes as it has, in order, by the version that it should."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seen: dict[int, set[tuple[str, int]]] = {}
    versions: dict[int, set[int]] = {}
    for line in (run / "episodes.jsonl").read_text().splitlines():
        row = json.loads(line)
        seen.setdefault(row["iteration"], set()).add((row["task"], row["sample"]))
        versions.setdefault(row["iteration"], set()).update(turn["version"] for turn in row["turns"])
    return {
        "iterations": len(rows),
        "in_order": [row["iteration"] for row in rows] == list(range(1, iterations + 1)),
        "all_episodes": all(row["episodes"] + row["failed"] == episodes for row in rows),
        "once": all(len(own) == episodes for own in seen.values()) and len(seen) == iterations,
        "versions": all(own == {max(0, iteration - 2)} for iteration, own in versions.items()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two failures")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = [*SETTINGS, f"train.iterations={options.iterations}", *options.overrides]
        found = soak(run, words, options.every, random.Random(options.seed))
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        result = {
            "benchmark": "soak",
            **found,
            "replaced": sum(event["event"] == "player" for event in events),
            "accounting": account(run, options.iterations, 4),
        }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
