"""What it costs that a program plays: the default team behind the endpoint against the built-in workflow.

    python benchmarks/speed/program.py [--iterations 12] [--rounds 3] [--out FILE] [key=value …]

The same agents, tasks, seed and settings twice: `sequential` as the recipe duo has it, and as an async program that asks with
aiohttp, all episodes at once. Runs take turns, `--rounds` times. Seconds of an iteration are medians over all but the first,
those of a run medians over rounds, with its evaluations. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

import aiohttp
import torch

from benchmarks.speed.measure import finish, machine
from marft.config import load_config

WARM = 1  # iterations left out
CASES: Mapping[str, Sequence[str]] = {
    "sequential": (),
    "program": ("team.workflow=program", "team.program.function=benchmarks.speed.program:solve"),
}


@cache
def prompts() -> dict[str, str]:
    """What the recipe tells its agents."""
    return {name: agent.prompt for name, agent in load_config("duo").team.agents.items()}


async def solve(task: Mapping[str, Any], base_url: str, api_key: str) -> str:
    """The recipe's team as a program."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {api_key}"}) as http:

        async def ask(model: str, question: str) -> str:
            messages = [{"role": "system", "content": prompts()[model]}, {"role": "user", "content": question}]
            body = {"model": model, "messages": messages}
            async with http.post(f"{base_url}/chat/completions", json=body) as answer:
                answer.raise_for_status()
                return str((await answer.json())["choices"][0]["message"]["content"])

        plan = await ask("planner", task["prompt"])
        return await ask("solver", f"{task['prompt']}\n\nplanner: {plan}")


def run(case: str, given: Sequence[str], iterations: int) -> dict[str, Any]:
    """One run in a process of its own, with one thread."""
    root = Path(__file__).parents[2]
    paths = [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    with tempfile.TemporaryDirectory() as folder:
        words = [*CASES[case], *given, f"train.iterations={iterations}", "track.tensorboard=false", "device=cpu"]
        subprocess.run(
            [sys.executable, "-m", "marft.cli", "train", "duo", *words, "--run", f"{folder}/run"],
            check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        rows = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    return {
        "iterations": [{phase: round(s, 3) for phase, s in row["seconds"].items()} for row in rows],
        "seconds": summary["seconds"],
        "before": summary.get("before", {}).get("accuracy"),
        "after": summary.get("after", {}).get("accuracy"),
    }


def iteration_seconds(runs: Sequence[Mapping[str, Any]]) -> float:
    """The median of all runs' iterations, evaluations left out."""
    rows = [row for each in runs for row in each["iterations"][WARM:]]
    return statistics.median(sum(s for phase, s in row.items() if phase != "eval") for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--iterations", type=int, default=12, help="at least 2: the first is left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_intermixed_args()
    found: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
    for number in range(options.rounds):
        for case in list(CASES)[:: -1 if number % 2 else 1]:
            found[case].append(run(case, options.overrides, options.iterations))
    iteration = {case: iteration_seconds(runs) for case, runs in found.items()}
    whole = {case: statistics.median(each["seconds"] for each in runs) for case, runs in found.items()}
    finish(
        {
            "benchmark": "program",
            "machine": machine(torch.device("cpu")),
            "settings": {"iterations": options.iterations, "rounds": options.rounds, "overrides": options.overrides},
            "seconds an iteration": {case: round(seconds, 3) for case, seconds in iteration.items()},
            "seconds a run": {case: round(seconds, 1) for case, seconds in whole.items()},
            "ratios": {
                "iteration": round(iteration["program"] / iteration["sequential"], 3),
                "run": round(whole["program"] / whole["sequential"], 3),
            },
            "held-out accuracy": {
                case: {when: [each[when] for each in runs] for when in ("before", "after")}
                for case, runs in found.items()
            },
            "runs": found,
        },
        options.out,
    )


if __name__ == "__main__":
    main()
