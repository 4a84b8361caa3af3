"""Training from Python with classes and functions, and going on with it from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toys
import yaml
from toys import TINY, Echo, without_progress

import marft
from marft.algorithms.batch import Batch, Estimate, Scores
from marft.algorithms.grpo import Grpo
from marft.cli import main
from marft.config import merge
from marft.envs.hosting import InProcess, Pool
from marft.rollouts.credit import Equal
from marft.runs.directory import RunDirectory
from marft.types import MarftError

SMALL = merge({}, [word for word in TINY if not word.startswith("team.")])
AGENTS = {"planner": {"prompt": "Plan.", "max_tokens": 5}, "solver": {"prompt": "Solve.", "max_tokens": 5}}


def config_of(run: Path) -> dict[str, Any]:
    return yaml.safe_load((run / "config.yaml").read_text())  # type: ignore[no-any-return]


def one_line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    [line] = without_progress(capsys.readouterr().err)
    return line


def test_what_is_importable_goes_on_from_the_command_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    summary = marft.train(run=run, env={"name": Echo, "size": 4}, workflow=toys.both, agents=AGENTS, **SMALL)
    assert summary["iterations"] == 2
    assert config_of(run)["env"] == {
        "name": "toys:Echo", "deadline": 60.0, "tasks_deadline": None, "workers": None, "size": 4,
    }  # fmt: skip
    assert config_of(run)["team"]["workflow"] == "toys:both"
    assert main(["train", "--resume", "--run", str(run), "train.iterations=3"]) == 0
    assert main(["play", str(run)]) == 0
    assert main(["eval", str(run), "--run", str(tmp_path / "eval")]) == 0
    assert (RunDirectory(run).summary() or {})["iterations"] == 3


SCRIPT = """
import sys
import marft
from toys import Echo
from test_train import AGENTS, SMALL

class Mine(Echo):
    light = False

async def in_turn(game):
    await game.act("planner")
    await game.act("solver")

if __name__ == "__main__":
    marft.train(run="run", env={"name": Mine, "size": 4}, workflow=in_turn, agents=AGENTS, **SMALL)
    marft.train(run="run", resume=True, train={"iterations": 3})  # all of it lies in this very __main__
    with marft.load("run") as team:
        assert len(team.tasks()) == 4
        print(type(team.play().ended))
