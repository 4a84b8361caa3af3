"""`marft train --plan`: figures that a run then keeps, and what it says where a run does not fit."""

from __future__ import annotations

import os
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
from marft.commands.plan import foresee, memory, plan
from marft.commands.plan.iteration import Iteration, heaviest_of, in_common
from marft.commands.plan.memory import (
    TRAINED,
    Memory,
    adapters_of,
    cache_of,
    kept,
    kept_a_token,
    logits_of,
    loss_of,
    measure,
    weights_of,
)
from marft.commands.plan.rollouts import Pace, Rollouts, most_generated
from marft.commands.plan.telling import Forecast, advice, duration, size
from marft.config import load_config
from marft.engines.batch_state import BatchState
from marft.engines.cuda_graphs import CudaGraphStepper
from marft.engines.local import LocalEngine
from marft.learners.microbatches import Pass, Work
from marft.models.scoring import Span
from marft.rollouts.source import Source
from marft.runs.directory import RunDirectory
from marft.training.build import Assembly, assemble
from marft.training.checkpoint import Position
from marft.types import MarftError

GB = 10**9
NANO = {"ann": {}, "bob": {"model": "nano"}}


def pass_of(team: Any, *lengths: int) -> Pass:
    """Sequences of three adapters that have only their first token in common."""
    names, words = ["a", "b", "critic"], torch.Generator().manual_seed(0)
    work = [
        Work(
            span=Span(
                adapter=names[i % 3],
                ids=(5, *torch.randint(0, 400, (n - 1,), generator=words).tolist()),
                asked=1 if i % 3 == 2 else n // 2,
            ),
            team=team,
            turn=i,
        )
        for i, n in enumerate(lengths)
    ]
    return Pass(team=team, work=tuple(sorted(work, key=lambda one: names.index(str(one.span.adapter)))))


def critic_team() -> Any:
    return team_of({"a": 4, "b": 3, "critic": 2}, critics=["critic"])


