"""A run whose agents talk past what they can read: those episodes are learnt from as failures; what no word of theirs made
too long is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from quick import start, trainer_of
from toys import rows

import marft
from marft.envs.base import Split
from marft.game.play import Game
from marft.types import MarftError


class Content(marft.Environment[int]):
    """Whatever is said is right, as long as it can be said. The prompts of `words` words are read word by word."""

    light = True

    def __init__(self, words: int = 1) -> None:
        self.words = words

    def tasks(self, split: Split) -> list[marft.Task]:
        return [marft.Task(id=f"{split}/{i}", prompt="0 " * self.words + str(split == "test")) for i in range(4)]

    def reset(self, task: marft.Task) -> int:
        return 0

    def transition(self, state: int, turn: marft.Turn) -> int:
        return state + 1

    def reward(self, state: int) -> marft.Reward:
        return marft.Reward(team=1.0, correct=True)


async def ann_at_length(game: Game) -> None:
    """How much she says is luck: her model reads 128 tokens, and ends a message with one in sixteen."""
    for _ in range(8):
        await game.act("ann")


CHATTY: dict[str, Any] = {
    "env": "test_overflowing_runs:Content",
    "team": {"workflow": "test_overflowing_runs:ann_at_length", "agents": {"ann": {"max_tokens": 64}, "bob": None}},
    "train": {"iterations": 1, "tasks": 2, "samples": 8},
    "track": {"episodes": 99},
}


@pytest.mark.parametrize("algorithm", ["grpo", "marft-action"])
def test_a_team_that_talks_too_much_learns_that_it_fails(
    tmp_path: Path, algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(tmp_path / "run", **CHATTY, algorithm=algorithm)
    [row] = rows(run / "metrics.jsonl")
    episodes = rows(run / "episodes.jsonl")
    ended = [episode["ended"] for episode in episodes]
    assert set(ended) == {"overflow", "terminated"}
    assert (row["failed"], row["overflow"], row["episodes"]) == (0, ended.count("overflow"), 16)
    assert row["reward"] == row["accuracy"] == ended.count("terminated") / 16
    assert f"{row['overflow']} outgrew what an agent reads" in capsys.readouterr().out
    for episode in episodes:
        assert episode["reward"] == float(episode["correct"]) == float(episode["ended"] == "terminated")
        assert all("advantages" in turn for turn in episode["turns"])
    if algorithm == "grpo":  # all begin alike, so her first words are compared within each task
        first = {
            kind: {round(e["turns"][0]["advantages"][0], 4) for e in episodes if e["ended"] == kind}
            for kind in ("overflow", "terminated")
        }
        assert max(first["overflow"]) < 0 <= min(first["terminated"])


@pytest.mark.parametrize("credit", ["difference", "tree", "equal"])
def test_play_outs_that_overflow_are_failures_of_the_team_as_well(tmp_path: Path, credit: str) -> None:
    run = start(tmp_path / "run", **CHATTY, credit=credit)
    [row] = rows(run / "metrics.jsonl")
    assert (row["failed"], row["episodes"]) == (0, 16)
    assert row["overflow"] > 0


def test_a_task_that_is_too_long_is_nobodys_failure() -> None:
    with pytest.raises(MarftError) as caught:
        trainer_of(
            Path("some/run"), **{**CHATTY, "env": {"name": "test_overflowing_runs:Content", "words": 200}}
        ).source.next_batch(0)
    line = str(caught.value)
    assert line.startswith("16 of 16 episodes failed in iteration 1; the first: ann: the prompt has 20")
    assert "tokens, the model reads 128, and it is as long if nobody speaks" in line
    assert "\n" not in line


def test_evaluation_counts_it_as_wrong_and_goes_on(tmp_path: Path) -> None:
    run = start(tmp_path / "run", **{**CHATTY, "eval": {"tasks": 4, "temperature": 1.0}})
    held_out = rows(run / "held_out.jsonl")
    assert "overflow" in {row["ended"] for row in held_out}
    assert all(row["error"] is not None and row["correct"] is False for row in held_out if row["ended"] == "overflow")
