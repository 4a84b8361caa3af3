"""Does a team learn to use a tool? The dial of examples/tools without it, with it as a Python function, and over MCP.

    python benchmarks/learning/tool_use.py [--out docs/results] [--seeds 0 1 2] [--only NAME …] [--threads N] [--jobs N]

Same model, tasks and number of episodes in all three; `mcp` needs the extra mcp. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

from benchmarks.learning import studies
from marft.runs.directory import RunDirectory

ROOT = Path(__file__).parents[2]
SERVER = shlex.join([sys.executable, "examples/tools/dial.py"])
ENTRIES: Mapping[str, Sequence[str]] = {
    "no tool": ["team.agents.solver.tools=[]", "team.agents.solver.inline_call=null"],
    "Python function": [],
    "MCP server": [f"team.agents.solver.tools=[{{mcp: {json.dumps(SERVER)}}}]"],
}
STUDY = studies.Study(column="the solver's tool", title="planner → solver on a dial of 100, nano", entries=ENTRIES)


def train(entry: str, seed: int, folder: Path) -> dict[str, Any]:
    run = folder / f"{entry.replace(' ', '-')}-{seed}"
    words = ["examples/tools/dial.yaml", *ENTRIES[entry], f"seed={seed}", "--run", str(run)]
    subprocess.run([sys.executable, "-m", "marft.cli", "train", *words], check=True, stdout=sys.stderr, cwd=ROOT)
    return {"entry": entry, "seed": seed} | outcome(run)


def outcome(run: Path) -> dict[str, Any]:
    """What became of a run, and in which share of its episodes the solver called."""
    summary, rows = json.loads((run / "summary.json").read_text()), RunDirectory(run).metrics()
    return studies.outcome(run) | {
        "seconds": round(summary["seconds"], 1),
        "calling_before": calling_share(summary["before"]),
        "calling_after": calling_share(summary["after"]),
        "calling": [calling_share(row) for row in rows],
    }


def calling_share(row: Mapping[str, Any]) -> float:
    """Of the episodes, those in which the solver called its tool."""
    share: float = row.get("calls", {}).get("solver", {}).get("share", 0.0)
    return share


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Means over seeds, and the spread from worst to best; of one seed, the interval of its tasks."""
    lines = [
        "| the solver's tool | seeds | held-out before | held-out after | episodes with a call | seconds, evaluations included |",
        "|---" * 6 + "|",
    ]
    for entry in ENTRIES:
        own = [run for run in runs if run["entry"] == entry]
        if not own:
            continue
        before, after, called, calling, seconds = (
            [run[key] for run in own] for key in ("before", "after", "calling_before", "calling_after", "seconds")
        )
        calls = f"{statistics.mean(called):.0%} → {statistics.mean(calling):.0%}" if any(calling) else "–"
        spread = f"{min(after):.3f} – {max(after):.3f}"
        if len(own) == 1:
            spread = "95 % {:.3f} – {:.3f}".format(*own[0]["after_ci95"])
        lines.append(
            f"| {entry} | {len(own)} | {statistics.mean(before):.3f} | **{statistics.mean(after):.3f}** ({spread}) | "
            f"{calls} | {statistics.mean(seconds):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(ENTRIES), default=list(ENTRIES))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, help="CPU threads of a run (default: torch's own choice)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    arguments = parser.parse_args()
    if arguments.threads:
        os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [pool.submit(train, entry, seed, Path(folder)) for seed in arguments.seeds for entry in arguments.only]
        runs = [job.result() for job in jobs]
    runs.sort(key=lambda run: (list(ENTRIES).index(run["entry"]), run["seed"]))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "tool-use.json").write_text(json.dumps(runs, indent=1) + "\n")
    studies.plot(STUDY, runs, arguments.out / "tool-use.png")
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
