"""What the sandbox costs: one run against a bare interpreter, and many runs at once. Prints JSON.

python benchmarks/speed/sandbox.py [RUNS]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from marft.envs.sandbox import require_sandbox, run

MANY = 64
AT_ONCE = (1, 2, 4)


def timed(action: object, *arguments: object) -> float:
    assert callable(action)
    began = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - began


def bare(python: str) -> None:
    subprocess.run([python, "-I", "-S", "-c", "pass"], check=True, capture_output=True)


def sandboxed() -> None:
    assert run("pass").ended == "ok"


def runs_per_second(at_once: int) -> float:
    with ThreadPoolExecutor(at_once) as threads:
        began = time.perf_counter()
        list(threads.map(lambda _: sandboxed(), range(MANY)))
        return MANY / (time.perf_counter() - began)


def main(runs: int) -> None:
    python = require_sandbox().python
    without, within = [], []
    for _ in range(runs):  # in turns, so that a busy moment meets both
        without.append(timed(bare, python))
        within.append(timed(sandboxed))
    print(
        json.dumps(
            {
                "runs": runs,
                "root": os.geteuid() == 0,
                "bare_ms": round(1000 * statistics.median(without), 2),
                "sandbox_ms": round(1000 * statistics.median(within), 2),
                "overhead_ms": round(1000 * (statistics.median(within) - statistics.median(without)), 2),
                "runs_per_second": {n: round(runs_per_second(n), 1) for n in AT_ONCE},
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
