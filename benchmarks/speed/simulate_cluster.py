"""What a cluster would gain by playing and learning at once, simulated on measured costs, for 1 to 1,024 GPUs.

    python benchmarks/speed/simulate_cluster.py [--gpus N …] [--iterations 200] [--results docs/results] [--out FILE]

A GPU either plays or learns; against it stands the synchronous run on as many GPUs, all of which play and then learn. A batch
has 16 tasks × 8 samples for each GPU, and lengths of responses are lognormal with half of their variance the task's. A player
answers a shard at once: every step of its engine costs seconds, and every token. Costs: seconds a token from generation-1.5b
and training-1.5b, tokens that are trained for each one generated from real-math, reading stale samples again from
cluster-error. `ASSUMED` is what nobody has measured. How many GPUs learn, and in how many shards a batch is played, is
tried out in shorter runs. Prints JSON; `--out FILE` also writes it, and draws the curves beside it. cluster.py has the rules,
cluster_error.py says how far off they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

import numpy as np

from benchmarks.docs.report_cluster import plot
from benchmarks.speed.cluster import Cluster, Floats, Outcome, Work, simulate
from benchmarks.speed.measure import finish

SIGMAS, LAGS = (0.3, 0.7, 1.2), (0, 1, 2, 4)
ASSUMED = {
    "fixed_share": 0.5,  # of a step of 256 rows that a step of one row takes too
    "mean_tokens": 512,
    "most_tokens": 8192,
    "alike": 0.5,  # share of the lengths' variance that a task's samples have in common
    "adapter_megabytes": 148,  # two agents of rank 16 on all linear layers of a 1.5B model, fp32
    "megabytes_per_second": 450,  # of adapters to a player; 20 MB once took 44 ms from one process to another
    "restart_seconds": 60,
}
TASKS, SAMPLES = 16, 8  # of a batch, for each GPU
SLOTS = 256  # rows that an engine answers at once
SEARCH = 30  # iterations of a run that tries a split out
LARGEST_SEARCHED = 32  # GPUs
LEARNERS = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)  # shares of the GPUs that are tried
ONE_LEARNER = (1, 2, 4, 8, 16, 32, 64)  # players beside it
FAILURES = (0.1, 1.0, 10.0)  # of a player, an hour
QUEUED = (2, 8, 32)  # GPUs
FIXED_SHARES = (0.25, 0.5, 0.75)
SIZE, SIGMA, LAG = 64, 0.7, 1  # where one thing alone is varied


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds, of one GPU."""

    step: float  # of an engine, whatever its rows
    token: float  # generated, on top of that
    learn: float  # a generated token
    reread: float  # share of an update that stale samples cost on top
    publish: float  # all adapters, to one player


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of the groups of every iteration: the longest response, and all."""

    longest_IT: Floats
    total_IT: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Who does what."""

    learners: int
    players: int
    shards: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[2**i for i in range(11)])
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--results", type=Path, default=Path("docs/results"), help="where the measured costs lie")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    costs = read_costs(options.results)
    result = {
        "benchmark": "simulate_cluster",
        "iterations": options.iterations,
        "assumed": ASSUMED,
        "costs": asdict(costs),
        "scaling": [
            row for gpus in options.gpus for sigma in SIGMAS for row in scaling(costs, gpus, sigma, options.iterations)
        ],
        **varied(costs, options.results, options.iterations),
    }
    shown = rounded(result)
    finish(shown, options.out)
    if options.out is not None:
        plot(shown, options.out.with_suffix(".png"))


def read_costs(results: Path, fixed_share: float = ASSUMED["fixed_share"]) -> Costs:
    """From what was measured on one GPU; adapters and reading again on a CPU."""

    def read(name: str) -> Any:
        return json.loads((results / f"{name}.json").read_text())

    generation, training, error = read("generation-1.5b"), read("training-1.5b"), read("cluster-error")
    tokens = read("real-math-qwen2.5-coder-1.5b-instruct")["entries"]["duo-grpo"]["tokens"]
    rows = generation["settings"]["slots"]
    step = rows / generation["adapters"]["2"]["marft"]["tokens_per_second"]  # of that many rows
    return Costs(
        step=fixed_share * step,
        token=(1 - fixed_share) * step / rows,
        learn=tokens["update"] / tokens["rollout"] / training["figures"]["marft"]["tokens_per_second"],
        reread=error["reread_over_update"],
        publish=ASSUMED["adapter_megabytes"] / ASSUMED["megabytes_per_second"],
    )


