"""`marft train --dry-run`: everything is resolved, what agents would read is printed, and nothing is loaded or written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from marft.cli import main
from marft.game.play import Game
from marft.models.registry import NANO
from marft.types import Message

Dry = Callable[..., str]
DUO = '''\
model      nano: 448 tokens in its vocabulary, 1,024 at most to read and say
env        arithmetic level=2: 100,000 tasks for training, 5,000 held out
team       sequential: planner (24 tokens), solver (48 tokens)
algorithm  marft-token, credit equal, critic shared, schedule joint
iteration  64 tasks × 4 samples; episodes like the one below generate at most 18,432 tokens; 12 iterations

first task for training (arithmetic/train/2/0):
  Start with 33. Multiply by 3. Subtract 25. Subtract 14.

first held-out task (arithmetic/test/2/0):
  Start with 38. Multiply by 2. Subtract 14. Add 32.

turn 0: planner reads 43 tokens
  [system]
  You are the planner. List the steps.
  [user]
  Start with 33. Multiply by 3. Subtract 25. Subtract 14.
  says: (what planner says)

turn 1: solver reads 62 tokens
  [system]
  You are the solver. Follow the plan and end with "Answer: N".
  [user]
  Start with 33. Multiply by 3. Subtract 25. Subtract 14.

  planner: (what planner says)
  says: (what solver says)

the environment: reward 0, wrong
dry run: nothing was trained or written
'''  # fmt: skip


@pytest.fixture
def dry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dry:
    """What a dry run prints, in an empty folder, which is empty afterwards."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["train", *arguments, "--dry-run"]) == 0, capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dry:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["train", *arguments, "--dry-run"]) == 2
        assert not (tmp_path / "runs").exists()
        return capsys.readouterr().err.splitlines()[-1]

    return run


def test_the_default_team_word_for_word(dry: Dry) -> None:
    assert dry() == DUO


def test_an_orchestrator_calls_everybody_and_is_done(dry: Dry) -> None:
    said = [line for line in dry("orchestrated").splitlines() if line.startswith("  says: ")]
    assert said == [
        "  says: Next: planner", "  says: (what planner says)", "  says: Next: solver", "  says: (what solver says)",
        "  says: Done",
    ]  # fmt: skip


def test_the_numbers_of_an_iteration(dry: Dry) -> None:
    out = dry("rounds", "train.tasks=3", "train.samples=2", "team.rounds=2", "train.minibatches=1")
    assert "3 tasks × 2 samples; episodes like the one below generate at most 864 tokens" in out  # 6 · 2 · (24 + 48)
    assert "the environment: reward 0, wrong, of single turns {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}, not done" in out


def test_no_weights_are_needed(dry: Dry, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = tmp_path_factory.mktemp("model") / "nano"
    shutil.copytree(NANO, model, ignore=shutil.ignore_patterns("*.safetensors"))
    assert f"model      {model}: 448 tokens" in dry(f"model={model}")


def say_hello(messages: list[Message]) -> str:
    return f"hello after {len(messages)} messages"


async def endless(game: Game) -> None:
    while True:
        await game.act("planner")


def test_scripts_speak_and_endpoints_do_not(dry: Dry) -> None:
    solver = "{prompt: Solve., remote: {url: 'http://127.0.0.1:9/v1', model: none}}"
    out = dry(
        "trio", f"team.agents.solver={solver}", "team.agents.planner={script: 'test_dry_run:say_hello', max_tokens: 64}"
    )
    assert "turn 0: planner\n" in out
    assert "  says: hello after 2 messages\n" in out
    assert "turn 1: solver\n" in out
    assert "  says: (what solver says)\n" in out
    assert "planner (scripted), solver (remote), verifier (48 tokens)" in out


def test_a_long_game_is_told_in_lines(dry: Dry) -> None:
    out = dry("team.workflow=test_dry_run:endless")
    assert out.count("[user]") == 16
    assert "turn 255: planner reads " in out
    assert "cut off before planner" in out


def test_a_prompt_that_does_not_fit_is_noted(dry: Dry) -> None:
    out = dry(f"team.agents.planner.prompt={'word ' * 600}")
    assert "note: the model can take in 1,024 tokens; this turn would fail" in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["du"], "unknown recipe 'du'; did you mean 'duo'?"),
        (["model=./nowhere"], "model folder nowhere does not exist"),
        (["env=poker"], "unknown environment 'poker'"),
        (["env.levels=2"], "unknown key 'env.levels'"),
        (["env.name=toys:NoTasks"], "environment.tasks('train') is empty"),
        (["env.name=toys:Breaks"], "the episode failed: environment.reward raised RuntimeError: out of paper"),
        (["team.workflow=no.such:flow"], "team.workflow: cannot import 'no.such:flow'"),
        (["device=tpu"], "unknown device 'tpu'"),
        (["init_from=nowhere"], "init_from: nowhere is neither a run nor a folder of adapters"),
        (["team.agents.solver.init_from=nowhere"], "nowhere"),
        (["--run", "x"], "--dry-run writes nothing"),
        (["--resume"], "--dry-run writes nothing"),
        (
            ["team.agents.planner.trainable=false", "team.agents.solver.trainable=false"],
            "no agent of this team learns",
        ),
    ],
)
def test_a_mistake_is_one_line(refused: Dry, arguments: list[str], expected: str) -> None:
    assert expected in refused(*arguments)


def test_a_model_without_a_chat_template(refused: Dry, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = tmp_path_factory.mktemp("model") / "nano"
    shutil.copytree(NANO, model, ignore=shutil.ignore_patterns("chat_template.jinja"))
    assert "has no chat template" in refused(f"model={model}")
