"""Does self-play make a player stronger? Tic-tac-toe on the embedded model, against players that stay as they are.

    python benchmarks/learning/tictactoe.py [--out docs/results] [--seeds 0 1 2] [--credits per_player] [--iterations 60]

Both sides are played with one adapter, which learns from its own games alone. Every 20 iterations it plays 200 games against
a player that moves at random and 200 against one that completes its lines and stops the other's, half of them as the
first. The untrained model knows numbers and nothing of boards: what it says is mostly no move at all, and that loses. In
`reference` a player at random sits in its place.

Prints JSON. A message is one token; the board is shown as nine: X, O, or the number of a free cell.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root
os.environ.setdefault("OMP_NUM_THREADS", "1")  # many small matrices; to be said before torch is loaded

from marft.commands.train import start_run
from marft.config import parse
from marft.envs.pettingzoo import PettingZoo
from marft.rollouts.event_loop import run_async
from marft.rollouts.runner import Start
from marft.training.build import assemble
from marft.training.checkpoint import load_adapters
from marft.types import Episode, Message

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
SIDES = ("cross", "nought")
CREDITS: dict[str, dict[str, Any]] = {
    "per_player": {"name": "per_player"},
    "per_step, γ = 1": {"name": "per_step", "gamma": 1.0},
    "per_step, γ = 0": {"name": "per_step", "gamma": 0.0},
}
HERE = "benchmarks.learning.tictactoe"  # the module's name, also where this file is the program
OPPONENTS = {"at random": f"{HERE}:at_random", "one move ahead": f"{HERE}:one_ahead"}
GAMES = 100  # a side
EVERY = 20  # iterations
# of the prompts that the model knows the one that it answers with the most kinds of numbers
PROMPT = 'You are the verifier. Check the work and end with "Answer: N".'


# --- the game in words, and who plays it ------------------------------------------------------------------------------
class Nearby(PettingZoo):
    """In the trainer's own process: a move takes microseconds, and cannot hang."""

    light = True


def board(observation: Any, info: Any, player: str) -> str:
    """X: the player's own, O: the other's; a free cell is its number."""
    own, other = observation["observation"][..., 0].flatten(), observation["observation"][..., 1].flatten()
    return " ".join("X" if own[i] else "O" if other[i] else str(i) for i in range(9))


def opened(most: int = 5) -> Any:
    """PettingZoo's game, begun with up to `most` moves at random: alone with itself a player sees few positions."""
    from pettingzoo.classic import tictactoe_v3

    game = tictactoe_v3.env()
    begin = game.reset

    def reset(seed: int | None = None, options: Any = None) -> None:
        begin(seed=seed, options=options)
        luck = random.Random(seed)
        for _ in range(luck.randint(0, most)):
            mask = game.last()[0]["action_mask"]
            game.step(luck.choice([cell for cell in range(9) if mask[cell]]))

    game.reset = reset
    return game


def cells(messages: Sequence[Message]) -> list[str]:
    return messages[-1].content.rpartition("\n\n")[2].split()


def at_random(messages: Sequence[Message]) -> str:
    return random.choice([cell for cell in cells(messages) if cell.isdigit()])


def one_ahead(messages: Sequence[Message]) -> str:
    """Completes a line of its own, or else stops one of the other's, or else plays at random."""
    now = cells(messages)
    for mark in "XO":
        for line in LINES:
            held = [now[i] for i in line]
            if held.count(mark) == 2 and (free := [cell for cell in held if cell.isdigit()]):
                return free[0]
    return at_random(messages)


# --- play -------------------------------------------------------------------------------------------------------------
def settings(credit: Mapping[str, Any], seed: int, iterations: int) -> dict[str, Any]:
    return {
        "device": "cpu",
        "seed": seed,
        "env": {
            "name": f"{HERE}:Nearby", "game": f"{HERE}:opened", "agents": list(SIDES), "rules": "Play.",
            "text": f"{HERE}:board",
        },
        "team": {
            "workflow": "turns",
            "agents": {side: {"prompt": PROMPT, "max_tokens": 1, "adapter": "player"} for side in SIDES},
        },
        "algorithm": {"name": "rloo", "entropy": 0.06, "trust_region": 0.1},
        "credit": dict(credit),
        "lora": {"rank": 16},
        "optimizer": {"lr": 0.0007},
        # a turn of one token is always cut at its limit, which would pass for a collapse
        "train": {"iterations": iterations, "tasks": 32, "samples": 4, "minibatches": 1, "on_collapse": "warn"},
        "eval": {"tasks": 0},
        "checkpoint": {"every": EVERY, "keep": 1000},
        "track": {"tensorboard": False, "episodes": 0},
    }  # fmt: skip


