"""What was said in one episode and what came of it, as people read it: the rows of `held_out.jsonl` and of `marft eval`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marft.types import Ended, Episode, FaultKind, Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One turn: who spoke, the text, and whether it ended by itself or was cut at the agent's limit of tokens."""

    agent: str
    text: str
    finish: Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One episode on one task."""

    task: str  # its id
    sample: int
    prompt: str
    gold: str | None  # the right answer, where the environment says it
    reward: float
    correct: bool | None  # None: the environment does not say, or the episode failed
    ended: Ended
    error: str | None  # why it failed, in one line
    fault: FaultKind | None
    trace: str
    turns: tuple[Said, ...]


def make_transcript(episode: Episode, gold: str | None) -> Transcript:
    """An episode's transcript; `gold` is the right answer to its task, if known."""
    said = (Said(agent=turn.agent, text=turn.text, finish=turn.completion.finish) for turn in episode.turns)
    return Transcript(
        task=episode.task.id, sample=episode.sample, prompt=episode.task.prompt, gold=gold, reward=episode.reward.team,
        correct=episode.reward.correct, ended=episode.ended, error=episode.error, fault=episode.fault,
        trace=episode.trace, turns=tuple(said),
    )  # fmt: skip


def worst_episodes(episodes: Sequence[Episode], count: int) -> list[Episode]:
    """The `count` episodes that tell most, in the order of play: failed ones, then wrong ones, then the lowest rewards."""

    def rank(i: int) -> tuple[bool, bool, float]:
        episode = episodes[i]
        return episode.ended != "failed", bool(episode.reward.correct), episode.reward.team

    chosen = sorted(range(len(episodes)), key=rank)[:count]
    return [episodes[i] for i in sorted(chosen)]
