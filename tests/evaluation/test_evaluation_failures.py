"""An evaluation whose episodes fail says so: it stops with the first error or warns, and what always fails costs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import toys
from quick import config_of, models_in_memory, resume, seated, start

from marft.commands.compare import evaluate_run
from marft.engines.scripted import ScriptedEngine
from marft.evaluation.evaluate import evaluate_benchmarks
from marft.evaluation.failures import Failures, Tolerance
from marft.evaluation.sanity_check import FEW, SHORT, check_team_plays
from marft.game.play import Game
from marft.rollouts.runner import EpisodeRunner
from marft.terminal.display import Display
from marft.types import MarftError, Request, SpeechError, Task

TASKS: dict[str, Any] = {"tasks": 4}


def breaks(after: int) -> dict[str, Any]:
    """An environment that judges `after` episodes, and then no more."""
    return {"name": "toys:Breaks", "after": after}


def mended() -> Any:
    return patch.object(toys.Breaks, "count", lambda self, method: None)


def error_of(call: Callable[..., object], *arguments: Any, **changes: Any) -> MarftError:
    with pytest.raises(MarftError) as caught:
        call(*arguments, **changes)
    return caught.value


def files(run: Path) -> dict[str, Any]:
    """All that a run leaves, without times."""
    adapters = {name: data for name, data in toys.files(run / "checkpoints").items() if name.endswith(".safetensors")}
    summary = {key: value for key, value in json.loads((run / "summary.json").read_text()).items() if key != "seconds"}
    texts = [toys.rows(run / name) for name in ("metrics.jsonl", "episodes.jsonl", "held_out.jsonl")]
    return {"summary": summary, "texts": texts, "adapters": adapters}


# --- in training ------------------------------------------------------------------------------------------------------
def test_all_failed_before_training_stops_with_the_first_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of(start, tmp_path / "run", env=breaks(FEW), eval=TASKS)
    line = "4 of 4 held-out episodes failed; the first: environment.reward raised RuntimeError: out of\npaper. "
    assert str(error) == (
        f"{line}What was written is kept: mend it, then marft train --resume --run {tmp_path / 'run'}"
    )
    assert "toys.py" in error.trace
    assert "before training:" not in capsys.readouterr().out  # no figure of episodes that nobody judged
    kept = toys.rows(tmp_path / "run" / "held_out.jsonl")
    assert [row["fault"] for row in kept] == ["raised"] * 4
    assert all(row["turns"] for row in kept)


def test_mended_and_resumed_it_is_the_run_that_never_stopped(tmp_path: Path) -> None:
    with mended():
        whole = start(tmp_path / "whole", env=breaks(0), eval={**TASKS, "every": 2})
    for after in (FEW, FEW + 4 + 8, FEW + 3 * 4 + 16):  # before, during and after training
        run = tmp_path / str(after)
        error_of(start, run, env=breaks(after), eval={**TASKS, "every": 2})
        with mended():
            resume(run)
        assert files(run) == files(whole)


def test_a_few_that_failed_are_a_warning_and_the_figures_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = {"name": "toys:Breaks", "after": FEW + 3}
    changes: dict[str, Any] = {"env": env, "eval": TASKS, "train": {"iterations": 1, "failures": 0.5}}
    error_of(start, tmp_path / "run", **changes)  # the iteration after it fails whole
    told = capsys.readouterr().err
    line = "1 of 4 held-out episodes failed and count as wrong; the first: environment.reward raised RuntimeError"
    assert told.startswith(f"marft: warning: {line}: out of paper\n")
    before = json.loads((tmp_path / "run" / "summary.json").read_text())["before"]
    assert (before["failed"], before["tasks"]) == (1, 4)


def test_the_share_is_the_users() -> None:
    failed = Failures(failed=2, of=4, error="no")
    assert [failed.exceeds(share) for share in (0.0, 0.49, 0.5, 1.0)] == [True, True, False, False]
    assert Failures(failed=4, of=4).exceeds(1.0)  # as in training: nothing is left to look at
    assert not Failures().exceeds(0.0)


def test_a_vote_of_a_comparison_that_fails_stops(tmp_path: Path) -> None:
    from marft.runs.directory import RunDirectory

    with mended():
        run = start(tmp_path / "run", env=breaks(0))
    with models_in_memory():
        error = error_of(evaluate_run, config_of(env=breaks(0), eval=TASKS), RunDirectory(run), Display())
    assert str(error).startswith("4 of 4 held-out episodes failed; the first: environment.reward raised")


# --- marft eval -------------------------------------------------------------------------------------------------------
LONG: dict[str, Any] = {"eval": {"tasks": 5, "samples": 16}, "engine": {"slots": 10}}  # four chunks of twenty


def measured(path: Path, **changes: Any) -> Path:
    config, parts = config_of(**changes), seated(**changes)
    evaluate_benchmarks(config, parts, path, Display())
    return path


@pytest.mark.parametrize(("after", "chunks"), [(0, 0), (FEW, 1), (FEW + 20, 3)])
def test_marft_eval_stops_as_soon_as_it_is_clear_and_goes_on(tmp_path: Path, after: int, chunks: int) -> None:
    """At once, where even the sanity check fails; after the first chunk; after the third, when 40 of 60 have failed."""
    path = tmp_path / "e"
    error = error_of(measured, path, env=breaks(after), **LONG)
    if not chunks:
        assert "Nothing was written: mend it" in str(error)
        assert not path.exists()
        return
    assert "failed; the first: environment.reward raised RuntimeError: out of\npaper. What was played is kept" in str(
        error
    )
    assert f"--run {path}" in str(error)
    assert "toys.py" in error.trace
    assert len(toys.rows(path / "episodes.jsonl")) == 20 * chunks
    assert not (path / "results.json").exists()
    with mended():
        measured(path, env=breaks(after), **LONG)
        whole = measured(tmp_path / "whole", env=breaks(after), **LONG)
    assert timeless(path) == timeless(whole)


def timeless(path: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if key != "seconds"} for row in toys.rows(path / "episodes.jsonl")
    ]


def test_a_higher_share_may_go_on_in_the_same_folder(tmp_path: Path) -> None:
    error_of(measured, tmp_path / "e", env=breaks(FEW + 20), **LONG)
    with mended():
        measured(tmp_path / "e", env=breaks(FEW + 20), train={"failures": 0.9}, **LONG)


def test_marft_eval_warns_once_at_the_first_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = measured(tmp_path / "e", env=breaks(FEW + 45), train={"failures": 0.9}, **LONG)
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if line.startswith("marft: warning")]
    assert lines == [
        "marft: warning: 15 of 60 episodes of toys:Breaks failed so far and count as wrong; the first: environment.reward "
        "raised RuntimeError: out of paper"
    ]
    assert "35 of 80 episodes failed and count as wrong" in printed.out
    assert json.loads((path / "results.json").read_text())["failed"] == 35


class NeedsAnn(toys.Echo):
    def transition(self, state: str, turn: Any) -> str:
        if turn.agent == "ann" and not turn.text:
            raise ValueError("ann is silent")
        return super().transition(state, turn)


def test_a_team_that_cannot_play_without_an_agent_is_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"env": f"{__name__}:NeedsAnn", "eval": {"tasks": 3, "ablate": True}}
    path = measured(tmp_path / "e", **changes)
    assert json.loads((path / "results.json").read_text())["ablations"]["ann"]["failed"] == 3
    assert "3 of 3 episodes of" in capsys.readouterr().err


# --- the sanity check ----------------------------------------------------------------------------------------------------
async def in_turn(game: Game) -> None:
    await game.act("ann")
    await game.act("bob")


class Fails(Exception):
    pass


def spoken(runner: EpisodeRunner, speak: Callable[[Request], str], asked: list[Request] | None = None) -> EpisodeRunner:
    """The same team with another voice."""

    def answer(request: Request) -> str:
        if asked is not None:
            asked.append(request)
        return speak(request)

    voice = ScriptedEngine(answer, ids=False)
    return replace(runner, team={name: replace(agent, engine=voice) for name, agent in runner.team.items()})


TWENTY = [Task(id=str(i), prompt=f"task {i}") for i in range(20)]


def test_a_healthy_team_is_checked_on_two_short_episodes() -> None:
    asked: list[Request] = []
    config = config_of(team={"agents": {"ann": {"max_tokens": 1000}}}, eval={"temperature": 0.5})
    parts = seated(team={"agents": {"ann": {"max_tokens": 1000}}})
    check_team_plays(config, spoken(parts.runner, lambda request: "hm", asked), TWENTY, Tolerance())
    assert sorted(request.sampling.max_tokens for request in asked) == [4] * FEW + [SHORT] * FEW
    assert {request.sampling.temperature for request in asked} == {0.5}


async def raises(game: Game) -> None:
    await game.act("ann")
    raise Fails("the workflow is wrong")


def away(request: Request) -> str:
    raise SpeechError("cannot reach the endpoint")


@pytest.mark.parametrize(
    ("speak", "workflow", "expected"),
    [
        (lambda request: "hm", raises, "the workflow raised Fails: the workflow is wrong"),
        (away, in_turn, "ann: "),
    ],
)
def test_what_always_fails_is_found_in_the_sanity_check(speak: Any, workflow: Any, expected: str) -> None:
    error = error_of(
        check_team_plays,
        config_of(),
        spoken(replace(seated().runner, workflow=workflow), speak),
        TWENTY,
        Tolerance(remedy="Mend it"),
    )
    assert str(error).startswith(f"16 of 16 episodes of the sanity check failed; the first: {expected}")
    assert str(error).endswith(". Mend it")


def test_what_fails_only_because_a_turn_was_short_is_no_failure() -> None:
    """And what fails now and then neither: the first two tasks may be bad luck."""

    async def picky(game: Game) -> None:
        [turn] = await game.act("ann")
        if turn.text == "cut" or game.task.id == "0":
            raise Fails("too short")

    def speak(request: Request) -> str:
        return "cut" if request.sampling.max_tokens <= SHORT else "whole"

    long: dict[str, Any] = {"team": {"agents": {name: {"max_tokens": 1000} for name in ("ann", "bob")}}}
    asked: list[Request] = []
    runner = spoken(replace(seated(**long).runner, workflow=picky), speak, asked)
    check_team_plays(config_of(**long), runner, TWENTY, Tolerance())
    assert len(asked) == FEW + 16


def test_nothing_of_a_run_depends_on_its_sanity_check(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"eval": {"tasks": 4, "every": 2}}
    with patch("marft.commands.train.check_team_everywhere"):
        without = start(tmp_path / "without", **changes)
    assert files(start(tmp_path / "with", **changes)) == files(without)


def test_a_failing_benchmark_is_found_before_the_runs_own_tasks_are_played(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"eval": {"tasks": 4, "benchmarks": {"hard": {"name": "toys:Breaks"}}}}
    error = error_of(start, tmp_path / "run", **changes)
    assert str(error).startswith(
        "5 of 5 episodes of the sanity check on hard failed; the first: environment.reward raised"
    )
    assert not (tmp_path / "run").exists()
    error = error_of(
        measured, tmp_path / "e", eval={"tasks": 4, "benchmarks": {"one": {}, "hard": {"name": "toys:Breaks"}}}
    )
    assert "sanity check on hard" in str(error)
    assert not (tmp_path / "e").exists()
