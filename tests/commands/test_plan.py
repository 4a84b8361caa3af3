"""`marft train --plan`: figures that a run then has, and what it says where a run does not fit."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from quick import config_of, models_in_memory, seated, start, trainer_of
from teams import team_of
from toys import without_progress

from marft.cli import main
from marft.commands import plan as planning
from marft.commands.plan import (
    TRAINED,
    Forecast,
    adapter_bytes,
    cache_bytes,
    describe_forecast,
    device_memory,
    format_seconds,
    limit_memory,
    measure_iteration,
    parameter_count,
    plan,
    weight_bytes,
)
from marft.models.quantized import Kind
from marft.runs.directory import RunDirectory
from marft.terminal import format_bytes
from marft.training.build import Assembly
from marft.types import MarftError

GB = 10**9
NANO = {"ann": {}, "bob": {"model": "nano"}}


def forecast(**changes: Any) -> Forecast:
    return replace(
        Forecast(
            weights=3 * GB, adapters=GB, cache=2 * GB, peak=8 * GB, device_memory=10 * GB,
            tokens={"rollout": 10, "update": 40}, seconds={"rollout": 1.0, "credit": 1.0, "update": 2.0}, episodes=8,
            held_out=24, iterations=3, evaluations=2,
        ),
        **changes,
    )  # fmt: skip


# --- an iteration ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "marft-token"},
        {"schedule": {"mode": "sequential"}, "algorithm": "marft-action"},
        {"schedule": {"mode": "resample"}},
        {"credit": "difference"},
    ],
)
def test_tokens_are_those_of_the_run_s_first_iteration(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = measure_iteration(config_of(**changes), seated(**changes))
    [row, *_] = RunDirectory(start(tmp_path / "run", **changes)).metrics()
    assert found.tokens == row["tokens"]
    assert min(found.seconds.values()) > 0
    assert found.seconds.keys() == row["seconds"].keys() - {"eval"}


def test_while_critics_warm_up_an_iteration_is_not_a_usual_one() -> None:
    changes = {"algorithm": "marft-token"}
    usual = measure_iteration(config_of(**changes), seated(**changes))
    found = measure_iteration(config_of(**changes, critic={"warmup": 2}), seated(**changes))
    assert found.tokens["update"] == pytest.approx(usual.tokens["update"], rel=0.2)  # other episodes


@pytest.mark.parametrize("mode", ["joint", "alternate", "sequential", "resample"])
@pytest.mark.parametrize("algorithm", ["grpo", {"name": "marft-token", "kl": {"weight": 0.1}}])
def test_every_schedule_has_a_plan_on_two_bases_with_long_prompts(mode: str, algorithm: Any) -> None:
    """One of its sequences alone is past the budget of a pass."""
    prompt = "Start with 2. Add 1. " * 60
    changes: dict[str, Any] = {
        "team": {"agents": {"ann": {"prompt": prompt, "model": "nano"}, "bob": {"prompt": "red " * 60}}},
        "schedule": {"mode": mode},
        "algorithm": algorithm,
        "engine": {"mismatch": True, "slots": 4},
        "train": {"tokens": 512},
        "eval": {"tasks": 2},
    }
    with models_in_memory():
        found = plan(config_of(**changes))
    assert min(*found.seconds.values(), found.evaluation, found.peak) > 0


def test_a_plan_begins_where_the_run_would_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, seen = start(tmp_path / "run"), []
    files = sorted(path.name for path in trained.rglob("*"))

    def spy(config: Any, parts: Assembly) -> Forecast:
        seen.append({name: p.detach().clone() for name, p in parts.teams[0].trainable_parameters("ann").items()})
        return forecast()

    monkeypatch.setattr(planning, "measure_iteration", spy)
    with models_in_memory():
        plan(config_of(init_from=str(trained)))
        with pytest.raises(MarftError, match="neither a run nor a folder of adapters"):
            plan(config_of(init_from=str(tmp_path / "nowhere")))
    [found], [expected] = seen, seated(init_from=str(trained)).teams
    for name, parameter in found.items():
        assert torch.equal(parameter, expected.trainable_parameters("ann")[name])
        assert parameter.any()
    assert sorted(path.name for path in trained.rglob("*")) == files


def test_a_remote_model_is_not_asked() -> None:
    remote = {"prompt": "", "remote": {"url": "http://127.0.0.1:9/v1", "model": "m"}}
    team = {"agents": {"ann": {}, "bob": None, "far": remote}}
    assert measure_iteration(config_of(team=team), seated(team=team)).tokens["rollout"] > 0


# --- a run -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("train", "every", "iterations", "evaluations"),
    [({}, 0, 4, 2), ({}, 2, 4, 4), ({"budget": 40}, 1, 2, 4), ({"budget": 10**6}, 1, 4, 6)],
)
def test_a_budget_ends_a_run_and_its_evaluations_early(
    train: Any, every: int, iterations: int, evaluations: int
) -> None:
    changes: dict[str, Any] = {"train": train, "eval": {"tasks": 2, "every": every}}
    found = measure_iteration(config_of(**changes), seated(**changes))
    assert 20 <= found.tokens["rollout"] < 40
    assert (found.iterations, found.evaluations) == (iterations, evaluations)


def test_an_evaluation_plays_the_held_out_tasks_that_there_are() -> None:
    """Echo has five; a benchmark is as many again."""
    changes: dict[str, Any] = {"eval": {"tasks": 9, "benchmarks": {"other": {"size": 3}}}}
    assert measure_iteration(config_of(**changes), seated(**changes)).held_out == 2 * 5


def test_what_lag_and_workers_would_leave_of_an_iteration() -> None:
    """2 s of playing, 0.5 of credit and 1.5 of learning: both take as long, and two workers save a second of four."""
    found = replace(forecast(), seconds={"rollout": 2.0, "credit": 0.5, "update": 1.5})
    assert (found.share_with_lag, found.share_with_workers) == (0.5, 0.75)
    found = replace(forecast(), seconds={"rollout": 3.0, "credit": 0.0, "update": 1.0})
    assert (found.share_with_lag, found.share_with_workers) == (0.75, 0.625)


def test_lag_and_workers_are_not_measured_but_reckoned() -> None:
    changes: dict[str, Any] = {"train": {"lag": 2}, "rollout": {"workers": 3}}
    assert measure_iteration(config_of(**changes), seated(**changes)).tokens["rollout"] > 0


def test_a_run_is_its_iterations_and_evaluations() -> None:
    assert forecast().iteration == 4.0
    assert forecast().evaluation == 3.0
    assert forecast().run == 3 * 4.0 + 2 * 3.0


# --- memory ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("slots", "team"), [(256, {}), (3, {}), (5, {"agents": NANO})])
def test_the_cache_is_what_an_engine_holds_after_a_real_play(tmp_path: Path, slots: int, team: Any) -> None:
    changes: dict[str, Any] = {"engine": {"slots": slots}, "team": team}
    trainer = trainer_of(tmp_path, **changes)
    trainer.source.next_batch(0)
    tiny, nano = 2 * 1 * 32, 2 * 4 * 64  # keys and values of a position
    held = slots * 64 * 4 * (tiny + (nano if team else 0))
    assert cache_bytes(trainer.config, trainer.parts) == held
    assert measure_iteration(config_of(**changes), seated(**changes)).cache == held


def test_vllm_takes_its_share() -> None:
    parts, whole = seated(), device_memory(torch.device("cpu"))
    for engine, share in (({}, 0.4), ({"memory": 0.3}, 0.3), ({"url": "http://127.0.0.1:8000"}, 0.0)):
        assert cache_bytes(config_of(engine={"name": "vllm", **engine}), parts) == int(share * whole)


def test_bytes_by_hand() -> None:
    team = team_of({"a": 4, "b": 3}, targets=["q_proj"])
    layers, width = 4, 128  # nano's
    assert weight_bytes(team) >= 4 * 844_928
    of_a, of_b = (r * layers * 2 * width for r in (4, 3))
    assert adapter_bytes(team, {"a"}) == TRAINED * of_a + 4 * of_b


@pytest.mark.parametrize(("kind", "least", "most"), [("int8", 0.25, 0.4), ("nf4", 0.13, 0.3)])
def test_bits_are_counted_and_parameters_are_as_many_as_ever(kind: Kind, least: float, most: float) -> None:
    plain, few = team_of({"a": 4}), team_of({"a": 4})
    few.quantize(kind, torch.device("cpu"))
    assert least < weight_bytes(few) / weight_bytes(plain) < most
    assert parameter_count(few) == parameter_count(plain) == 844_928


@pytest.mark.skipif(sys.platform != "linux", reason="limits of a process's memory are Linux's")
def test_a_cpu_is_not_asked_for_more_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setattr(planning, "available_memory", lambda: 200 << 20)
    with limit_memory(torch.device("cpu")):
        torch.ones(10 << 20)
    with (
        pytest.raises(MarftError, match=r"does not fit in the device's memory; lower train\.tokens"),
        limit_memory(torch.device("cpu")),
    ):
        torch.ones(1 << 30)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_what_runs_out_of_memory_is_one_line_and_other_errors_are_ours(error: BaseException) -> None:
    with pytest.raises(MarftError, match="does not fit"), limit_memory(torch.device("meta")):
        raise error
    with pytest.raises(RuntimeError, match="a bug"), limit_memory(torch.device("meta")):
        raise RuntimeError("a bug")


# --- what it says ----------------------------------------------------------------------------------------------------
def test_a_run_that_hardly_fits_is_told() -> None:
    parts = seated()
    assert not any("hardly fits" in line for line in describe_forecast(config_of(), parts, forecast()))
    [line] = [line for line in describe_forecast(config_of(), parts, forecast(peak=9.5 * GB)) if "hardly" in line]
    assert line == "it hardly fits: 9.5 GB of 10.0 GB on cpu. Lower train.tokens or engine.slots"


def test_sizes_and_durations_are_short() -> None:
    assert [format_bytes(n) for n in (5, 4_400, 57 * 10**6, 25.3 * 10**9)] == ["5 B", "4 KB", "57 MB", "25.3 GB"]
    assert [format_seconds(n) for n in (21.4, 240, 10_000)] == ["21 s", "4 min", "2.8 h"]


def test_the_command_prints_a_table_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--plan", "train.tasks=4", "eval.tasks=8", "train.recompute=true"]) == 0
    estimate, _, table = capsys.readouterr().out.partition("\n\n")
    assert estimate.startswith(
        "estimate   from the model's config alone, for a GPU: passes of 8,192 tokens, recomputed; "
    )
    assert len(estimate.splitlines()) == 5
    lines = table.splitlines()
    assert lines[0] == "plan       nano on cpu; measured on one iteration of 16 episodes"
    assert lines[2].split() == ["memory", "base", "weights", "4", "MB", "844,928", "parameters"]
    assert any(line.startswith("run        12 iterations, 2 evaluations: about ") for line in lines)
    assert lines[-1] == "nothing was kept or written"
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--plan", "--dry-run"], "--dry-run loads no model and --plan measures it; ask for one of the two"),
        (["--plan", "--run", "x"], "--plan writes nothing and begins at the beginning; drop --run and --resume"),
        (["--plan", "--resume"], "--plan writes nothing"),
        (["--plan", "model=nowhere/at-all"], "nowhere/at-all"),
        (["--plan", "train.tokns=5"], "train.tokens"),
    ],
)
def test_mistakes_are_one_line(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *given]) == 2
    [line] = without_progress(capsys.readouterr().err)
    assert said in line


def test_a_team_that_does_not_learn_has_no_plan() -> None:
    with pytest.raises(MarftError, match="no agent of this team learns"):
        plan(config_of(team={"agents": {name: {"trainable": False} for name in ("ann", "bob")}}))
