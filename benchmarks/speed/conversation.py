"""What it saves that an agent's turns extend each other: tokens and seconds of episodes of several turns, and of an update.

    python benchmarks/speed/conversation.py [--turns 6] [--tasks 16] [--samples 4] [--rounds 3] [--out FILE] [key=value …]

One agent on the default task's base acts several times, and reads what it said before: as lines of one message (`flat`), or
as a conversation, whose prompts begin with the tokens of the turn before.

*Generation*: the tokens of all prompts, those that the engine computes of them, and the processor's seconds of the play, with
and without keys that are kept from turn to turn (`engine.keep`); plays take turns. *Update*: the tokens that the learner reads,
and those that it computes (beginnings that sequences share count once); updates take turns. Prints JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

import torch

from benchmarks.speed.measure import finish, machine
from marft.config import Config, load_config
from marft.engines.kv_cache import DecodeAttention
from marft.game.play import Game
from marft.learners.microbatches import Sample, pack_microbatches
from marft.rollouts.batching import build_batch
from marft.rollouts.credit import Credit
from marft.rollouts.event_loop import run_async
from marft.rollouts.runner import Start
from marft.training.build import Assembly, assemble
from marft.types import Episode

HISTORIES = ("flat", "conversation")


async def again(game: Game, turns: int) -> None:
    """The one agent, so many times."""
    for _ in range(turns):
        await game.act(*game.team)


def configured(history: str, options: argparse.Namespace, *more: str) -> Config:
    return load_config(
        "duo",
        [
            "team.workflow=benchmarks.speed.conversation:again", f"team.options.turns={options.turns}",
            f"team.history={history}", "team.agents={solver: {prompt: Solve it., max_tokens: 24}}", "algorithm=grpo",
            "device=cpu", "eval.tasks=0", *more, *options.overrides,
        ],
    )  # fmt: skip


def play(parts: Assembly, options: argparse.Namespace) -> list[Episode]:
    """The episodes of one batch."""
    tasks = parts.runner.host.tasks("train")[: options.tasks]
    starts = [Start(task=task, sample=i) for task in tasks for i in range(options.samples)]
    return run_async(parts.runner.episodes(starts, "0"))


class Play:
    """Plays of one way to generate: what their prompts are, and what is computed of them."""

    def __init__(self, history: str, keep: Sequence[str], options: argparse.Namespace) -> None:
        self.options, self.seconds = options, []
        self.parts = assemble(configured(history, options, *keep))
        [self.team] = self.parts.teams
        self.prompts = self.computed = 0

    def play(self) -> None:
        """One more; the counts are those of the last."""
        forward, computed = self.team.forward, 0

        def counted(ids: torch.Tensor, positions: torch.Tensor, attend: Any, routing: Any) -> torch.Tensor:
            nonlocal computed
            computed += 0 if isinstance(attend, DecodeAttention) else ids.numel()
            return forward(ids, positions, attend, routing)

        self.team.forward = counted
        began = time.process_time()
        episodes = play(self.parts, self.options)
        self.seconds.append(time.process_time() - began)
        self.team.forward = forward
        self.prompts = sum(len(turn.prompt_ids) for episode in episodes for turn in episode.turns)
        self.computed = computed

    def figures(self) -> dict[str, Any]:
        return {
            "prompt tokens": self.prompts,
            "computed": self.computed,
            "share computed": round(self.computed / self.prompts, 3),
            "processor seconds": round(statistics.median(self.seconds), 3),
        }


def measure_generation(options: argparse.Namespace) -> dict[str, Any]:
    """Both histories, with and without what is kept."""
    ways = {"nothing kept": ["engine.keep=0"], "kept": []}
    plays = {(history, way): Play(history, ways[way], options) for history in HISTORIES for way in ways}
    try:
        for _ in range(options.rounds + 1):
            for each in plays.values():
                each.play()
        for each in plays.values():
            del each.seconds[0]  # a warm-up
    finally:
        for each in plays.values():
            each.parts.close()
    return {history: {way: plays[history, way].figures() for way in ways} for history in HISTORIES}


def samples_of(parts: Assembly, config: Config, options: argparse.Namespace) -> list[Sample]:
    """What an update on one batch of episodes reads."""
    episodes = play(parts, options)
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
    for history in HISTORIES:
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
        "generation": measure_generation(options),
        "histories": found,
        "conversation to flat": ratios,
    }
    finish(result, options.out)


if __name__ == "__main__":
    main()