# --- tokens ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "marft-token"},
        {"schedule": {"mode": "sequential"}, "algorithm": "marft-action"},
        {"schedule": {"mode": "resample"}},
        {"schedule": {"mode": "alternate"}},
    ],
)
def test_tokens_of_an_iteration_are_those_of_its_learner(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The probe plays the whole iteration here, so what it expects is what the learner then counts."""
    config, parts = config_of(**changes), seated(**changes)
    played = Rollouts(config, parts).whole()
    assert len(played.episodes) == 4
    found = foresee(config, parts)
    trainer = trainer_of(tmp_path, **changes)
    lesson, trained, iterations = trainer.estimate(trainer.batch_of(played.episodes)), 0, 2
    for i in range(iterations):
        trainer.position = Position(iteration=i)
        trained += sum(
            trainer.parts.learner.update(
                lesson, steps, rates=trainer.rates(), generator=torch.Generator().manual_seed(0)
            ).tokens
            for steps in trainer.plays()
        )
    plays = 2 if changes.get("schedule") == {"mode": "resample"} else 1
    assert found.generated == plays * played.tokens
    assert found.most_generated == plays * 4 * 8
    assert found.trained == trained / iterations
    assert 0 < found.computed <= found.trained


def test_no_run_generates_more_than_at_most(tmp_path: Path) -> None:
    found = foresee(config_of(), seated())
    for row in RunDirectory(start(tmp_path / "run")).metrics():
        assert row["tokens"]["rollout"] <= found.most_generated


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


@pytest.mark.parametrize(
    "settings", [["train.tokens=2048", "train.minibatches=8"], ["algorithm=grpo", "train.tokens=512"]]
)
def test_a_few_episodes_stand_for_an_iteration(settings: list[str]) -> None:
    """Against all episodes of a real iteration, and what each of its passes really keeps."""
    config = load_config(None, ["device=cpu", "train.tasks=20", *settings])
    parts = assemble(config)
    with parts.table.host:
        real = Source(config, parts.table, Path()).collect(Position(), 0)
        few = Rollouts(config, parts).whole().episodes
    assert (len(real), len(few)) == (80, 16)
    expected, found = (list(Iteration(config, parts.learner, episodes).trained()) for episodes in (real, few))
    for name in ("tokens", "computed"):
        counts = [sum(getattr(each, name) for each in readings) for readings in (expected, found)]
        assert counts[1] == pytest.approx(counts[0], rel=0.15)
    assert sum(r.computed for r in expected) < 0.6 * sum(r.tokens for r in expected)
    [one] = heaviest_of([found]).values()
    most = max(kept(each.one) + logits_of(each.one) for each in expected)
    assert measure(one, recompute=False).memory == pytest.approx(most, rel=0.25)


def test_a_copy_of_an_episode_shares_with_it_what_all_tasks_share() -> None:
    config, parts = config_of(train={"tasks": 3}, team={"agents": NANO}), seated(team={"agents": NANO})
    episodes = Rollouts(config_of(), parts).whole().episodes[:2]
    one = Iteration(config, parts.learner, episodes)
    assert one.copy_K.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    [work, *_] = parts.learner.work(one.batch, torch.tensor([1]), {"bob"})
    other, alike = one.again(work, 2), one.alike["bob"]
    assert 0 < alike < len(work.span.ids)
    assert other.span.ids[:alike] == work.span.ids[:alike]
    assert other.span.ids[alike:] == tuple((token + 2) % 448 for token in work.span.ids[alike:])
    assert one.again(work, 0) == work


def test_what_sequences_have_in_common() -> None:
    assert in_common([(1, 2, 3), (1, 2, 4, 4), (1, 2, 9)]) == 2
    assert in_common([(1, 2, 3), (1, 2)]) == 2
    assert in_common([(1,), (2,)]) == 0


# --- memory ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("slots", "team"), [(256, {}), (3, {}), (5, {"agents": NANO})])
def test_the_cache_is_what_an_engine_holds_after_a_real_play(tmp_path: Path, slots: int, team: Any) -> None:
    changes: dict[str, Any] = {"engine": {"slots": slots}, "team": team}
    trainer = trainer_of(tmp_path, **changes)
    trainer.source.collect(trainer.position, 0)
    held = 0
    for base in trainer.parts.bases.values():
        cache = base.engine.stepper.cache  # type: ignore[attr-defined]
        held += sum(tensor.nbytes for side in (cache.keys, cache.values) for tensor in side.values())
        assert cache.positions == 64
    tiny, nano = 2 * 1 * 32, 2 * 4 * 64  # keys and values of a position
    assert held == slots * 64 * 4 * (tiny + (nano if team else 0))
    assert foresee(config_of(**changes), seated(**changes)).memory.cache == held


def test_the_cache_of_captured_steps_is_capped() -> None:
    team = team_of({"a": 2})
    engine = LocalEngine(team, 10)
    assert team.decoder is not None
    position = 2 * 4 * 64 * 4
    for room, rows in ((10**9, 10), (3 * 512 * position, 3)):
        engine.stepper = CudaGraphStepper(team, team.decoder, BatchState(10, team.device, [0]), room)
        engine.stepper.reserve(300, 0)
        assert engine.stepper.held == rows * 512 * position


def test_vllm_takes_its_share() -> None:
    parts, whole = seated(), memory.device_memory(torch.device("cpu"))
    for engine, share in (({}, 0.4), ({"memory": 0.3}, 0.3), ({"url": "http://127.0.0.1:8000"}, 0.0)):
        assert cache_of(config_of(engine={"name": "vllm", **engine}), parts) == int(share * whole)


def test_recomputation_keeps_less_but_one_layer_at_a_time() -> None:
    lengths = [30, 41, 25] * 20
    one, again = (pass_of(critic_team(), *lengths) for _ in range(2))
    whole, logits = kept(one), logits_of(one)
    assert measure(one, recompute=False).memory == whole + logits
    found = measure(again, recompute=True).memory - logits
    assert found == pytest.approx(kept(again) + whole / 4, rel=0.05)  # nano has four layers
    assert kept(again) < 0.3 * whole


def test_bytes_by_hand() -> None:
    team = team_of({"a": 4, "b": 3}, targets=["q_proj"])
    layers, width = 4, 128  # nano's
    assert weights_of(team) >= 4 * 844_928
    of_a, of_b = (r * layers * 2 * width for r in (4, 3))
    assert adapters_of(team, {"a"}) == TRAINED * of_a + 4 * of_b
    assert logits_of(pass_of(critic_team(), 30, 41, 25)) == 3 * 4 * 448 * (15 + 20)


# --- passes and paces ------------------------------------------------------------------------------------------------
def test_a_probe_leaves_no_gradient_and_moves_nothing() -> None:
    team = critic_team()
    before = {name: [p.clone() for p in team.trainable_parameters(name).values()] for name in team.adapters}
    one = pass_of(team, 30, 41, 25)
    loss_of(one).backward()
    assert all(p.grad is not None for name in team.adapters for p in team.trainable_parameters(name).values())
    cost = measure(one, recompute=False)
    assert cost.tokens == one.tokens == 96
    assert min(cost.training, cost.scoring) > 0
    for name, values in before.items():
        for parameter, old in zip(team.trainable_parameters(name).values(), values, strict=True):
            assert parameter.grad is None
            assert torch.equal(parameter, old)


def test_a_pass_of_critics_alone_can_be_measured() -> None:
    one = pass_of(critic_team(), 30, 41, 25).split()[1]
    assert [span.adapter for span in one.spans] == ["critic"]
    assert measure(one, recompute=False).tokens == 25


def test_a_pass_that_runs_out_of_memory_is_halved_until_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(one: Pass, *, train: bool) -> float:
        if one.tokens > room:
            raise torch.OutOfMemoryError
        return 1.0

    monkeypatch.setattr(memory, "seconds_of", out_of_memory)
    room, one = 200, pass_of(critic_team(), *[30, 41, 25] * 6)
    assert 96 <= measure(one, recompute=False).tokens <= 288 // 2
    room = 10
    with pytest.raises(MarftError, match="not even one sequence fits"):
        measure(one, recompute=False)


def test_a_cpu_is_not_asked_for_more_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pass_of(critic_team(), *[30, 41, 25] * 6)
    monkeypatch.setattr(memory, "device_memory", lambda device: 0.6 * kept_a_token(one) * one.tokens / memory.FITS)
    assert 0.3 * one.tokens <= measure(one, recompute=False).tokens <= one.tokens // 2


def test_a_pace_is_a_start_and_so_much_a_token() -> None:
    pace = Pace(start=2.0, token=0.01, rows=100)
    assert pace.seconds(100, 500) == pytest.approx(7.0)
    assert pace.seconds(300, 500) == pytest.approx(11.0)
    assert pace.seconds(10, 50) == pytest.approx(2.5)


def test_short_plays_are_short_and_as_wide_as_the_run() -> None:
    rollouts = Rollouts(config_of(), seated())
    starts = rollouts.starts(2)
    assert [s.sample for s in starts] == [0, 1, 0, 1]
    short = rollouts.play(rollouts.table(1).episodes(starts, "0"))
    assert short.tokens == 4 * 2
    assert all(len(turn.completion.token_ids) == 1 for episode in short.episodes for turn in episode.turns)
    assert rollouts.pace().rows == 4
    assert Rollouts(config_of(engine={"slots": 3}), seated()).pace().rows == 3


def known_pace(monkeypatch: pytest.MonkeyPatch) -> Pace:
    pace = Pace(start=2.0, token=0.01, rows=4)
    monkeypatch.setattr(Rollouts, "pace", lambda self: pace)
    return pace


@pytest.mark.parametrize(
    ("changes", "plays"),
    [({}, 1), ({"schedule": {"mode": "resample"}}, 2), ({"credit": "difference"}, None), ({"credit": "tree"}, None)],
)
def test_an_evaluation_is_a_plain_play(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], plays: int | None
) -> None:
    """Echo has five held-out tasks, so no more are played; a benchmark is one more play."""
    pace = known_pace(monkeypatch)
    changes = {**changes, "eval": {"tasks": 9, "benchmarks": {"other": {"size": 3}}}}
    parts = seated(**changes)
    found = foresee(config_of(**changes), parts)
    episodes = Rollouts(config_of(**changes), parts).whole().episodes
    said = sum(len(turn.completion.token_ids) for episode in episodes for turn in episode.turns) / 4
    assert found.evaluation == pytest.approx(2 * pace.seconds(5, 5 * said))
    worth = plays or found.generated / (4 * said)
    assert found.seconds["rollout"] == pytest.approx(worth * pace.seconds(4, 4 * said))
    assert (worth < 1) == (changes.get("credit") == "tree")


@pytest.mark.parametrize(
    ("train", "every", "iterations", "evaluations"),
    [({}, 0, 4, 2), ({}, 2, 4, 4), ({"budget": 40}, 1, 2, 4), ({"budget": 10**6}, 1, 4, 6)],
)
def test_a_budget_ends_a_run_and_its_evaluations_early(
    monkeypatch: pytest.MonkeyPatch, train: Any, every: int, iterations: int, evaluations: int
) -> None:
    known_pace(monkeypatch)
    changes: dict[str, Any] = {"train": train, "eval": {"tasks": 2, "every": every}}
    found = foresee(config_of(**changes), seated(**changes))
    assert 20 <= found.generated < 40
    assert (found.iterations, found.evaluations) == (iterations, evaluations)
    assert found.run == pytest.approx(iterations * found.iteration + evaluations * found.evaluation)


# --- whole plans -----------------------------------------------------------------------------------------------------
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
    assert found.pass_tokens > 512
    assert found.fitting is None
    assert min(*found.seconds.values(), found.evaluation) > 0


def test_a_plan_begins_where_the_run_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, seen = start(tmp_path / "run"), []

    def spy(config: Any, parts: Assembly) -> Forecast:
        seen.append(parts)
        return foresee(config, parts)

    monkeypatch.setattr(planning, "foresee", spy)
    with models_in_memory():
        plan(config_of(init_from=str(trained)))
        with pytest.raises(MarftError, match="neither a run nor a folder of adapters"):
            plan(config_of(init_from=str(tmp_path / "nowhere")))
    [parts], [expected] = seen, seated(init_from=str(trained)).teams
    for name, parameter in parts.teams[0].trainable_parameters("ann").items():
        assert torch.equal(parameter, expected.trainable_parameters("ann")[name])
        assert parameter.any()


# --- what it says ----------------------------------------------------------------------------------------------------
def forecast(**sizes: Any) -> Forecast:
    parts: dict[str, Any] = {"weights": 3 * GB, "adapters": GB, "cache": 2 * GB, "one_pass": 8 * GB}
    return Forecast(
        memory=Memory(**(parts | sizes)), device_memory=10 * GB, pass_tokens=8000, fitting=None, generated=1.0,
        most_generated=2, trained=1.0, computed=1.0, seconds={"rollout": 1.0, "credit": 1.0, "update": 2.0},
        evaluation=3.0, iterations=3, evaluations=2, probed=8,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "changes", "said"),
    [
        ({"one_pass": 2 * GB}, {}, None),
        ({}, {}, "it does not fit: 14.0 GB of 10.0 GB. Lower train.tokens to 2944, or set train.recompute=true"),
        ({}, {"train": {"recompute": True}}, "it does not fit: 14.0 GB of 10.0 GB. Lower train.tokens to 2944"),
        ({"cache": 9 * GB}, {}, "it does not fit: 21.0 GB of 10.0 GB. Lower engine.slots"),
        ({"cache": 9 * GB}, {"engine": {"name": "vllm"}}, "it does not fit: 21.0 GB of 10.0 GB. Lower engine.memory"),
        ({"weights": 9 * GB}, {}, "it does not fit: 20.0 GB of 10.0 GB. The weights alone do not: use a smaller model, or dtype=bfloat16"),
        ({"weights": 9 * GB}, {"dtype": "bfloat16"}, "it does not fit: 20.0 GB of 10.0 GB. The weights alone do not: use a smaller model"),
    ],
)  # fmt: skip
def test_what_to_lower_where_it_does_not_fit(sizes: dict[str, Any], changes: dict[str, Any], said: str | None) -> None:
    assert list(advice(config_of(**changes), forecast(**sizes))) == ([said] if said else [])


def test_a_pass_that_did_run_out_of_memory_says_so() -> None:
    found = replace(forecast(one_pass=2 * GB), fitting=2000)
    said = "the largest pass does not fit. Lower train.tokens to 1984"
    assert list(advice(config_of(), found)) == [f"{said}, or set train.recompute=true"]
    assert list(advice(config_of(train={"recompute": True}), found)) == [said]


def test_a_run_is_its_iterations_and_evaluations() -> None:
    assert forecast().iteration == 4.0
    assert forecast().run == 3 * 4.0 + 2 * 3.0


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
    [line] = without_progress(capsys.readouterr().err)
    assert said in line


def test_a_team_that_does_not_learn_has_no_plan() -> None:
    with pytest.raises(MarftError, match="no agent of this team learns"):
        plan(config_of(team={"agents": {name: {"trainable": False} for name in ("ann", "bob")}}))