"""


def test_a_script_and_then_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train_it.py").write_text(SCRIPT)
    path = [str(Path(__file__).parents[1]), str(Path(__file__).parent), str(Path(marft.__file__).parents[1])]
    subprocess.run(
        [sys.executable, "train_it.py"],
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    run = tmp_path / "run"
    assert config_of(run)["env"]["name"] == "__main__:Mine"
    for command in (["play", "run"], ["eval", "run"], ["train", "--resume", "--run", "run"]):
        line = one_line(capsys, *command)
        assert line.startswith("marft: env.name: '__main__:Mine' was given from Python and lies in no file")
        assert "give env.name=mine:Mine" in line
    (tmp_path / "mine.py").write_text(SCRIPT)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    words = ["env.name=mine:Mine", "team.workflow=mine:in_turn"]
    assert main(["play", "run", *words]) == 0
    assert main(["train", "--resume", "--run", "run", "train.iterations=4", *words]) == 0
    assert config_of(run)["env"] == {
        "name": "mine:Mine",
        "deadline": 60.0,
        "tasks_deadline": None,
        "workers": None,
        "size": 4,
    }
    assert main(["play", "run"]) == 0  # the run knows where they are now
    assert "cannot resume run with another env.name" in one_line(
        capsys, "train", "--resume", "--run", "run", "env.name=toys:Echo"
    )


def speaker(text: str) -> Callable[[Sequence[marft.Message]], str]:
    def speak(messages: Sequence[marft.Message]) -> str:
        return f"{text} of {len(messages)}"

    return speak


def team(first: str, second: str) -> dict[str, Any]:
    return {
        "one": {"script": speaker(first)},
        "two": {"script": speaker(second)},
        "solver": {"prompt": "Solve.", "max_tokens": 5},
    }


def test_scripts_as_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    marft.train(run=run, env=Echo, agents=team("a", "b"), **SMALL)
    stored = {name: agent["script"] for name, agent in config_of(run)["team"]["agents"].items()}
    assert stored == {
        "one": f"{__name__}:speaker.<locals>.speak",
        "two": f"{__name__}:speaker.<locals>.speak<2>",
        "solver": None,
    }
    episode = marft.play(run, agents=team("c", "d"))
    assert [turn.text for turn in episode.turns[:2]] == ["c of 2", "d of 2"]
    assert "agents' script: " in one_line(capsys, "play", str(run))
    marft.train(resume=True, run=run, agents=team("a", "b"), train={"iterations": 3})
    with pytest.raises(marft.MarftError, match=r"cannot resume .* with another team\.agents\.one\.script"):
        marft.train(resume=True, run=run, agents={"one": {"script": toys.files}})


def test_tools_as_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def echo(text: str) -> str:
        asked.append(text)
        return "fine"

    agents = {
        "one": {
            "script": lambda messages: "so" if "fine" in messages[-1].content else "<echo>hi</echo>",
            "tools": [echo],
        },
        "solver": {"prompt": "Solve.", "max_tokens": 5},
    }
    run = tmp_path / "run"
    marft.train(run=run, env=Echo, agents=agents, **SMALL)
    assert config_of(run)["team"]["agents"]["one"]["tools"] == [f"{__name__}:test_tools_as_functions.<locals>.echo"]
    assert set(asked) == {"hi"}
    line = one_line(capsys, "play", str(run), "team.agents.one.script=toys:files")
    assert "give team.agents.NAME.tools=mine:echo; or stay in Python: marft.load(RUN, agents={'NAME'" in line


def test_resuming_with_another_class_is_refused(tmp_path: Path) -> None:
    class Local(Echo):
        pass

    class Other(Echo):
        pass

    run = tmp_path / "run"
    summary = marft.train(run=run, env={"name": Local, "size": 4}, agents=AGENTS, **SMALL)
    with pytest.raises(marft.MarftError, match=r"env\.name: .*Local' was given from Python"):
        marft.train(resume=True, run=run)
    with pytest.raises(marft.MarftError, match=r"cannot resume .* with another env\.name"):
        marft.train(resume=True, run=run, env=Other)
    assert marft.train(resume=True, run=run, env=Local) == summary


def test_a_class_that_only_this_process_knows_stays_in_it() -> None:
    class Heavy(Echo):
        light = False

    with marft.load("duo", env=Heavy) as team:
        assert isinstance(team._open.runner.host, InProcess)
        assert team.play(0).ended == "terminated"


def test_an_importable_class_runs_in_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_env.py").write_text("from toys import Echo\n\n\nclass Heavy(Echo):\n    light = False\n")
    monkeypatch.syspath_prepend(tmp_path)
    import heavy_env  # type: ignore[import-not-found]

    with marft.load("duo", env={"name": heavy_env.Heavy, "workers": 1}) as team:
        assert isinstance(team._open.runner.host, Pool)
        assert team.play(0).ended == "terminated"


def test_benchmarks_by_class(tmp_path: Path) -> None:
    class Hard(Echo):
        pass

    given = {"tasks": 2, "benchmarks": {"hard": {"name": Hard, "size": 3}}}
    summary = marft.train(run=tmp_path / "run", env=Hard, agents=AGENTS, **{**SMALL, "eval": given})
    assert summary["after"]["benchmarks"]["hard"]["tasks"] == 2


def sync(game: object) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"env": Echo()}, "env: give the class, Echo, and its settings as {'name': Echo, …}, not an object made of it"),
        ({"env": {"name": Echo()}}, "env.name: give the class, Echo,"),
        ({"env": int}, "env: give a name or a subclass of marft.Environment, not type"),
        ({"env": {"name": Echo, "size": Path("x")}}, "env.size: settings are saved with the run, so give plain values"),
        ({"env": {"name": Echo, "sizes": 3}}, "unknown key 'env.sizes'; did you mean 'env.size'?; settings of toys:Echo: size"),
        ({"workflow": sync}, "workflow is not an async function"),
        ({"workflow": "debat"}, "team.workflow: unknown workflow 'debat'; did you mean 'debate'?"),
        ({"agents": {"a": {"script": 3}}}, "team.agents.a.script: give a function of the messages it sees, or its name"),
        ({"agents": {"a": 3}}, "team.agents.a: give its keys"),
        ({"at": 3}, "at goes with resume=True"),
        ({"resume": True}, "resume=True takes run=DIR"),
        ({"resume": True, "run": "x", "source": "duo"}, "resume=True takes run=DIR, and not a recipe or a file"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    arguments: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(marft.MarftError) as caught:
        marft.train(**arguments)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_given_agents_are_the_whole_team(tmp_path: Path) -> None:
    with marft.load("duo", env=Echo, agents={"alone": "You are alone."}) as team:
        assert list(team.config.team.agents) == ["alone"]
        assert team.config.team.agents["alone"].prompt == "You are alone."


def test_an_algorithm_and_a_credit_of_ones_own_are_classes(tmp_path: Path) -> None:
    """Also ones that no import finds: the run's config names them, and another process is told what to do."""
    seen: list[float] = []

    class Mine(Grpo):
        scale: float = 1.0

        def estimate(self, batch: Batch, scores: Scores) -> Estimate:
            seen.append(self.scale)
            found = super().estimate(batch, scores)
            return replace(found, advantages_N=self.scale * found.advantages_N)

    class Last(Equal):
        pass

    run = tmp_path / "run"
    settings = {**SMALL, "algorithm": {"name": Mine, "scale": 0.5}, "credit": Last}
    marft.train(run=run, env=Echo, agents=AGENTS, **settings)
    assert set(seen) == {0.5}
    with pytest.raises(
        MarftError, match=r"algorithm\.name: .*Mine' was given from Python .* algorithm=\{'name': Mine, …\}"
    ):
        marft.load(run)
    with marft.load(run, algorithm=Mine, credit=Last) as team:
        assert team.evaluate(tasks=2, run=tmp_path / "eval").figures.tasks == 2
    with pytest.raises(MarftError, match="give the class, Mine, and its settings"):
        marft.train(run=tmp_path / "other", env=Echo, agents=AGENTS, **{**SMALL, "algorithm": Mine()})
