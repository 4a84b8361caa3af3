"""A team in memory: what it plays, what it finds, and when it is closed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from toys import ECHO, TINY, Echo

import marft
from marft.cli import main
from marft.config import merge


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("team") / "run"
    assert main(["train", *ECHO, "--run", str(path)]) == 0
    return path


def test_it_plays_as_the_command_line_does(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", str(run), "--task", "2"]) == 0
    printed = capsys.readouterr().out
    with marft.load(run) as team:
        episode = team.play(2)
        assert episode.task == team.tasks()[2]
        assert f"solver (cut at its limit of tokens):\n{episode.turns[1].text}\n" in printed
        assert team.play(episode.task) == team.play("test/2") == episode
        assert team.play(2, sample=1).turns != episode.turns
    assert marft.play(run, 2) == episode


def test_a_prompt_of_ones_own_is_not_graded(run: Path) -> None:
    episode = marft.play(run, prompt="Start with 30. Add 12.")
    assert episode.task.prompt == "Start with 30. Add 12."
    assert math.isnan(episode.reward.team)
    assert episode.reward.correct is None
    assert [turn.agent for turn in episode.turns] == ["planner", "solver"]


def test_what_fails_is_data_on_the_episode() -> None:
    async def raising(game: marft.Game) -> None:
        raise RuntimeError("no")

    episode = marft.play("duo", env=Echo, workflow=raising)
    assert episode.ended == "failed"
    assert "RuntimeError: no" in str(episode.error)


def test_it_is_evaluated_as_the_command_line_does(run: Path, tmp_path: Path) -> None:
    assert main(["eval", str(run), "eval.samples=2", "--run", str(tmp_path / "there")]) == 0
    with marft.load(run) as team:
        found = team.evaluate(samples=2, run=tmp_path / "here")
    assert found.path == tmp_path / "here"
    here, there = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("here", "there"))
    assert {**here, "seconds": 0, "benchmarks": 0} == {**there, "seconds": 0, "benchmarks": 0}
    assert found.figures.accuracy is not None
    assert found.figures.accuracy.value == here["accuracy"]
    assert found.benchmarks["toys:Echo"].team is found.figures
    again = marft.evaluate(run, run=tmp_path / "again", eval={"samples": 2})
    assert again.figures.accuracy == found.figures.accuracy


def test_several_benchmarks_have_figures_each(run: Path, tmp_path: Path) -> None:
    class Bench(Echo):
        pass

    with marft.load(run) as team:
        found = team.evaluate(
            run=tmp_path / "eval", tasks=2, benchmarks={"small": {"size": 2}, "mine": {"name": Bench, "size": 3}}
        )
    assert {name: result.team.tasks for name, result in found.benchmarks.items()} == {"small": 2, "mine": 2}
    with pytest.raises(marft.MarftError, match=r"several benchmarks; ask for benchmarks\[NAME\]\.team of small, mine"):
        print(found.figures)


def test_a_checkpoint_of_its_own_choice(run: Path) -> None:
    with marft.load(run, at=0) as first, marft.load(run, at=2) as last, marft.load(run) as newest:
        told = [[turn.completion.logprobs for turn in team.play(1).turns] for team in (first, last, newest)]
    assert told[0] != told[1] == told[2]
    with pytest.raises(marft.MarftError, match="at: duo is no run and has no checkpoints"):
        marft.load("duo", at=1)


def test_a_closed_team_says_so(run: Path) -> None:
    team = marft.load(run)
    assert repr(team) == f"<marft.Team planner, solver from {run}>"
    team.close()
    team.close()
    assert repr(team).endswith(", closed>")
    for call in (team.play, team.evaluate, team.tasks):
        with pytest.raises(marft.MarftError, match="this team is closed"):
            call()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda run: marft.play(run, 99), "--task 99: the environment has 5 held-out tasks"),
        (lambda run: marft.play(run, "no/such"), "--task no/such: the environment has 5 held-out tasks"),
        (lambda run: marft.load(run, trian={}), "unknown key 'trian'"),
        (lambda run: marft.load(run / "nothing"), "there is no run and no config in"),
        (lambda run: marft.evaluate(run, eval={"tasks": 0}), "eval.tasks is 0"),
    ],
)
def test_mistakes_are_one_line(run: Path, call: Any, expected: str) -> None:
    with pytest.raises(marft.MarftError) as caught:
        call(run)
    assert str(caught.value).startswith(expected)


def test_a_comparison(tmp_path: Path) -> None:
    class Local(Echo):
        pass

    small = merge({}, [*TINY, "train.iterations=1"])
    found = marft.compare(run=tmp_path / "run", seeds=1, env=Local, **small)
    assert [line.name for line in found.report.lines] == ["team", "untuned", "single", "vote", "frozen planner"]
    assert found.report.verdict.startswith("team ")
    assert found.path == tmp_path / "run"
    assert (found.path / "compare.md").is_file()
