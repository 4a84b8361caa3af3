"""Whole runs of a second each: what they write, that they learn something, and that they do it the same way twice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from toys import ECHO, TINY, files, rows

import marft
from marft.cli import main
from marft.config import load_config, parse, parse_yaml
from marft.game.play import Game

AGENT_KEYS = {"reward", "advantage_std", "kl", "clip_fraction", "entropy", "length", "grad_norm", "staleness"}
Train = Callable[..., Path]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """A run with these settings on top of the small ones; asked for twice, it is made once."""
    made: dict[tuple[str, ...], Path] = {}

    def run(*overrides: str, again: bool = False) -> Path:
        if again or overrides not in made:
            path = tmp_path_factory.mktemp("runs") / "run"
            assert main(["train", *ECHO, *overrides, "--run", str(path)]) == 0
            if again:
                return path
            made[overrides] = path
        return made[overrides]

    return run


def checkpoint(run: Path, iteration: int) -> dict[str, bytes]:
    return files(run / "checkpoints" / f"{iteration:06d}")


def adapters(run: Path, iteration: int) -> dict[str, bytes]:
    return {
        name: data for name, data in checkpoint(run, iteration).items() if name.endswith("adapter_model.safetensors")
    }


def finite(row: Any) -> bool:
    if isinstance(row, dict):
        return all(map(finite, row.values()))
    return not isinstance(row, int | float) or math.isfinite(row)


# --- what a run writes ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", ["marft-token", "marft-action", "grpo"])
def test_a_run_and_its_files(train: Train, algorithm: str) -> None:
    run = train(f"algorithm={algorithm}")
    critic = algorithm != "grpo"
    names = {
        "config.yaml",
        "events.jsonl",
        "manifest.json",
        "metrics.jsonl",
        "episodes.jsonl",
        "held_out.jsonl",
        "summary.json",
    }
    assert {p.name for p in run.iterdir() if p.is_file()} == names
    expected = {"manifest.json", "state.json"}
    for adapter in ("agents/planner", "agents/solver", *(["critics/critic"] if critic else [])):
        expected |= {f"{adapter}/adapter_model.safetensors", f"{adapter}/adapter_config.json"}
        expected.add(f"optimizers/{adapter.partition('/')[2]}.safetensors")
    if critic:
        expected.add("critics/critic/value_head.safetensors")
    for iteration in (0, 2):
        assert checkpoint(run, iteration).keys() == expected

    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in found] == [1, 2]
    for row in found:
        assert finite(row)
        assert {"iteration", "reward", "accuracy", "tokens", "seconds", "agents", "failed"} <= row.keys()
        assert row["seconds"].keys() == {"rollout", "credit", "update", "eval"}
        assert all(row["agents"][name].keys() >= AGENT_KEYS for name in ("planner", "solver"))
        assert all(agent["staleness"] == 0 and agent["grad_norm"] > 0 for agent in row["agents"].values())
        assert row["tokens"]["update"] > row["tokens"]["rollout"] > 0
        assert ("critics" in row) == critic

    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["marft"] == marft.__version__
    assert {"torch", "transformers"} <= manifest["packages"].keys()
    assert {"seed", "git_commit", "model", "python"} <= manifest.keys()
    config = parse(parse_yaml((run / "config.yaml").read_text(), "config.yaml"))
    assert config == load_config(None, [*ECHO, f"algorithm={algorithm}"])


def test_the_summary_compares_before_and_after(train: Train) -> None:
    run = train("algorithm=marft-token")
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["before"]["iteration"], summary["after"]["iteration"], summary["iterations"]) == (0, 2, 2)
    for side in ("before", "after"):
        row = summary[side]
        low, high = row["accuracy_ci95"]
        assert low <= row["accuracy"] <= high
        assert row["tasks"] == 4
    assert summary["seconds"] > 0
    generated = sum(row["tokens"]["rollout"] for row in rows(run / "metrics.jsonl"))
    assert summary["tokens"]["generated"] == generated


def test_episodes_are_written_as_they_were_played(train: Train) -> None:
    run = train("algorithm=marft-token")
    found = rows(run / "episodes.jsonl")
    assert [row["iteration"] for row in found] == [1] * 6 + [2] * 6
    config = load_config(None, ECHO)
    for row in found:
        assert [turn["agent"] for turn in row["turns"]] == ["planner", "solver"]
        for turn in row["turns"]:
            assert turn["saw"][0] == {"role": "system", "content": config.team.agents[turn["agent"]].prompt}
            assert len(turn["token_ids"]) == len(turn["logprobs"]) == len(turn["advantages"]) <= 5
            assert all(logprob <= 0 for logprob in turn["logprobs"])
            assert turn["version"] == row["iteration"] - 1
        planner, solver = row["turns"]
        assert planner["text"] in solver["saw"][1]["content"]
        assert [turn["reward"] for turn in row["turns"]] == [0.0, pytest.approx(row["reward"])]


@pytest.mark.parametrize("algorithm", ["marft-token", "marft-action", "grpo"])
def test_everybody_learns(train: Train, algorithm: str) -> None:
    run = train(f"algorithm={algorithm}")
    before, after = checkpoint(run, 0), checkpoint(run, 2)
    moved = [name for name in before if name.endswith(".safetensors") and "adapter_config" not in name]
    assert len(moved) == (4 if algorithm == "grpo" else 7)
    assert all(before[name] != after[name] for name in moved)
    planner, solver = (after[f"agents/{name}/adapter_model.safetensors"] for name in ("planner", "solver"))
    assert planner != solver


# --- the same twice ---------------------------------------------------------------------------------------------------
def test_the_same_seed_gives_the_same_bytes(train: Train) -> None:
    one, two = train("algorithm=marft-token"), train("algorithm=marft-token", again=True)
    assert checkpoint(one, 2) == checkpoint(two, 2)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert rows(one / name) == rows(two / name)


def test_another_seed_gives_another_run(train: Train) -> None:
    one, two = train("algorithm=marft-token"), train("algorithm=marft-token", "seed=1", "eval.tasks=0")
    assert all(adapters(one, 0)[name] != data for name, data in adapters(two, 0).items())
    assert all(adapters(one, 2)[name] != data for name, data in adapters(two, 2).items())
    first, second = rows(one / "episodes.jsonl"), rows(two / "episodes.jsonl")
    assert [row["turns"][0]["token_ids"] for row in first] != [row["turns"][0]["token_ids"] for row in second]
    assert "before" not in json.loads((two / "summary.json").read_text())


def test_samples_of_one_task_differ(train: Train) -> None:
    found = rows(train("algorithm=marft-token") / "episodes.jsonl")
    texts = {(row["iteration"], row["task"]): [] for row in found}
    for row in found:
        texts[row["iteration"], row["task"]].append([turn["token_ids"] for turn in row["turns"]])
    assert any(one != two for one, two in texts.values())


# --- settings that change the loop ------------------------------------------------------------------------------------
def test_evaluation_in_between_and_tensorboard(train: Train) -> None:
    run = train("eval.every=1", "track.tensorboard=true")
    plain = train("algorithm=marft-token")
    found = rows(run / "metrics.jsonl")
    assert all(row["eval"]["tasks"] == 4 for row in found)
    after = json.loads((run / "summary.json").read_text())["after"]
    assert found[-1]["eval"] == {key: value for key, value in after.items() if key not in ("iteration", "settings")}
    assert adapters(run, 2) == adapters(plain, 2)  # looking changes nothing
    [events] = (run / "tensorboard").iterdir()
    assert events.name.startswith("events.out.tfevents")
    assert b"agents/solver/kl" in events.read_bytes()


def test_agents_wait_while_the_critic_warms_up(train: Train) -> None:
    run = train("critic.warmup=1", "checkpoint.every=1", "eval.tasks=0")
    stages = [checkpoint(run, i) for i in range(3)]
    agents = [name for name in stages[0] if name.startswith("agents/") and name.endswith(".safetensors")]
    critic = "critics/critic/adapter_model.safetensors", "critics/critic/value_head.safetensors"
    assert agents
    for name in agents:
        assert stages[0][name] == stages[1][name] != stages[2][name]
    assert stages[0][critic[1]] != stages[1][critic[1]] != stages[2][critic[1]]
    assert stages[1][critic[0]] != stages[2][critic[0]]


def test_failed_episodes_are_left_out(train: Train) -> None:
    run = train("env.name=toys:Flaky", "train.tasks=5", "train.minibatches=10", "eval.tasks=0", "track.episodes=100")
    found = rows(run / "metrics.jsonl")
    assert any(row["failed"] for row in found)
    written = rows(run / "episodes.jsonl")
    failed = [row for row in written if row["ended"] == "failed"]
    assert len(failed) == sum(row["failed"] for row in found)
    assert all("raised" in row["error"] and "advantages" not in str(row["turns"]) for row in failed)
    assert len(written) - len(failed) == sum(10 - row["failed"] for row in found)


# --- starting from something ------------------------------------------------------------------------------------------
def test_init_from_a_run_and_from_exported_folders(train: Train, tmp_path: Path) -> None:
    old = train("algorithm=marft-token")
    exported = tmp_path / "exported"
    assert main(["export", str(old), str(exported)]) == 0
    for source, name in ((old, "a"), (exported, "b"), (old / "checkpoints" / "000002", "c")):
        run = tmp_path / name
        settings = [*ECHO, "train.iterations=1", "eval.tasks=0", f"init_from={source}"]
        assert main(["train", *settings, "--run", str(run)]) == 0
        agents = {key: data for key, data in adapters(run, 0).items() if key.startswith("agents/")}
        assert agents == {key: data for key, data in adapters(old, 2).items() if key.startswith("agents/")}
        same_critic = adapters(run, 0)["critics/critic/adapter_model.safetensors"] == adapters(old, 2)[
            "critics/critic/adapter_model.safetensors"
        ]  # fmt: skip
        assert same_critic == (source != exported)
        assert adapters(run, 1) != adapters(run, 0)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda folder: None, "init_from: {} is neither a run nor a folder"),
        (lambda folder: folder.mkdir(), "init_from: {} has no adapter for 'planner'"),
        (lambda folder: (folder / "planner").mkdir(parents=True), "{}/planner/adapter_model.safetensors is missing"),
    ],
)
def test_init_from_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], None], expected: str
) -> None:
    folder = tmp_path / "there"
    spoil(folder)
    assert main(["train", *ECHO, f"init_from={folder}", "--run", str(tmp_path / "run")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert expected.format(folder) in line
    assert not (tmp_path / "run").exists()


def test_training_from_python(tmp_path: Path) -> None:
    async def debate(game: Game) -> None:
        await game.act("pro", "con")
        await game.act("judge")

    summary = marft.train(
        run=tmp_path / "run",
        workflow=debate,
        agents={
            "pro": {"prompt": "Say yes.", "max_tokens": 4},
            "con": {"prompt": "Say no.", "max_tokens": 4},
            "judge": {"prompt": "Decide.", "max_tokens": 4, "sees": ["pro"]},
        },
        env={"name": "toys:Echo", "size": 3},
        algorithm="grpo",
        lora={"rank": 2, "targets": ["q_proj"]},
        train={"iterations": 1, "tasks": 2, "samples": 2, "minibatches": 1},
        eval={"tasks": 2},
        track={"tensorboard": False},
        device="cpu",
    )
    assert summary["iterations"] == 1
    assert summary["after"]["tasks"] == 2
    assert main(["train", "--resume", "--run", str(tmp_path / "run")]) == 2  # not silently as `sequential`
    assert marft.train(run=tmp_path / "run", workflow=debate, resume=True) == summary
    for row in rows(tmp_path / "run" / "episodes.jsonl"):
        pro, con, judge = row["turns"]
        assert (pro["agent"], con["agent"], judge["agent"]) == ("pro", "con", "judge")
        assert len(con["saw"][1]["content"].split("\n\n")) == 1
        assert "pro: " in judge["saw"][1]["content"]
        assert "con: " not in judge["saw"][1]["content"]
    assert set(yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["team"]["agents"]) == {
        "pro",
        "con",
        "judge",
    }


def test_python_mistakes_are_marft_errors(tmp_path: Path) -> None:
    with pytest.raises(marft.MarftError, match="unknown key 'trian'"):
        marft.train(run=tmp_path / "run", trian={"tasks": 1})
    with pytest.raises(marft.MarftError, match="unknown recipe"):
        marft.train("no-such-recipe", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_embedded_environment_trains_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", *TINY, "eval.tasks=0", "train.iterations=1", "--run", str(run)]) == 0
    assert rows(run / "episodes.jsonl")[0]["task"].startswith("arithmetic/train/2/")
