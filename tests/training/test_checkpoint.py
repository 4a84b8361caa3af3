"""What a checkpoint holds, and that a run which goes on from one ends with the bytes of a run that was never interrupted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from quick import config_of, models_in_memory, resume, seated, start
from toys import files, rows

from marft.models.peft_format import save_adapter
from marft.training.build import Assembly, assemble
from marft.training.checkpoint import Position, load_adapters, read_checkpoint, write_checkpoint
from marft.types import MarftError

WEIGHTS, HEAD = "adapter_model.safetensors", "value_head.safetensors"
TRIO = {"agents": {"cat": {"prompt": "cat", "max_tokens": 3}}}


def checkpoint(run: Path, iteration: int) -> dict[str, bytes]:
    return files(run / "checkpoints" / f"{iteration:06d}")


def stir(parts: Assembly) -> None:
    """Everything that can be saved, at random."""
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for team in parts.teams:
            for name in team.adapters:
                for parameter in team.trainable_parameters(name).values():
                    parameter.copy_(torch.randn(parameter.shape, generator=g))


@pytest.fixture
def brought(tmp_path: Path) -> Path:
    """An adapter of rank 3 in PEFT's format, for agents to bring along."""
    parts = seated(lora={"rank": 3, "alpha": 6})
    stir(parts)
    save_adapter(parts.teams[0], "ann", tmp_path / "brought")
    return tmp_path / "brought"


# --- what it holds ----------------------------------------------------------------------------------------------------
def test_a_checkpoint_holds_the_whole_team(tmp_path: Path, brought: Path) -> None:
    """Frozen adapters too, and every agent's critic; Adam's state of those alone who learn."""
    parts = seated(
        algorithm="marft-token",
        critic="per_agent",
        team={"agents": {"cat": {"prompt": "", "trainable": False, "init_from": str(brought)}}},
    )
    write_checkpoint(tmp_path / "there", parts.teams, parts.learner, Position())
    found = files(tmp_path / "there")
    adapters = ["agents/ann", "agents/bob", "agents/cat", "critics/critic-ann", "critics/critic-bob"]
    assert found.keys() == {
        "state.json",
        *(f"{adapter}/{name}" for adapter in adapters for name in (WEIGHTS, "adapter_config.json")),
        *(f"critics/critic-{name}/{HEAD}" for name in ("ann", "bob")),
        *(f"optimizers/{name}.safetensors" for name in ("ann", "bob", "critic-ann", "critic-bob")),
    }
    assert found[f"agents/cat/{WEIGHTS}"] == (brought / WEIGHTS).read_bytes()
    assert json.loads(found["agents/cat/adapter_config.json"])["r"] == 3


