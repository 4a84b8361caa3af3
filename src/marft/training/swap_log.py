"""Where new weights entered the plays of a run, as its events say: with it such a run can be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from marft.config import Config
from marft.rollouts.players import Key, Swaps
from marft.runs.directory import RunDirectory
from marft.types import MarftError

SWAPS = "swaps"  # the event of a shard of a play


def record_swaps(run: RunDirectory, swaps: Mapping[Key, Swaps]) -> None:
    """An event of every shard of a play, also where nothing entered it."""
    for key, own in swaps.items():
        run.append_event(SWAPS, key.iteration + 1, play=key.play, shard=key.shard, swaps=own)


def logged_swaps(config: Config) -> dict[Key, Swaps] | None:
    """By shard; None: no run is repeated. What was played again after resuming counts as it was played last."""
    if config.rollout.replay is None:
        return None
    run = RunDirectory(Path(config.rollout.replay))
    if not run.exists():
        raise MarftError(f"rollout.replay: {run.path} is not a run; give the folder of one")
    old = run.config()
    if old.rollout.swap != "token":
        raise MarftError(f"rollout.replay: {run.path} has rollout.swap=turn, so nothing entered its plays; drop it")
    if (old.train.lag, old.shards) != (config.train.lag, config.shards):
        raise MarftError(
            f"rollout.replay: {run.path} has train.lag={old.train.lag} and {old.shards} shards, this run "
            f"{config.train.lag} and {config.shards}; give the same"
        )
    events = [event for event in run.events() if event["event"] == SWAPS]
    return {
        Key(False, event["iteration"] - 1, event["play"], event["shard"]): tuple(
            (step, v) for step, v in event["swaps"]
        )
        for event in events
    }
