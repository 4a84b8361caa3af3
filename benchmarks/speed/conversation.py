"""What it saves that an agent's turns extend each other: tokens and seconds of an update on conversations of several turns.

    python benchmarks/speed/conversation.py [--turns 6] [--tasks 16] [--samples 4] [--rounds 3] [--out FILE] [key=value …]

One agent on the default task's base acts several times, and reads what it said before: as lines of one message (`flat`), or
as a conversation, whose prompts begin with the tokens of the turn before. Counts
the tokens that the learner reads, and those that it computes (beginnings that sequences share count once); updates take turns.
Prints JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

import torch

from benchmarks.speed.measure import finish, machine
from marft.config import Config, load_config
from marft.game.play import Game
from marft.learners.microbatches import Sample, pack_microbatches
from marft.rollouts.batching import build_batch
from marft.rollouts.credit import Credit
from marft.rollouts.event_loop import run_async
from marft.rollouts.runner import Start
from marft.training.build import Assembly, assemble


async def again(game: Game, turns: int) -> None:
    """The one agent, so many times."""
    for _ in range(turns):
        await game.act(*game.team)


def configured(history: str, options: argparse.Namespace) -> Config:
    return load_config(
        "duo",
        [
            "team.workflow=benchmarks.speed.conversation:again", f"team.options.turns={options.turns}",
            f"team.history={history}", "team.agents={solver: {prompt: Solve it., max_tokens: 24}}", "algorithm=grpo",
            "device=cpu", "eval.tasks=0", *options.overrides,
        ],
    )  # fmt: skip


def samples_of(parts: Assembly, config: Config, options: argparse.Namespace) -> list[Sample]:
    """What an update on one batch of episodes reads."""
    tasks = parts.runner.host.tasks("train")[: options.tasks]
    starts = [Start(task=task, sample=i) for task in tasks for i in range(options.samples)]
    episodes = run_async(parts.runner.episodes(starts, "0"))
    assert isinstance(config.credit, Credit)
    members = parts.learner.members
    batch = build_batch(episodes, members=members, agents=parts.runner.team, credit=config.credit)
    turns = torch.arange(len(batch.length_K))
    return parts.learner.samples(batch, turns, {member.adapter for member in members})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_intermixed_args()
    found: dict[str, dict[str, Any]] = {}
    work = {}
    for history in ("flat", "conversation"):
        config = configured(history, options)
        with assemble(config) as parts:
            samples = samples_of(parts, config, options)
            micro = list(pack_microbatches(samples, config.train.tokens))
            work[history] = micro
            found[history] = {
                "drawn": sum(sample.span.asked for sample in samples),
                "read": sum(len(sample.span.ids) for sample in samples),
                "computed": sum(each.tokens for each in micro),
                "seconds": [],
            }
    for _ in range(options.rounds):
        for history, micro in work.items():
            began = time.perf_counter()
            for each in micro:
                each.hidden().float().pow(2).sum().backward()
            found[history]["seconds"].append(time.perf_counter() - began)
    for own in found.values():
        own["seconds"] = round(statistics.median(own["seconds"]), 3)
    ratios = {
        key: round(found["conversation"][key] / found["flat"][key], 3)
        for key in ("drawn", "read", "computed", "seconds")
    }
    result = {
        "benchmark": "conversation",
        "machine": machine(torch.device("cpu")),
        "turns": options.turns,
        "episodes": options.tasks * options.samples,
        "histories": found,
        "conversation to flat": ratios,
    }
    finish(result, options.out)


if __name__ == "__main__":
    main()
