"""`marft train --plan`: figures that a run then keeps, and what it says where a run does not fit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from quick import config_of, seated, start, trainer_of
from teams import team_of

from marft.cli import main
from marft.models.recompute import recompute_layers
from marft.models.scoring import Span
from marft.runs.directory import RunDirectory
from marft.training.passes import Pass, Work
from marft.training.plan import passing, plan
from marft.training.plan.forecast import Forecast, Range, foresee, iterations, most_generated
from marft.training.plan.holding import activations
from marft.training.plan.memory import (
    TRAINED,
    Memory,
    activation_of,
    adapters_of,
    cache_of,
    kept,
    logits_of,
    weights_of,
)
from marft.training.plan.passing import largest_that_fits, loss_of, made_up, speed_of
from marft.training.plan.reading import loads
from marft.training.plan.rollouts import Pace, Rollouts
from marft.training.plan.telling import advice, duration, size
from marft.types import MarftError

GB = 10**9


def work_of(team: Any, *lengths: int) -> Pass:
    names = ["a", "b", "critic"]
    work = [
        Work(span=Span(adapter=names[i % 3], ids=(5,) * n, asked=1 if i % 3 == 2 else n // 2), team=team, turn=i)
        for i, n in enumerate(lengths)
    ]
    return Pass(team=team, work=tuple(sorted(work, key=lambda one: names.index(str(one.span.adapter)))))


# --- tokens ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changes",
    [{}, {"algorithm": "marft-token"}, {"schedule": {"mode": "sequential"}}, {"schedule": {"mode": "resample"}}],
)
def test_tokens_of_an_iteration_are_those_of_its_learner(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The probe plays the whole iteration here, so what it expects is what the learner then counts."""
    config, parts = config_of(**changes), seated(**changes)
    played = Rollouts(config, parts).whole()
    assert len(played.episodes) == 4
    found = foresee(config, parts)
    trainer = trainer_of(tmp_path, **changes)
    lesson = trainer.estimate(played.episodes)
    trained = sum(
        trainer.parts.learner.update(lesson, steps, lr_factor=1.0, generator=torch.Generator().manual_seed(0)).tokens
        for steps in trainer.plays()
    )
    plays = 2 if changes.get("schedule") == {"mode": "resample"} else 1
    assert found.generated == Range(expected=plays * played.tokens, most=plays * 4 * 8)
    assert found.trained.expected == trained
    assert trained <= found.trained.most
    assert 0 < found.computed.expected <= trained
    assert found.computed.most - found.computed.expected == found.trained.most - trained


def test_no_run_generates_or_trains_more_than_at_most(tmp_path: Path) -> None:
    found = foresee(config_of(), seated())
    for row in RunDirectory(start(tmp_path / "run")).metrics():
        assert row["tokens"]["rollout"] <= found.generated.most
        assert row["tokens"]["update"] <= found.trained.most


@pytest.mark.parametrize(
    ("credit", "most"),
    [
        ("equal", 4 + 6),
        ("tree", 4 + 6),
        ("difference", 4 + 6 + 6),
        ({"name": "difference", "baseline": "base"}, 4 + 6 + 4 + 6 + 6),
    ],
)
def test_the_most_that_an_episode_generates(credit: Any, most: int) -> None:
    """Played again without ann's turn, bob speaks once more; with the base's turns in place of ours, both do."""
    team = {"agents": {"ann": {"max_tokens": 4}, "bob": {"max_tokens": 6}}}
    episode = Rollouts(config_of(team=team), seated(team=team)).whole().episodes[0]
    assert most_generated(config_of(team=team, credit=credit), episode) == most


def test_many_short_episodes_tell_what_is_shared_and_whole_ones_how_long_they_are() -> None:
    def reading(team: str, tokens: int, computed: int, more: int = 0) -> Any:
        return SimpleNamespace(team=team, tokens=tokens, computed=computed, more=more, example=tokens)

    whole = [reading("a", 100, 95, 30), reading("a", 60, 60), reading("b", 10, 10)]
    wide = [reading("a", 400, 250), reading("a", 50, 40), reading("b", 40, 40)]
    one, other = loads(whole, 8.0, wide, 2.0)
    assert (one.team, one.tokens, one.more, one.steps, one.example) == ("a", 8 * 160, 8 * 30, 2, 100)
    assert one.computed == 8 * 160 - 2 * 160
    assert (other.team, other.tokens, other.computed, other.steps) == ("b", 80, 80, 1)