def strength(chosen: Mapping[str, Any], checkpoint: Path | None) -> dict[str, dict[str, float]]:
    """Shares of games won, drawn and lost, and of those lost by a message that was no move, by opponent. Without a
    checkpoint a player at random sits in its place."""
    found = {}
    for name, script in OPPONENTS.items():
        counts: Counter[str] = Counter()
        for side in SIDES:
            agents = {other: {"script": script} for other in SIDES}
            agents[side] = chosen["team"]["agents"][side] if checkpoint else {"script": OPPONENTS["at random"]}
            counts.update(outcome(episode, side) for episode in play(with_agents(chosen, agents), checkpoint))
        found[name] = {what: counts[what] / counts.total() for what in ("won", "drawn", "lost", "no move")}
    return found


def with_agents(chosen: Mapping[str, Any], agents: Mapping[str, Any]) -> dict[str, Any]:
    """From the empty board."""
    env = {**chosen["env"], "game": "pettingzoo.classic.tictactoe_v3"}
    team = {**chosen["team"], "agents": {side: agents[side] for side in SIDES}}
    return {**chosen, "env": env, "team": team}


def play(chosen: Mapping[str, Any], checkpoint: Path | None) -> list[Episode]:
    random.seed(0)  # of the opponents
    if checkpoint is None:  # a run has an agent that learns, which here is none of those at the table
        spare = {"prompt": PROMPT, "adapter": "player"}
        chosen = {**chosen, "team": {**chosen["team"], "agents": {**chosen["team"]["agents"], "spare": spare}}}
    parts = assemble(parse(dict(chosen)))
    try:
        if checkpoint is not None:
            load_adapters(checkpoint, parts.teams)
        tasks = parts.runner.host.tasks("test")
        return run_async(parts.runner.episodes([Start(task=task, sample=0) for task in tasks[:GAMES]], "strength"))
    finally:
        parts.runner.host.close()


def outcome(episode: Episode, side: str) -> str:
    assert episode.ended == "terminated", episode.error
    earned = dict.fromkeys(SIDES, 0.0)
    for turn in episode.turns:
        earned[turn.agent] += episode.reward.turns[turn.index]
    own, other = earned[side], earned[SIDES[1 - SIDES.index(side)]]
    return "won" if own > 0 else "drawn" if own == 0 else "lost" if other > 0 else "no move"


def measure(name: str, seed: int, iterations: int, folder: Path) -> dict[str, Any]:
    chosen, started = settings(CREDITS[name], seed, iterations), time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        start_run(parse(chosen), folder)
        seconds = time.perf_counter() - started
        checkpoints = sorted(path for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
        points = [{"iteration": int(path.name), **strength(chosen, path)} for path in checkpoints]
    return {"credit": name, "seed": seed, "seconds": round(seconds), "points": points}


# --- report -----------------------------------------------------------------------------------------------------------
def table(data: Mapping[str, Any]) -> str:
    """Means over seeds of games won / drawn / lost / lost by a message that was no move, in per cent."""
    lines = ["| player | iterations | against random | against one move ahead |", "|---|---|---|---|"]
    lines.append(f"| at random | – | {' | '.join(shares([data['reference']], each) for each in OPPONENTS)} |")
    for name in dict.fromkeys(run["credit"] for run in data["runs"]):
        runs = [run["points"] for run in data["runs"] if run["credit"] == name]
        for points in zip(*runs, strict=True):
            figures = " | ".join(shares(points, each) for each in OPPONENTS)
            lines.append(f"| `{name}` | {points[0]['iteration']} | {figures} |")
    return "\n".join(lines)


def shares(points: Sequence[Mapping[str, Any]], opponent: str) -> str:
    kinds = ("won", "drawn", "lost", "no move")
    return " / ".join(f"{100 * statistics.mean(point[opponent][kind] for point in points):.0f}" for kind in kinds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--credits", nargs="+", default=["per_player"], choices=list(CREDITS))
    parser.add_argument("--iterations", type=int, default=60)
    options = parser.parse_args()
    runs = []
    for name, seed in product(options.credits, options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(measure(name, seed, options.iterations, Path(folder) / "run"))
    with contextlib.redirect_stdout(sys.stderr):
        reference = strength(settings(CREDITS["per_player"], 0, 1), None)
    data = {"games": 2 * GAMES, "reference": reference, "runs": runs}
    print(json.dumps(data, indent=2))
    if options.out:
        (options.out / "tictactoe.json").write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    main()