def test_what_was_written_is_read_back_and_stays_trainable(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algorithm": "marft-token", "critic": "per_agent"}
    run = start(tmp_path / "run", **settings)
    with models_in_memory():
        parts = assemble(config_of(**settings))
    folder = run / "checkpoints" / "000004"
    position = read_checkpoint(folder, parts.teams, parts.learner)
    assert (position.iteration, position.version, position.tasks_drawn) == (4, 4, 8)
    assert position.tokens_generated > 0
    for name, optimizer in parts.learner.optimizers.items():
        own = parts.teams[0].trainable_parameters(name).values()
        assert all(parameter.requires_grad for parameter in own)
        [taken] = {int(optimizer.state[parameter]["step"]) for parameter in own}
        assert 4 <= taken <= 8  # none where a minibatch has no gradient
    write_checkpoint(tmp_path / "again", parts.teams, parts.learner, position)
    written = files(tmp_path / "again")
    assert written == {name: data for name, data in checkpoint(run, 4).items() if name != "manifest.json"}


def test_weights_that_adapt_and_baselines_survive(tmp_path: Path) -> None:
    parts = seated()
    position = Position(
        iteration=3, version=7, tasks_drawn=9, tokens_generated=11, tokens_trained=13,
        kl_weights={"ann": 0.1, "bob": 1 / 3}, baselines={"ann": -2.5e-8},
    )  # fmt: skip
    write_checkpoint(tmp_path / "there", parts.teams, parts.learner, position)
    assert read_checkpoint(tmp_path / "there", parts.teams, parts.learner) == position


def test_every_agent_has_its_own_state(tmp_path: Path) -> None:
    """After a run: weights that followed the KL, and baselines that followed the scores."""
    run = start(tmp_path / "kl", algorithm={"name": "grpo", "kl": {"weight": 0.1, "target": 0.01}})
    weights = json.loads(checkpoint(run, 4)["state.json"])["kl_weights"]
    assert weights.keys() == {"ann", "bob"}
    assert all(weight != 0.1 for weight in weights.values())
    run = start(tmp_path / "rae", algorithm="rae")
    baselines = json.loads(checkpoint(run, 4)["state.json"])["baselines"]
    assert baselines.keys() == {"ann", "bob"}
    assert all(0 < baseline < 1 for baseline in baselines.values())


def test_an_adapter_that_is_missing_is_one_line(tmp_path: Path) -> None:
    parts = seated()
    write_checkpoint(tmp_path / "there", parts.teams, parts.learner, Position())
    shutil.rmtree(tmp_path / "there" / "agents" / "bob")
    with pytest.raises(MarftError, match=r"has no adapter for 'bob': .*agents/bob is missing$"):
        load_adapters(tmp_path / "there", parts.teams)


# --- two and two iterations are four ----------------------------------------------------------------------------------
CASES: dict[str, dict[str, Any]] = {
    "rae": {"algorithm": {"name": "rae", "decay": 0.5}},
    "adaptive KL": {"algorithm": {"name": "grpo", "kl": {"weight": 0.5, "target": 0.05}}},
    "KL in the reward": {"algorithm": {"name": "rloo", "kl": {"weight": 0.5, "where": "reward", "target": 0.05}}},
    "sequential": {"algorithm": "marft-token", "schedule": "sequential", "team": TRIO},
    "resample": {"algorithm": "marft-action", "schedule": "resample", "team": TRIO},
    "alternate": {"schedule": {"mode": "alternate", "interval": 2}},
    "per-agent critics": {"algorithm": "marft-token", "critic": {"mode": "per_agent", "warmup": 1}},
    "tree": {"credit": "tree", "train": {"samples": 4}},
    "difference": {"credit": {"name": "difference", "baseline": "base"}},
    "shared adapters": {
        "team": {"agents": {"ann": {"adapter": "both"}, "bob": {"adapter": "both"}, **TRIO["agents"]}},
        "schedule": "resample",
    },
    "budget": {"train": {"iterations": 100, "budget": 110}, "optimizer": {"warmup": 1}},
}


@pytest.mark.parametrize("case", CASES)
def test_going_on_ends_with_the_same_bytes(case: str, tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", **CASES[case])
    half = tmp_path / "half"
    shutil.copytree(whole, half)
    end = len(rows(whole / "metrics.jsonl"))
    assert end >= 4
    before, after = checkpoint(whole, 2), checkpoint(whole, end)
    assert any(before[name] != data for name, data in after.items() if name.endswith(WEIGHTS))
    resume(half, 2)
    assert checkpoint(half, end) == after
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert rows(half / name) == rows(whole / name)


def test_frozen_agents_go_on_as_they_were(tmp_path: Path, brought: Path) -> None:
    cat = {"prompt": "cat", "max_tokens": 3, "trainable": False, "init_from": str(brought)}
    whole = start(tmp_path / "whole", team={"agents": {"cat": cat}})
    half = tmp_path / "half"
    shutil.copytree(whole, half)
    resume(half, 2)
    assert checkpoint(half, 4) == checkpoint(whole, 4)
    assert {checkpoint(whole, i)[f"agents/cat/{WEIGHTS}"] for i in (0, 2, 4)} == {(brought / WEIGHTS).read_bytes()}
    assert len({checkpoint(whole, i)[f"agents/ann/{WEIGHTS}"] for i in (0, 2, 4)}) == 3


def test_a_run_goes_on_without_the_folders_it_began_with(tmp_path: Path, brought: Path) -> None:
    team = {"agents": {"cat": {"prompt": "", "max_tokens": 3, "trainable": False, "init_from": str(brought)}}}
    whole = start(tmp_path / "whole", team=team)
    half = start(tmp_path / "half", team=team, train={"iterations": 2})
    shutil.rmtree(brought)
    resume(half, None, "train.iterations=4")
    assert checkpoint(half, 4).keys() == checkpoint(whole, 4).keys()
    assert (half / "checkpoints/000004/agents/cat" / WEIGHTS).read_bytes() == (
        whole / "checkpoints/000000/agents/cat" / WEIGHTS
    ).read_bytes()