def test_a_budget_ends_a_run_early() -> None:
    assert iterations(config_of(train={"budget": 100}), 40.0) == 3
    assert iterations(config_of(train={"budget": 1000}), 40.0) == 4
    assert iterations(config_of(), 40.0) == 4


# --- memory ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("recompute", [False, True])
def test_activations_of_a_large_pass_are_foreseen_from_small_ones(recompute: bool) -> None:
    team = team_of({"a": 4, "b": 3, "critic": 2}, critics=["critic"])
    if recompute:
        recompute_layers(team)
    template = work_of(team, 30, 41, 25)
    large = made_up(template, 4000, seed=3)
    assert activation_of(template) * large.tokens == pytest.approx(kept(large), rel=0.25)


def test_recomputation_keeps_less_but_one_layer_at_a_time() -> None:
    def found(recompute: bool) -> float:
        team = team_of({"a": 4, "b": 3, "critic": 2}, critics=["critic"])
        load: Any = SimpleNamespace(team=team, example=work_of(team, 30, 41, 25))
        return activations(config_of(train={"recompute": recompute}), load)

    assert found(False) / 4 < found(True) < 0.6 * found(False)


def test_bytes_by_hand() -> None:
    team = team_of({"a": 4, "b": 3}, targets=["q_proj"])
    layers, width = 4, 128  # nano's
    assert weights_of(team) >= 4 * 844_928
    of_a, of_b = (r * layers * 2 * width for r in (4, 3))
    assert adapters_of(team, {"a"}) == TRAINED * of_a + 4 * of_b
    keys = team.model.get_submodule("model.layers.0.self_attn.k_proj").out_features
    assert cache_of(team, 10, 50) == 2 * layers * keys * 4 * 10 * 50
    assert logits_of(team, 100) == 3 * 4 * 448 * 100
    assert logits_of(team, 10**9) == 3 * 4 * 448 * ((1 << 26) // 448)


# --- passes and paces ------------------------------------------------------------------------------------------------
def test_a_made_up_pass_has_the_shape_of_its_template_and_shares_nothing() -> None:
    team = team_of({"a": 4, "b": 3, "critic": 2}, critics=["critic"])
    one = made_up(work_of(team, 30, 41, 25), 300, seed=0)
    assert one.tokens == sum(len(span.ids) for span in one.spans) == 3 * (30 + 41 + 25)
    assert [span.adapter for span in one.spans] == ["a"] * 3 + ["b"] * 3 + ["critic"] * 3
    assert made_up(work_of(team, 30), 10, seed=0).tokens == 30  # at least one


def test_a_probe_leaves_no_gradient_and_moves_nothing() -> None:
    team = team_of({"a": 4, "b": 3, "critic": 2}, critics=["critic"])
    before = {name: [p.clone() for p in team.parameters(name).values()] for name in team.adapters}
    template = work_of(team, 30, 41, 25)
    assert loss_of(template).requires_grad
    speed = speed_of(template, 300)
    assert speed.training > 0
    assert speed.scoring > 0
    assert speed.peak is None
    for name, values in before.items():
        for parameter, old in zip(team.parameters(name).values(), values, strict=True):
            assert parameter.grad is None
            assert torch.equal(parameter, old)


def test_a_pass_that_does_not_fit_is_halved_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    team = team_of({"a": 4, "b": 3, "critic": 2}, critics=["critic"])

    def out_of_memory(one: Pass) -> torch.Tensor:
        if one.tokens > room:
            raise torch.OutOfMemoryError
        return loss_of(one)

    monkeypatch.setattr(passing, "loss_of", out_of_memory)
    room = 200
    assert largest_that_fits(work_of(team, 30, 41, 25), 600).tokens == 150
    room = 10
    with pytest.raises(MarftError, match="not even a small training pass fits"):
        largest_that_fits(work_of(team, 30, 41, 25), 600)


def test_a_pace_is_a_start_and_so_much_a_token() -> None:
    pace = Pace(start=2.0, token=0.01, rows=100)
    assert pace.seconds(100, 500) == pytest.approx(7.0)
    assert pace.seconds(300, 500) == pytest.approx(11.0)


def test_short_plays_are_short_and_as_wide_as_the_run() -> None:
    rollouts = Rollouts(config_of(), seated())
    starts = rollouts.starts(2)
    assert [s.sample for s in starts] == [0, 1, 0, 1]
    short = rollouts.play(starts, 1)
    assert short.tokens == 4 * 2
    assert all(len(turn.completion.token_ids) == 1 for episode in short.episodes for turn in episode.turns)
    assert rollouts.wide()[0].rows == 4
    assert Rollouts(config_of(engine={"slots": 3}), seated()).wide()[0].rows == 3


# --- what it says ----------------------------------------------------------------------------------------------------
def forecast(**memory: Any) -> Forecast:
    parts: dict[str, Any] = {
        "weights": 3 * GB,
        "adapters": GB,
        "cache": 2 * GB,
        "activation": 10**6,
        "activations": 8 * GB,
        "logits": 0,
    }
    one = Range(expected=1.0, most=2.0)
    return Forecast(
        memory=Memory(**(parts | memory)), device_memory=10 * GB, peak=None, pass_tokens=8000, fitting_tokens=8000, generated=one, trained=one,
        computed=one, seconds=dict.fromkeys(("rollout", "credit", "update", "evaluation"), one), iterations=3,
        evaluations=2, probed=8,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("memory", "changes", "said"),
    [
        ({"activations": 2 * GB}, {}, None),
        ({}, {}, "it does not fit: 14.0 GB of 10.0 GB. Lower train.tokens to 2944, or set train.recompute=true"),
        ({}, {"train": {"recompute": True}}, "it does not fit: 14.0 GB of 10.0 GB. Lower train.tokens to 2944"),
        ({"cache": 9 * GB}, {}, "it does not fit: 21.0 GB of 10.0 GB. Lower engine.slots"),
        ({"cache": 9 * GB}, {"engine": {"name": "vllm"}}, "it does not fit: 21.0 GB of 10.0 GB. Lower engine.memory"),
        ({"weights": 9 * GB}, {}, "it does not fit: 20.0 GB of 10.0 GB. The weights alone do not: use a smaller model, or dtype=bfloat16"),
        ({"weights": 9 * GB}, {"dtype": "bfloat16"}, "it does not fit: 20.0 GB of 10.0 GB. The weights alone do not: use a smaller model"),
    ],
)  # fmt: skip
def test_what_to_lower_where_it_does_not_fit(memory: dict[str, Any], changes: dict[str, Any], said: str | None) -> None:
    assert list(advice(config_of(**changes), forecast(**memory))) == ([said] if said else [])


def test_a_pass_that_did_run_out_of_memory_says_so() -> None:
    found = replace(forecast(activations=2 * GB), fitting_tokens=2000)
    said = "a pass ran out of memory. Lower train.tokens to 2000"
    assert list(advice(config_of(), found)) == [f"{said}, or set train.recompute=true"]
    assert list(advice(config_of(train={"recompute": True}), found)) == [said]


def test_a_run_is_its_iterations_and_evaluations() -> None:
    found = forecast()
    assert found.iteration == Range(expected=3.0, most=6.0)
    assert found.run == Range(expected=3 * 3.0 + 2 * 1.0, most=3 * 6.0 + 2 * 2.0)
    assert replace(found, evaluations=0).run.expected == 9.0


def test_sizes_and_durations_are_short() -> None:
    assert [size(n) for n in (5, 4_400, 57 * 10**6, 25.3 * 10**9)] == ["5 B", "4 KB", "57 MB", "25.3 GB"]
    assert [duration(n) for n in (21.4, 240, 10_000)] == ["21 s", "4 min", "2.8 h"]


def test_the_command_prints_a_table_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--plan", "train.tasks=4", "eval.tasks=8", "train.recompute=true"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "plan       nano on cpu; an estimate, from a short probe and 16 whole episodes"
    assert lines[2].split() == ["memory", "base", "weights", "4", "MB", "844,928", "parameters"]
    [most] = [line.split()[-1] for line in lines if "tokens generated" in line]
    assert most == f"{4 * 4 * (24 + 48):,}"
    assert any("activations recomputed" in line for line in lines)
    assert any(line.startswith("run        12 iterations, 2 evaluations: about ") for line in lines)
    assert lines[-1] == "nothing was trained or written"
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
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_team_that_does_not_learn_has_no_plan() -> None:
    with pytest.raises(MarftError, match="no agent of this team learns"):
        plan(config_of(team={"agents": {name: {"trainable": False} for name in ("ann", "bob")}}))
