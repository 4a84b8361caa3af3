"""Where the seconds of a training iteration go: real runs of a recipe, phase by phase.

    python benchmarks/speed/iteration.py duo
    python benchmarks/speed/iteration.py gsm8k-duo-token model=FOLDER train.tasks=64 --iterations 6

`rollout` is split into rendering prompts, the environment's answers (where it runs in this process) and the rest, which is
generation; `record` writes metrics and episodes. The first iteration warms up and is left out. Medians, except that
checkpoints, which not every iteration writes, are means. Prints JSON; `--out FILE` also writes it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

from marft.openmp import limit_spinning

limit_spinning()  # as the command line does, and before torch is loaded

import torch

from benchmarks.speed.measure import finish, machine, settings
from benchmarks.speed.timed import Stopwatch, timed_run
from marft.config import load_config

WARM = 1  # iterations left out


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    given = [*options.overrides, f"train.iterations={options.iterations}", "eval.tasks=0", "track.tensorboard=false"]
    config, watch = load_config(options.recipe, given), Stopwatch()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        run = Path(folder) / "run"
        trainer = timed_run(config, run, watch)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    walls = [end - start for (start, _), (end, _) in pairwise(watch.ends)]
    episodes = config.train.tasks * config.train.samples
    seconds = statistics.median(walls)
    result = {
        "benchmark": "iteration",
        "settings": settings(options),
        "machine": machine(torch.device(trainer.parts.device)),
        "agents": len(config.team.agents),
        "episodes": episodes,
        "tokens": {
            key: round(statistics.median(row["tokens"][key] for row in rows[WARM:])) for key in rows[0]["tokens"]
        },
        "seconds": round(seconds, 4),
        "episodes_per_second": round(episodes / seconds, 2),
        "phases": phases(rows[WARM:], trainer.sides[WARM:]),
        "iterations": [{**row["seconds"], **side} for row, side in zip(rows, trainer.sides, strict=True)],
    }
    finish(result, options.out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="a recipe's name or a config file")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--iterations", type=int, default=6, help="at least 2: the first is left out")
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    return parser.parse_intermixed_args()


def phases(rows: Sequence[Mapping[str, Any]], sides: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Seconds of an iteration by phase; None where nobody could tell."""
    phase = {name: statistics.median(row["seconds"][name] for row in rows) for name in ("rollout", "credit", "update")}
    side = {
        name: statistics.median(each.get(name, 0.0) for each in sides) if any(name in each for each in sides) else None
        for name in ("rendering", "env")
    }
    generation = phase["rollout"] - sum(value or 0.0 for value in side.values())
    found = {
        "rollout": phase["rollout"],
        "rollout: generation": generation,
        "rollout: rendering": side["rendering"],
        "rollout: environment": side["env"],
        "credit": phase["credit"],
        "update": phase["update"],
        "record": statistics.median(each["record"] for each in sides),
        "checkpoint": statistics.mean(each.get("checkpoint", 0.0) for each in sides),
    }
    return {name: None if value is None else round(value, 4) for name, value in found.items()}


if __name__ == "__main__":
    main()
