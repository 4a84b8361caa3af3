"""Credit by playing on: what a turn was worth is found by replaying the episode without it, or from the state it met."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

from marft.algorithms.credit import difference, tree_scores
from marft.game.play import seed_of
from marft.rollouts.runner import EpisodeRunner, Start
from marft.types import Completion, Episode, Turn

BLANK = Completion(text="", token_ids=(), logprobs=(), finish="stop", version=0)


async def with_differences(
    runner: EpisodeRunner,
    episodes: Sequence[Episode],
    seed: str,
    *,
    learns: Collection[str],
    baseline: Literal["blank", "base"],
) -> list[Episode]:
    """Each episode with the credit R − R_{-k} of every learning turn k: its message blanked and the rest played again with
    the same seed, or spoken by the untrained base and all drawn anew.

    A baseline must not know what the agent said. With the same seed the base would: it says what the agent said wherever
    both are alike, so that an agent that begins as the base would earn 0 and never learn.
    """
    jobs: list[tuple[int, int]] = []
    starts: list[Start] = []
    for e, episode in enumerate(episodes):
        for turn in learning_turns(episode, learns):
            jobs.append((e, turn.index))
            starts.append(start_without_turn(episode, turn, baseline))
    replays = await runner.episodes(starts, seed if baseline == "blank" else f"{seed}/base")
    lost: list[dict[int, float]] = [{} for _ in episodes]
    found = list(episodes)
    for (e, k), other in zip(jobs, replays, strict=True):
        lost[e][k] = other.reward.team
        if other.ended == "failed":  # what turn k is worth is not known, and 0 would be a score like any other
            found[e] = replace(
                found[e],
                ended="failed",
                error=f"played again without turn {k}, it failed: {other.error}",
                fault=other.fault,
                trace=other.trace,
            )
    return [
        replace(episode, credits=difference(episode.reward.team, lost[e], len(episode.turns)))
        for e, episode in enumerate(found)
    ]


def start_without_turn(episode: Episode, turn: Turn, baseline: Literal["blank", "base"]) -> Start:
    """How to play an episode again with `turn` blanked, or spoken by the base."""
    before = episode.turns[: turn.index]
    if baseline == "blank":
        return Start(
            task=episode.task, sample=episode.sample, replayed=(*before, replace(turn, completion=BLANK, heard=None))
        )
    return Start(task=episode.task, sample=episode.sample, replayed=before, base_at=turn.index)


async def with_forks(
    runner: EpisodeRunner, starts: Sequence[Start], seed: str, *, samples: int, learns: Collection[str]
) -> list[Episode]:
    """Of every `samples` starts on one task the first is played as a trunk, and the others fork from it, at its learning
    turns one after another; each turn is credited with the mean reward of the leaves below it."""
    trunks = await runner.episodes(starts[::samples], seed)
    forks: list[list[Start]] = []
    for t, trunk in enumerate(trunks):
        turns = learning_turns(trunk, learns)
        first = seed_of(seed, trunk.task.id, trunk.sample) % max(len(turns), 1)  # so that none is left out for ever
        wanted = starts[t * samples + 1 : (t + 1) * samples] if turns else ()
        forks.append(
            [
                replace(start, replayed=trunk.turns[: turns[(first + j) % len(turns)].index], trunk=trunk.sample)
                for j, start in enumerate(wanted)
            ]
        )
    grown = await runner.episodes([start for some in forks for start in some], seed)
    found: list[Episode] = []
    for trunk, some in zip(trunks, forks, strict=True):
        branches, grown = grown[: len(some)], grown[len(some) :]
        found += with_tree_credits(trunk, branches) if trunk.ended != "failed" else [trunk]
    return found


def with_tree_credits(trunk: Episode, branches: Sequence[Episode]) -> list[Episode]:
    """The trunk and its forks with their credits; a fork that failed is no leaf."""
    whole = [trunk, *(branch for branch in branches if branch.ended != "failed")]
    scores = tree_scores(whole[0], whole[1:])
    failed = [branch for branch in branches if branch.ended == "failed"]
    return [*(replace(e, credits=own) for e, own in zip(whole, scores, strict=True)), *failed]


def learning_turns(episode: Episode, learns: Collection[str]) -> list[Turn]:
    """The turns of agents that learn; none of an episode that failed."""
    return (
        []
        if episode.ended == "failed"
        else [turn for turn in episode.turns if turn.agent in learns and turn.step != "none"]
    )
