"""Planted collapses: each run stops with the right agent and sign named, goes back, or warns, as it was told."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from known_answers.tiny import model_folder
from quick import models_in_memory, settings_of, start, trainer_of
from safetensors.torch import load_file
from toys import files, rows

from marft.cli import main
from marft.commands.progress import Terminal
from marft.commands.train import resume_run
from marft.config import parse, to_yaml
from marft.learners.base import Update
from marft.learners.local import LocalLearner
from marft.learners.tally import Tally
from marft.learners.trust_region import TrustRegion
from marft.models.team import TeamModel
from marft.runs.directory import RunDirectory
from marft.training import checkpoint as saving
from marft.types import Collapse, Interrupted

ROOM = {"agents": {name: {"max_tokens": 60} for name in ("ann", "bob")}}  # one token in sixteen ends a turn
CONSTANT: dict[str, Any] = {
    "env": {"name": "toys:TurnsConstant", "after": 18},  # two of them are the sanity check's
    "team": ROOM,
    "train": {"iterations": 9},
    "checkpoint": {"every": 1, "keep": 9},
}
CRITIC = {"algorithm": "marft-token"}


def events(run: Path, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in RunDirectory(run).events() if event["event"] in kinds]


# --- a reward that turns constant -------------------------------------------------------------------------------------
def test_a_reward_that_turns_constant_stops_the_run(tmp_path: Path) -> None:
    """Four episodes an iteration: from the fifth on nothing differs."""
    with pytest.raises(Collapse) as stopped:
        start(tmp_path / "run", **CONSTANT)
    assert "every episode earns 0.250" in str(stopped.value)
    assert f"marft train --resume --run {tmp_path / 'run'} --at 3" in str(stopped.value)  # 4 played it
    assert len(rows(tmp_path / "run" / "metrics.jsonl")) == 7
    found = [event for event in events(tmp_path / "run", "warning", "collapse") if event["sign"] == "constant"]
    assert [(e["event"], e["iteration"], e["sign"], e["since"]) for e in found] == [
        ("warning", 5, "constant", 5),
        ("collapse", 7, "constant", 5),
    ]


def test_it_is_exit_code_3_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, run = tmp_path / "team.yaml", tmp_path / "run"
    config.write_text(to_yaml(parse(settings_of(**CONSTANT))))
    with models_in_memory():
        assert main(["train", str(config), "--run", str(run)]) == 3
    shown = capsys.readouterr()
    [line] = shown.err.splitlines()
    assert line.startswith("marft: the run has collapsed and stops: every episode earns 0.250")
    assert "warning in iteration 5: every episode earns 0.250" in shown.out


def test_told_to_warn_it_goes_on_to_the_end(tmp_path: Path) -> None:
    start(tmp_path / "run", **CONSTANT | {"train": {"iterations": 9, "on_collapse": "warn"}})
    assert len(rows(tmp_path / "run" / "metrics.jsonl")) == 9
    found = [e["event"] for e in events(tmp_path / "run", "warning", "collapse") if e["sign"] == "constant"]
    assert found == ["warning", "collapse"]


def test_told_to_go_back_it_does_so_three_times_at_lower_rates(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(Collapse, match="after going back 3 times"):
        start(
            run, **CONSTANT | {"train": {"iterations": 9, "on_collapse": "back"}, "algorithm": {"trust_region": None}}
        )
    back = events(run, "back")
    found = [(e["iteration"], e["returns"]) for e in back]
    assert [returns for _, returns in found] == [1, 2, 3]
    assert found[0][0] == 3
    at = found[-1][0]
    slow = rows(run / "metrics.jsonl")[at]["agents"]["ann"]["lr"]
    assert slow == pytest.approx(0.05 * (1 - 0.9 * at / 9) * 0.3**3, rel=1e-6)
    with models_in_memory():  # a user who goes back has all of the rate again
        resume_run(run, [f"train.iterations={at + 1}", "optimizer.lr=0.01"], at)
    assert rows(run / "metrics.jsonl")[at]["agents"]["ann"]["lr"] == pytest.approx(
        0.01 * (1 - 0.9 * at / (at + 1)), rel=1e-6
    )


def poison_once(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    """The critic's weights are ruined by one update, the first time that it is done."""
    real, calls = LocalLearner.update, 0

    def poisoned(self: LocalLearner, *arguments: Any, **named: Any) -> Update:
        nonlocal calls
        calls += 1
        done = real(self, *arguments, **named)
        if calls == update:
            for parameter in self.teams["critic"].value_heads["critic"].parameters():
                torch.nn.init.constant_(parameter, float("nan"))
        return done

    monkeypatch.setattr(LocalLearner, "update", poisoned)


