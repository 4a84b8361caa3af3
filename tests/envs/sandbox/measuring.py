"""A process that runs allocations in the sandbox and says what each cost the machine: a kind a line in, JSON out.

python measuring.py METER: a file of a control group that counts what this process and its runs take; or none, where the
machine's available memory is looked at.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from allocations import program

from marft.envs.sandbox import Limits, Outcome, require_sandbox, run

LIMITS = Limits(memory=64 << 20, seconds=8.0, cpu_seconds=5)
INTERVAL = 0.002


def taken(meter: str) -> int:
    if meter:
        return int(Path(meter).read_text())
    available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return -1024 * int(available.split()[1])


def settled(meter: str) -> int:
    """After a kill, the kernel takes a moment to free what there was."""
    until, now = time.monotonic() + 2.0, taken(meter)
    while time.monotonic() < until:
        time.sleep(0.05)
        before, now = now, taken(meter)
        if abs(before - now) < 1 << 18:
            break
    return now


def measured(meter: str, kind: str) -> dict[str, object]:
    before = most = settled(meter)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run(program(kind), limits=LIMITS)))
    thread.start()
    while thread.is_alive():
        most = max(most, taken(meter))
        time.sleep(INTERVAL)
    outcome = outcomes[0]
    return {
        "lost": most - before,
        "left": settled(meter) - before,
        "memory": LIMITS.memory,
        "ended": outcome.ended,
        "said": outcome.stdout.strip(),
        "exit_code": outcome.exit_code,
    }


if __name__ == "__main__":
    sys.stdin.readline()  # from now on it is counted
    print(json.dumps({"cgroup": require_sandbox().cgroup is not None}), flush=True)
    for line in sys.stdin:
        print(json.dumps(measured(sys.argv[1] if len(sys.argv) > 1 else "", line.strip())), flush=True)
