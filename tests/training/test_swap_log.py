from __future__ import annotations

from pathlib import Path

import pytest
from quick import config_of

from marft.config import Config
from marft.rollouts.players import Key
from marft.runs.directory import RunDirectory
from marft.training.swap_log import SWAPS, logged_swaps
from marft.types import MarftError


def repeating(run: Path | None, lag: int = 2, shards: int = 2) -> Config:
    rollout = {"swap": "token", "shards": shards, **({} if run is None else {"replay": str(run)})}
    return config_of(train={"lag": lag}, rollout=rollout)


def test_swaps_are_by_shard_and_the_last_play_of_one_counts(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", repeating(None), {})
    run.append_event("started", 0)
    run.append_event(SWAPS, 3, play=0, shard=1, swaps=((4, 1),))
    run.append_event("resumed", 2)
    run.append_event(SWAPS, 3, play=0, shard=1, swaps=((1, 1), (9, 2)))
    run.append_event(SWAPS, 4, play=0, shard=0, swaps=((2, 3),))
    assert logged_swaps(repeating(run.path)) == {Key(False, 2, 0, 1): ((1, 1), (9, 2)), Key(False, 3, 0, 0): ((2, 3),)}


def test_without_a_run_nothing_is_repeated() -> None:
    assert logged_swaps(repeating(None)) is None


def test_what_is_no_run_or_another_one_cannot_be_repeated(tmp_path: Path) -> None:
    with pytest.raises(MarftError, match=r"^rollout.replay: .*/nowhere is not a run; give the folder of one$"):
        logged_swaps(repeating(tmp_path / "nowhere"))
    run = RunDirectory.create(tmp_path / "run", repeating(None), {}).path
    for other in (repeating(run, lag=1), repeating(run, shards=1)):
        with pytest.raises(
            MarftError, match=r"^rollout.replay: .* has train.lag=2 and 2 shards, this run \d and \d; give"
        ):
            logged_swaps(other)


def test_a_run_without_swaps_has_none_to_repeat(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", config_of(train={"lag": 2}, rollout={"shards": 2}), {}).path
    with pytest.raises(MarftError, match=r"^rollout.replay: .* has rollout.swap=turn, so nothing entered its plays"):
        logged_swaps(repeating(run))
