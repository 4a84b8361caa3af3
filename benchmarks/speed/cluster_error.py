"""How far the simulation of a cluster is from real runs: one, two and four players against an environment that waits.

    python benchmarks/speed/cluster_error.py [--players 1 2 4] [--iterations 6] [--pause 0.1] [--out FILE] [key=value …]

grpo on the default task with 16 tasks an iteration, lag 1 and as many shards as players, on a CPU. Every episode's reward
comes `--pause` seconds late, so that players mostly wait and a machine with few cores can have several. One process that
plays and learns in turn gives the seconds of a shard and of an update; from these the simulation says how long an iteration
takes with players beside the learner, and real runs with workers say whether that is so. Medians over all iterations but the
first two: how long workers take to start is not simulated. `error_with_that_update` is with an update's seconds as they were
beside the players, who take cores from the learner: what is left then is the rule's own error. Further: what
reading stale samples again costs, in updates. Prints JSON.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

import numpy as np
import torch

from benchmarks.speed.cluster import Cluster, Work, simulate
from benchmarks.speed.measure import finish, machine, settings
from benchmarks.speed.overlap import seconds_of

ITERATIONS = 50  # that are simulated
WAITING = ["env.name=benchmarks.speed.overlap:Slow", "train.tasks=16", "train.lag=1", "rollout.threads=1"]

Phases = Mapping[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--players", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_intermixed_args()
    rows = []
    for players in options.players:
        words = [*WAITING, f"rollout.shards={players}", *options.overrides]
        alone = seconds_of([*words, "rollout.workers=0"], options.iterations, 1, options.pause)
        beside = seconds_of([*words, f"rollout.workers={players}"], options.iterations, 1, options.pause)
        given = {"pause": options.pause, "iterations": options.iterations, "overrides": options.overrides}
        rows.append({**compare(players, alone, beside), **given})
    result: dict[str, Any] = {
        "benchmark": "cluster_error",
        "settings": settings(options),
        "machine": machine(torch.device("cpu")),
        "load": round(os.getloadavg()[0], 1),
        "rows": rows,
        "worst_error": max((row["error"] for row in rows), key=abs),
        "reread_over_update": statistics.median(row["reread_over_update"] for row in rows),
    }
    finish(result, options.out)


def compare(players: int, alone: Sequence[Phases], beside: Sequence[Phases]) -> dict[str, Any]:
    """What the simulation makes of one process's seconds, and what they were with players beside it."""
    shard = statistics.median(each["rollout"] for each in alone) / players
    learn = statistics.median(sum(each.values()) - each["rollout"] for each in alone)
    measured = statistics.median(sum(each.values()) for each in beside)
    learn_beside = statistics.median(sum(each.values()) - each["rollout"] for each in beside)
    simulated, informed = (seconds_an_iteration(players, shard, each) for each in (learn, learn_beside))
    return {
        "players": players,
        "seconds_of_a_shard": round(shard, 3),
        "seconds_of_an_update": round(learn, 3),
        "in_turn": round(players * shard + learn, 3),
        "simulated": round(simulated, 3),
        "measured": round(measured, 3),
        "error": round(simulated / measured - 1, 3),
        "update_beside_players": round(learn_beside, 3),
        "error_with_that_update": round(informed / measured - 1, 3),
        "reread_over_update": round(statistics.median(each["credit"] / each["update"] for each in alone), 3),
    }


def seconds_an_iteration(players: int, shard: float, learn: float) -> float:
    """In the long run, with lag 1 and a shard for each player."""
    work = Work(play_IS=np.full((ITERATIONS, players), shard), learn_I=np.full(ITERATIONS, learn))
    return float(np.diff(simulate(work, Cluster(players=players, lag=1)).end_I).mean())


if __name__ == "__main__":
    main()