BACK: dict[str, Any] = {
    "algorithm": "marft-token",
    "team": ROOM,
    "train": {"iterations": 5, "on_collapse": "back"},
    "checkpoint": {"every": 1, "keep": 9},
}


def test_going_back_finds_the_checkpoint_from_before_the_update_that_did_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Update 3 ruins the critic; the values of iteration 4 show it, so checkpoint 3 is ruined and 2 is good."""
    poison_once(monkeypatch, 3)
    start(tmp_path / "run", **BACK)
    assert [(e["iteration"], e["returns"]) for e in events(tmp_path / "run", "back")] == [(2, 1)]
    assert [row["iteration"] for row in rows(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("every", [1, 9])
def test_a_run_killed_right_after_going_back_ends_like_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Also where it goes back to the very beginning, from which no adapter has any of Adam's moments."""
    changes = BACK | {"checkpoint": {"every": every, "keep": 9}}
    with monkeypatch.context() as once:
        poison_once(once, 3)
        start(tmp_path / "whole", **changes)

    def die(self: Terminal, line: str) -> None:
        if "gone back" in line:
            raise RuntimeError("killed")

    with monkeypatch.context() as once:
        poison_once(once, 3)
        once.setattr(Terminal, "warned", die)
        with pytest.raises(RuntimeError, match="killed"):
            start(tmp_path / "killed", **changes)
    with models_in_memory():
        resume_run(tmp_path / "killed", [])
    whole, killed = (files(tmp_path / name / "checkpoints" / "000005") for name in ("whole", "killed"))
    assert whole == killed
    assert rows(tmp_path / "whole" / "metrics.jsonl") == rows(tmp_path / "killed" / "metrics.jsonl")


