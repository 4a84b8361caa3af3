"""`marft new env NAME`: what it writes passes the checks and can be trained at once; it never writes over anything."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from marft.cli import main
from marft.config import load_config
from marft.envs.checking import check_env
from marft.envs.template import class_name
from marft.types import Completion, Reward, Turn

QUICK = ("train.iterations=1", "train.tasks=2", "train.samples=2", "train.minibatches=1", "eval.tasks=2", "device=cpu")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_it_says_how_to_go_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "env", "word_hunt"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "wrote word_hunt.py and word_hunt.yaml; go on with",
        "marft check-env word_hunt:WordHunt",
        "marft train word_hunt.yaml",
    ]
    [found] = [node for node in ast.parse((here / "word_hunt.py").read_text()).body if isinstance(node, ast.ClassDef)]
    assert found.name == "WordHunt"
    assert load_config("word_hunt.yaml").env.name == "word_hunt:WordHunt"


def test_it_passes_every_check(here: Path) -> None:
    main(["new", "env", "fresh_one"])
    found = check_env("fresh_one:FreshOne", {"reach": 7})
    assert [str(finding) for finding in found if not finding.ok] == []
    assert "finite and the same twice; rewards seen: 0 … 1" in {finding.text for finding in found}


def test_it_can_be_trained_at_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["new", "env", "trained_one"])
    capsys.readouterr()
    run = [sys.executable, "-m", "marft.cli", "train", "trained_one.yaml", *QUICK, "track.tensorboard=false"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "iteration    1/1" in done.stdout


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("Answer: 3", 1), ("So Answer: 12", 1), ("Answer: 2", 0), ("Answer: 13", 0), ("Answer: 3 Answer: 4", 0), ("", 0),
        ("Answer: 3000000000", 0), ("3", 0),
    ],
)  # fmt: skip
def test_what_it_rewards(here: Path, said: str, reward: int) -> None:
    """Start with 2: the answers 3 … 12 are right, and only one may be given."""
    main(["new", "env", "judged_one"])
    scope: dict[str, object] = {}
    exec(compile((here / "judged_one.py").read_text(), "judged_one.py", "exec"), scope)
    env = scope["JudgedOne"]()  # type: ignore[operator]
    task = env.tasks("train")[0]
    assert task.prompt == "Start with 2. Climb."
    turn = Turn(
        agent="solver", index=0, nth=0, shown="", observation=(), prompt_ids=(),
        completion=Completion(text=said, token_ids=(), logprobs=(), finish="stop", version=0),
    )  # fmt: skip
    assert env.reward(env.transition(env.reset(task), turn)) == Reward(team=float(reward), correct=bool(reward))


@pytest.mark.parametrize("name", ["numpy", "yaml", "torch", "json", "marft"])
def test_it_hides_no_module_that_is_there(here: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "env", name]) == 2
    assert "is a module that Python has already; choose another name" in capsys.readouterr().err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("there", ["taken.py", "taken.yaml"])
def test_it_never_writes_over_a_file(here: Path, there: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / there).write_text("mine")
    assert main(["new", "env", "taken"]) == 2
    assert capsys.readouterr().err == f"marft: {there} is there already; choose another name, or move it away\n"
    assert [(path.name, path.read_text()) for path in here.iterdir()] == [(there, "mine")]


@pytest.mark.parametrize("name", ["my-env", "2nd", "a b", "", "class", "../up", "a.b", "émeu", "json", "marft"])
def test_a_name_must_be_a_module(here: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "env", name]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert repr(name) in line
    assert list(here.iterdir()) == []


def test_another_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "env", "far", "nowhere"]) == 2
    assert capsys.readouterr().err == "marft: cannot write nowhere/far.py: No such file or directory\n"
    (here / "away").mkdir()
    assert main(["new", "env", "far", "away"]) == 0
    assert capsys.readouterr().out.startswith("wrote away/far.py and away/far.yaml; go on there with\n")
    assert sorted(path.name for path in (here / "away").iterdir()) == ["far.py", "far.yaml"]


def test_names_of_classes() -> None:
    assert [class_name(name) for name in ("guess", "word_hunt", "MyEnv", "_")] == ["Guess", "WordHunt", "MyEnv", "Env"]