# --- a run ------------------------------------------------------------------------------------------------------------
def draw_lengths(tasks: int, iterations: int, sigma: float) -> Lengths:
    """Lognormal with the same mean for every sigma, before the longest are cut."""
    rng, alike = np.random.default_rng(0), ASSUMED["alike"]
    longest, total = [], []
    for _ in range(iterations):
        noise_TS = alike**0.5 * rng.standard_normal((tasks, 1))
        noise_TS = noise_TS + (1 - alike) ** 0.5 * rng.standard_normal((tasks, SAMPLES))
        tokens_TS = ASSUMED["mean_tokens"] * np.exp(sigma * noise_TS - sigma**2 / 2)
        tokens_TS = np.clip(tokens_TS, 1, ASSUMED["most_tokens"])
        longest.append(tokens_TS.max(axis=1))
        total.append(tokens_TS.sum(axis=1))
    return Lengths(longest_IT=np.array(longest), total_IT=np.array(total))


def make_work(costs: Costs, lengths: Lengths, split: Split, *, stale: bool) -> Work:
    """Shards of whole tasks, as marft cuts them; learners share an update evenly."""
    tasks = lengths.total_IT.shape[1]
    firsts = [tasks * i // split.shards for i in range(split.shards)]
    longest_IS = np.maximum.reduceat(lengths.longest_IT, firsts, axis=1)
    total_IS = np.add.reduceat(lengths.total_IT, firsts, axis=1)
    learn = costs.learn * (1 + costs.reread * stale) / split.learners
    return Work(play_IS=costs.step * longest_IS + costs.token * total_IS, learn_I=learn * lengths.total_IT.sum(axis=1))


def run(costs: Costs, lengths: Lengths, split: Split, lag: int, **cluster: Any) -> Outcome:
    given = {"publish": costs.publish, "tree": True, **cluster}
    work = make_work(costs, lengths, split, stale=lag > 0)
    return simulate(work, Cluster(players=split.players, lag=lag, **given))


def run_in_turn(costs: Costs, lengths: Lengths, gpus: int, **cluster: Any) -> Outcome:
    """All GPUs play, then all learn; adapters are there already."""
    split = Split(learners=gpus, players=gpus, shards=gpus)
    return run(costs, lengths, split, 0, publish=0.0, **cluster)


def splits(gpus: int, tasks: int) -> Iterable[Split]:
    """With shards that an engine can answer at once, and with twice as many."""
    for learners in sorted({min(max(1, round(share * gpus)), gpus - 1) for share in LEARNERS}):
        players = gpus - learners
        rounds = -(-tasks * SAMPLES // (SLOTS * players))
        for shards in (rounds * players, 2 * rounds * players):
            if shards <= tasks:
                yield Split(learners=learners, players=players, shards=shards)


def best_split(costs: Costs, lengths: Lengths, gpus: int, lag: int) -> Split:
    """The fastest; of a large cluster, that of a smaller one, as many times as it fits."""
    times = max(1, gpus // LARGEST_SEARCHED)
    tasks = lengths.total_IT.shape[1] // times
    few = Lengths(longest_IT=lengths.longest_IT[:SEARCH, :tasks], total_IT=lengths.total_IT[:SEARCH, :tasks])
    best = min(splits(gpus // times, tasks), key=lambda split: run(costs, few, split, lag).seconds)
    return Split(learners=gpus - times * best.players, players=times * best.players, shards=times * best.shards)


# --- what is varied ---------------------------------------------------------------------------------------------------
def scaling(costs: Costs, gpus: int, sigma: float, iterations: int) -> list[dict[str, Any]]:
    """The synchronous run, and the best one with every lag."""
    lengths = draw_lengths(gpus * TASKS, iterations, sigma)
    in_turn = run_in_turn(costs, lengths, gpus)
    where = {"gpus": gpus, "sigma": sigma}
    found = [{**where, "lag": None, **row_of(in_turn, in_turn, gpus, lengths)}]
    for lag in LAGS if gpus > 1 else ():
        split = best_split(costs, lengths, gpus, lag)
        row = row_of(run(costs, lengths, split, lag), in_turn, gpus, lengths)
        found.append({**where, "lag": lag, **asdict(split), **row})
    return found


def row_of(outcome: Outcome, in_turn: Outcome, gpus: int, lengths: Lengths) -> dict[str, Any]:
    episodes = lengths.total_IT.size * SAMPLES
    return {
        "episodes_per_second": episodes / outcome.seconds,
        "episodes_per_second_and_gpu": episodes / outcome.seconds / gpus,
        "time_ratio": outcome.seconds / in_turn.seconds,
        "learner_idle": outcome.learner_idle,
        "player_idle": outcome.player_idle,
        "worst_lag": outcome.worst_lag,
    }


def varied(costs: Costs, results: Path, iterations: int) -> dict[str, list[dict[str, Any]]]:
    """One thing at a time, at one size."""
    lengths = draw_lengths(SIZE * TASKS, iterations, SIGMA)
    split = best_split(costs, lengths, SIZE, LAG)
    return {
        "one_learner": [row for sigma in SIGMAS for row in one_learner(costs, sigma, iterations)],
        "failures": list(failures(costs, lengths, split)),
        "publication": [
            {"tree": tree, "lag": lag, "gpus": gpus, **publication(costs, gpus, lag, iterations, tree=tree)}
            for gpus in (8, 64, 512)
            for lag in (1, 2)
            for tree in (True, False)
        ],
        "queues": [
            queues(costs, gpus, sigma, lag, iterations) for gpus in QUEUED for sigma in SIGMAS for lag in LAGS if lag
        ],
        "assumptions": [
            {"fixed_share": share, **assumed(read_costs(results, share), lengths)} for share in FIXED_SHARES
        ],
    }


def assumed(costs: Costs, lengths: Lengths) -> dict[str, Any]:
    """The best split again, with other costs."""
    in_turn, split = run_in_turn(costs, lengths, SIZE), best_split(costs, lengths, SIZE, LAG)
    return {**asdict(split), "time_ratio": run(costs, lengths, split, LAG).seconds / in_turn.seconds}


def one_learner(costs: Costs, sigma: float, iterations: int) -> Iterable[dict[str, Any]]:
    """A batch of 64 tasks, one GPU that learns, and ever more players."""
    lengths = draw_lengths(64, iterations, sigma)
    alone = run(costs, lengths, Split(learners=1, players=1, shards=2), 0, publish=0.0)
    for lag in LAGS:
        for players in ONE_LEARNER:
            split = Split(learners=1, players=players, shards=max(2, players))
            outcome = run(costs, lengths, split, lag, tree=False)
            row = row_of(outcome, alone, players + 1, lengths)
            yield {"sigma": sigma, "lag": lag, "players": players, **row, "speed": alone.seconds / outcome.seconds}


def queues(costs: Costs, gpus: int, sigma: float, lag: int, iterations: int) -> dict[str, Any]:
    """marft's rule and its shards; and both queues with players that answer group by group: as soon as one is done, its rows
    go to the next.

    Each of a player's places for a group counts as a player, and every step costs what it costs with all rows taken: that is
    an upper bound.
    """
    lengths = draw_lengths(gpus * TASKS, iterations, sigma)
    in_turn = run_in_turn(costs, lengths, gpus)
    split = best_split(costs, lengths, gpus, lag)
    groups = min(SLOTS // SAMPLES, -(-gpus * TASKS * (1 + lag) // split.players))  # of one player, at a time
    step = costs.step + costs.token * groups * SAMPLES
    work = replace(make_work(costs, lengths, split, stale=True), play_IS=step * lengths.longest_IT)
    places = groups * split.players
    outcomes = {
        "shards": run(costs, lengths, split, lag),
        "groups": simulate(work, Cluster(players=places, lag=lag)),
        "ready_first": simulate(work, Cluster(players=places, lag=lag, queue="ready-first")),
    }
    found = {
        name: {"time_ratio": outcome.seconds / in_turn.seconds, "worst_lag": outcome.worst_lag}
        for name, outcome in outcomes.items()
    }
    return {"gpus": gpus, "sigma": sigma, "lag": lag, **asdict(split), **found}


def failures(costs: Costs, lengths: Lengths, split: Split) -> Iterable[dict[str, Any]]:
    """Players that are lost while they play."""
    for rate in FAILURES:
        harm = {"failures": rate, "restart": ASSUMED["restart_seconds"]}
        in_turn = run_in_turn(costs, lengths, SIZE, **harm)
        for lag in (1, 2):
            outcome = run(costs, lengths, split, lag, **harm)
            yield {
                "failures_per_hour": rate,
                "lag": lag,
                "replays": outcome.replays,
                "lost": outcome.lost,
                "seconds_over_none": outcome.seconds / run(costs, lengths, split, lag).seconds,
                "time_ratio": outcome.seconds / in_turn.seconds,
            }


def publication(costs: Costs, gpus: int, lag: int, iterations: int, *, tree: bool) -> dict[str, float]:
    """The time that sending adapters adds."""
    lengths = draw_lengths(gpus * TASKS, iterations // 4, SIGMA)
    split = best_split(costs, lengths, gpus, lag)
    free = run(costs, lengths, split, lag, publish=0.0).seconds
    return {"players": split.players, "seconds_over_free": run(costs, lengths, split, lag, tree=tree).seconds / free}


def rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