# --- what is not finite -----------------------------------------------------------------------------------------------
def test_a_critic_of_nan_is_named_and_its_batch_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = TeamModel.values, 0

    def values(self: TeamModel, critic: str, hidden: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        found = real(self, critic, hidden)
        return found * float("nan") if calls > 8 else found

    monkeypatch.setattr(TeamModel, "values", values)
    run = tmp_path / "run"
    with pytest.raises(Collapse, match="the value of 'critic' is not finite"):
        start(run, **CRITIC)
    [event] = events(run, "collapse")
    assert (event["sign"], event["agent"]) == ("not finite", "critic")
    folder = run / "failures" / f"{event['iteration']:06d}"
    names, saved = json.loads((folder / "batch.json").read_text()), load_file(folder / "batch.safetensors")
    assert names["agents"] == ["ann", "bob"]
    assert len(saved["tokens_N"]) == int(saved["length_K"].sum()) == len(saved["logprobs_N"])
    assert len(saved["prompts_P"]) == int(saved["prompt_length_K"].sum())
    assert (folder / "critics" / "critic" / "adapter_model.safetensors").is_file()


def test_a_gradient_that_is_not_finite_names_its_adapter_and_nobody_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalLearner._accumulate

    def accumulate(self: LocalLearner, *arguments: Any) -> Tally:
        found = real(self, *arguments)
        for parameter in self.parameters("bob").values():
            if parameter.grad is not None:
                parameter.grad.mul_(float("inf"))
        return found

    trainer = trainer_of(tmp_path / "run", train={"on_collapse": "warn"})
    before = {name: snapshot(trainer.parts.learner, name) for name in ("ann", "bob")}
    monkeypatch.setattr(LocalLearner, "_accumulate", accumulate)
    trainer.run.path.mkdir()
    with trainer.interruption, pytest.raises(Collapse, match="the gradient of 'bob' is not finite"):
        trainer.train()
    for name, tensors in before.items():
        assert all(torch.equal(a, b) for a, b in zip(tensors, snapshot(trainer.parts.learner, name), strict=True))
    saved = load_file(tmp_path / "run" / "failures" / "000001" / "batch.safetensors")
    assert len(saved["advantages_N"]) == len(saved["tokens_N"])


def test_a_last_step_without_end_is_noticed_before_anybody_plays_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradient was finite, and no other is looked at after it."""
    real = TrustRegion.step

    def step(self: TrustRegion, name: str, found: Tally) -> None:
        real(self, name, found)
        if name == "bob":
            for parameter in self.optimizers[name].param_groups[0]["params"]:
                torch.nn.init.constant_(parameter, float("inf"))

    monkeypatch.setattr(TrustRegion, "step", step)
    with pytest.raises(Collapse, match="a weight of 'bob' is not finite"):
        start(tmp_path / "run", algorithm={"trust_region": None}, train={"minibatches": 1})
    [event] = events(tmp_path / "run", "collapse")
    assert (event["sign"], event["agent"], event["iteration"]) == ("not finite", "bob", 1)


def test_an_interrupt_while_it_goes_back_waits_until_the_run_is_whole_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters are read before Adam: whoever stopped in between would save the one of another iteration with the other."""
    poison_once(monkeypatch, 3)
    real = saving.load_adapters

    def interrupted(*arguments: Any) -> None:
        real(*arguments)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(saving, "load_adapters", interrupted)
    with pytest.raises(Interrupted, match="is kept as it was after iteration 2"):
        start(tmp_path / "run", **BACK)
    monkeypatch.setattr(saving, "load_adapters", real)
    monkeypatch.setattr(LocalLearner, "update", LocalLearner.update)
    state = json.loads((tmp_path / "run" / "checkpoints" / "000002" / "state.json").read_text())
    assert (state["iteration"], state["returns"]) == (2, 1)


def snapshot(learner: LocalLearner, name: str) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in learner.parameters(name).values()]


# --- agents -----------------------------------------------------------------------------------------------------------
def test_an_agent_that_only_speaks_to_its_limit(tmp_path: Path) -> None:
    """ann may say one token, and nothing ever comes of it; bob has room."""
    changes: dict[str, Any] = {
        "model": str(model_folder("0", "1")),  # which hardly ever ends a turn by itself
        "team": {"agents": {"ann": {"max_tokens": 1}, "bob": {"max_tokens": 120}}},
        "train": {"iterations": 14, "tasks": 5, "samples": 4},
    }
    with pytest.raises(Collapse, match="of the turns of ann are cut at its max_tokens"):
        start(tmp_path / "run", env={"name": "toys:TurnsConstant", "after": 0}, **changes)
    assert {event["agent"] for event in events(tmp_path / "run", "collapse")} == {"ann"}
    start(tmp_path / "meant", env="toys:Alternates", **changes)  # something may be learnt from what it says
    assert "truncated" in {event["sign"] for event in events(tmp_path / "meant", "warning")}
    assert events(tmp_path / "meant", "collapse") == []


def test_a_rate_far_too_high_without_a_trust_region_stops_and_with_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default team at a hundred times its rate."""
    monkeypatch.chdir(tmp_path)
    words = [
        "train",
        "optimizer.lr=0.3",
        "train.tasks=16",
        "train.iterations=6",
        "eval.tasks=0",
        "track.tensorboard=false",
    ]
    assert main([*words, "algorithm.trust_region=null", "--run", "wild"]) == 3
    stops = events(Path("wild"), "collapse")
    assert {event["agent"] for event in stops} <= {"planner", "solver", "critic"}
    assert len({event["agent"] for event in stops}) == 1
    assert main([*words, "--run", "held"]) == 0
    assert events(Path("held"), "collapse") == []
