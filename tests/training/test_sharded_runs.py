"""Runs whose base lies in shards on two ranks, with a worker that plays: the bytes of a run with whole bases, also after a rank
was killed and with another learner after a checkpoint; and what is refused."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from quick import config_of, models_in_memory, resume, seated, start
from test_rank_process import weights

from marft.commands.plan import plan
from marft.engines.local import LocalEngine
from marft.engines.scripted import ScriptedEngine
from marft.learners.microbatches import Microbatch
from marft.learners.replicated import ReplicatedLearner
from marft.rollouts.event_loop import run_async
from marft.rollouts.runner import Start
from marft.runs.directory import RunDirectory
from marft.training.loading import load_trained_team
from marft.types import MarftError, Task

SHARDED: dict[str, Any] = {
    "algorithm": "marft-token",
    "train": {"tasks": 4, "iterations": 4},
    "eval": {"tasks": 4, "every": 2},
    "learner": {"ranks": 2, "shard": True},
    "rollout": {"workers": 1},
}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From its beginning to its end."""
    return start(tmp_path_factory.mktemp("sharded") / "run", **SHARDED)


def assert_same_weights(run: Path, other: Path) -> None:
    found, expected = weights(run), weights(other)
    assert found.keys() == expected.keys()
    assert len(found) > 20
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_sharded_run_is_that_of_whole_bases(sharded: Path, tmp_path: Path) -> None:
    """Its evaluations and its sanity check are the worker's to play: the trainer's process has no engine."""
    whole = start(tmp_path / "run", **{**SHARDED, "learner": {"ranks": 2}, "rollout": {"workers": 0}})
    assert_same_weights(sharded, whole)
    rows, expected = (RunDirectory(run).metrics() for run in (sharded, whole))
    assert [(row["reward"], row["agents"], row.get("eval")) for row in rows] == [
        (row["reward"], row["agents"], row.get("eval")) for row in expected
    ]
    summary, other = (RunDirectory(run).summary() for run in (sharded, whole))
    assert summary is not None
    assert other is not None
    assert (summary["before"], summary["after"]) == (other["before"], other["after"])


def test_a_sharded_checkpoint_goes_on_in_one_process(sharded: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(sharded, run)
    resume(run, 2, "learner.shard=false", "learner.ranks=1", "rollout.workers=0")
    found, expected = weights(run), weights(sharded)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=0, atol=2e-4, msg=key)
    assert any(not torch.equal(weights(run, 2)[key], found[key]) for key in found)


def test_a_checkpoint_of_one_process_goes_on_in_shards(sharded: Path, tmp_path: Path) -> None:
    run = start(tmp_path / "run", **{**SHARDED, "learner": {"ranks": 1}, "rollout": {"workers": 0}})
    resume(run, 2, "learner.ranks=2", "learner.shard=true", "rollout.workers=1")
    assert RunDirectory(run).config().learner.shard
    found, expected = weights(run), weights(sharded)
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=0, atol=2e-4, msg=key)


def test_a_sharded_run_whose_rank_is_killed_ends_as_if_it_had_not_been(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a layer, where the other rank waits for its part of it."""
    hidden, update, learners, passes = Microbatch.hidden, ReplicatedLearner.update, list[ReplicatedLearner](), 0

    def kill(micro: Microbatch) -> torch.Tensor:
        nonlocal passes
        passes += bool(learners) and torch.is_grad_enabled()
        if passes == 6:  # in the third iteration
            passes += 1
            assert learners[0].peers is not None
            os.kill(learners[0].peers.pids[0], signal.SIGKILL)
        return hidden(micro)

    def noted(learner: ReplicatedLearner, *given: Any) -> Any:
        learners.append(learner)
        return update(learner, *given)

    monkeypatch.setattr(Microbatch, "hidden", kill)
    monkeypatch.setattr(ReplicatedLearner, "update", noted)
    run = start(tmp_path / "run", **SHARDED)
    [restart] = [event for event in RunDirectory(run).events() if event["event"] == "restarted"]
    assert (restart["iteration"], restart["reason"]) == (2, "rank 1 of the learner has ended by signal 9")
    assert_same_weights(run, sharded)


def test_a_team_that_cannot_play_is_found_out_before_the_evaluation(tmp_path: Path) -> None:
    changes = {**SHARDED, "env": "toys:Breaks"}
    with pytest.raises(
        MarftError, match=r"^5 of 5 episodes of the sanity check failed; the first: environment.reward raised"
    ):
        start(tmp_path / "run", **changes)


def test_a_sharded_runs_team_plays_in_one_process(sharded: Path) -> None:
    with models_in_memory():
        config, parts = load_trained_team(sharded, [])
    with parts:
        assert config.learner.shard
        [team] = parts.teams
        assert not any(hasattr(parameter, "to_local") for parameter in team.parameters())
        assert [type(engine) for engine in parts.engines] == [LocalEngine]


def test_servers_play_for_a_process_with_a_part_of_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without workers; the process asks them as ever."""
    servers = ScriptedEngine(lambda request: "red")
    monkeypatch.setattr("marft.engines.vllm.engine.check_available", lambda engine: None)
    monkeypatch.setattr("marft.engines.vllm.engine.make_vllm_engine", lambda *given: servers)
    engine = {"name": "vllm", "url": "http://127.0.0.1:9"}
    with seated(**{**SHARDED, "rollout": {"workers": 0}, "engine": engine}) as parts:
        assert parts.engines == [servers]
        [episode] = run_async(parts.runner.episodes([Start(task=Task(id="t", prompt="hm"), sample=0)], "seed"))
        assert [turn.text for turn in episode.turns] == ["red", "red"]


def test_a_plan_is_of_one_process() -> None:
    with pytest.raises(MarftError, match=r"^learner.shard: a plan is measured in one process"):
        plan(config_of(**SHARDED))


def test_a_base_without_our_decoder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.models.team.has_decoder", lambda model: False)
    with pytest.raises(MarftError, match=r"^learner.shard: model .* runs on transformers' own forward pass"):
        seated(**SHARDED)
