"""`marft compare`: each cell's config exactly, one budget for all, and a comparison that may be killed anywhere."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toys import ECHO, files

from marft.cli import main
from marft.commands import compare as comparing
from marft.config import Config, load_config, parse, to_yaml
from marft.evaluation.comparison.cells import (
    cell_config,
    frozen_config,
    make_question,
    single_config,
    vote_config,
    vote_count,
    with_budget,
)
from marft.evaluation.comparison.folder import Comparison, Question
from marft.runs.directory import RunDirectory
from marft.terminal.display import Display
from marft.training.collapse import Sign
from marft.training.guard import Collapsed
from marft.training.trainer import Trainer

SETTINGS = (*ECHO, "algorithm=grpo", "checkpoint.every=1", "optimizer.lr=0.05")
CELLS = ["team", "untuned", "single", "vote", "frozen planner"]


def asked(
    *overrides: str, recipe: str = "duo", seeds: int = 1, single: str | None = None, frozen: tuple[str, ...] = ()
) -> Question:
    return make_question(load_config(recipe, list(overrides)), seeds=seeds, single=single, frozen=frozen)


def changed(config: Config, **keys: Any) -> Config:
    """The config with some dotted keys (`train__budget`) at other values, the long way round."""
    data = config.model_dump(mode="json")
    for key, value in keys.items():
        *path, last = key.split("__")
        place = data
        for part in path:
            place = place[part]
        place[last] = value
    return parse(data)


# --- configs ----------------------------------------------------------------------------------------------------------
def test_the_team_is_the_config_as_it_is() -> None:
    question = asked("seed=5")
    for name in ("team", "untuned"):
        assert cell_config(question, name, seed=7, budget=99) == changed(question.config, seed=7)


def test_the_single_agent() -> None:
    """Everything as the last agent that learns, but for what it is told, sees, and may say."""
    config = load_config(
        "trio",
        [
            "team.agents.verifier.trainable=false", "team.agents.solver.temperature=0.7", "team.agents.solver.lr=0.5",
            "team.agents.solver.stop=[X]", "schedule=alternate", "schedule.interval=2", "credit=step_discounted",
        ],
    )  # fmt: skip
    solver = config.team.agents["solver"].model_dump(mode="json")
    alone = {**solver, "prompt": "Do it all.", "sees": [], "max_tokens": 24 + 48 + 48}
    assert single_config(config, "Do it all.") == changed(
        config, team__agents={"solver": alone}, schedule={"mode": "joint"}
    )


def test_the_single_agent_of_another_workflow() -> None:
    config = load_config("debate", ["team.anonymous=true"])
    found = single_config(config, "").team
    assert (found.workflow, found.settings, found.anonymous, list(found.agents)) == ("sequential", {}, True, ["judge"])


def test_the_single_agent_has_as_many_rounds_as_the_team() -> None:
    found = single_config(load_config("rounds"), "").team
    assert (found.workflow, found.settings) == ("rounds", {"rounds": 3})
    assert vote_config(single_config(load_config("rounds"), ""), 5).team.settings == {"votes": 5}


def test_a_frozen_agent() -> None:
    config = load_config(
        "trio", ["team.agents.planner.lr=0.5", "team.agents.planner.rank=2", "team.agents.planner.adapter=mind",
                 "schedule=sequential", "schedule.clip=1.3"],
    )  # fmt: skip
    assert frozen_config(config, "planner") == changed(
        config, team__agents__planner__trainable=False, team__agents__planner__lr=None,
        team__agents__planner__rank=None, team__agents__planner__adapter=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "mode"),
    [
        (["team.agents.verifier.trainable=false"], "joint"),
        (["team.agents.solver.adapter=mind", "team.agents.verifier.adapter=mind"], "joint"),
        ([], "alternate"),
    ],
)
def test_one_adapter_alone_is_trained_jointly(overrides: list[str], mode: str) -> None:
    config = load_config("trio", ["schedule=alternate", *overrides])
    assert frozen_config(config, "planner").schedule.mode == mode


def test_the_vote() -> None:
    single = single_config(load_config("duo"), "Do it all.")
    assert vote_config(single, 5) == changed(single, team__workflow="vote", team__votes=5)


@pytest.mark.parametrize(
    ("team", "answer", "votes"),
    [(60, 10, 6), (60, 25, 3), (64, 10, 6), (66, 10, 7), (9, 60, 3), (1e9, 1, 255), (9, 0, 9)],
)
def test_how_many_votes_take_the_teams_tokens(team: float, answer: float, votes: int) -> None:
    assert vote_count(team, answer) == votes


@pytest.mark.parametrize(("budget", "iterations"), [(1, 12), (12 * 256, 12), (12 * 256 + 1, 13), (256_000, 1000)])
def test_tokens_end_the_run_before_iterations_can(budget: int, iterations: int) -> None:
    """256 episodes an iteration generate a token each at least."""
    config = load_config("duo", ["train.budget=7"])
    assert with_budget(config, budget) == changed(config, train__budget=budget, train__iterations=iterations)


def test_a_cell_has_its_seed_its_budget_and_its_own_change() -> None:
    question = asked(recipe="trio", single="Do it all.", frozen=("solver", "planner", "solver"))
    assert question.cells == ["team", "untuned", "single", "vote", "frozen solver", "frozen planner"]
    seeded = changed(question.config, seed=3)
    assert cell_config(question, "single", seed=3, budget=999) == with_budget(single_config(seeded, "Do it all."), 999)
    assert cell_config(question, "frozen solver", seed=3, budget=999) == with_budget(
        frozen_config(seeded, "solver"), 999
    )


def test_who_is_frozen_and_what_the_single_agent_is_told_by_default() -> None:
    question = asked("team.agents.planner.trainable=false", "team.agents.verifier.trainable=false", recipe="quartet")
    assert question.frozen == ("solver",)
    assert question.single == question.config.team.agents["reflector"].prompt
    assert asked("team.agents.planner.trainable=false").frozen == ()
    assert asked(single="").single == ""
    assert asked("team.agents.solver.adapter=planner").frozen == ()
    assert asked("team.agents.solver.adapter=planner", recipe="trio").frozen == ("verifier",)


@pytest.mark.parametrize("recipe", ["dag", "debate", "octet", "orchestrated", "quartet", "rounds", "trio", "vote"])
def test_every_recipe_can_be_compared(recipe: str) -> None:
    assert asked(recipe=recipe).cells[:4] == CELLS[:4]


# --- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seeds", "0"], "--seeds 0: give 1 or more"),
        (["--seeds", "few"], "argument --seeds: invalid int value: 'few'"),
        (["seeds=3"], "unknown key 'seeds'; did you mean 'seed'?"),
        ([f"seed={2**63 - 2}"], "seed: "),  # the last of three is none
        (["--frozen", "plannr"], "--frozen plannr: unknown agent; did you mean 'planner'?; the team is planner, solver"),
        (
            ["trio", "--frozen", "planner", "team.agents.planner.trainable=false"],
            "--frozen planner: it does not learn anyway; those who do are solver, verifier",
        ),
        (
            ["--frozen", "planner", "team.agents.solver.adapter=planner"],
            "--frozen planner: others learn its adapter; freeze one who has an adapter of its own",
        ),
        (["eval.temperature=0"], "eval.temperature is 0: all votes would be the same answer; leave it out to compare"),
        (
            ["--frozen", "planner", "team.agents.solver.trainable=false"],
            "--frozen planner: nobody else on the team learns; drop it",
        ),
        (
            ["team.agents.planner.trainable=false", "team.agents.solver.trainable=false"],
            "no agent of this team learns, so there is nothing to compare",
        ),
        (["--single", "x", "team.anonymous=true"], "--single: agents of an anonymous team are told nothing"),
        (["eval.tasks=0"], "eval.tasks is 0"),
        (["team.agents.majority.prompt=x"], "a vote's result is announced by this name"),
        (["duo", "trio"], "one config at a time"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert expected in line
    assert list(tmp_path.iterdir()) == []


# --- whole comparisons ------------------------------------------------------------------------------------------------
def compare(path: Path, *more: str, seeds: int = 1) -> int:
    return main(["compare", *SETTINGS, "--run", str(path), "--seeds", str(seeds), *more])


def results(path: Path) -> dict[str, Any]:
    """compare.json without times."""
    found: dict[str, Any] = json.loads((path / "compare.json").read_text())
    for row in [*found["cells"], *found.get("report", {}).get("lines", [])]:
        del row["seconds"]
    return found


def rows(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["name"], row["seed"]): row for row in results(path)["cells"]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The comparison that nobody interrupts."""
    path = tmp_path_factory.mktemp("whole") / "comparison"
    assert compare(path) == 0
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "comparison")
    return tmp_path / "comparison"


def test_what_a_comparison_leaves(whole: Path) -> None:
    assert sorted(p.name for p in whole.iterdir()) == [
        "cells",
        "compare.json",
        "compare.md",
        "compare.png",
        "compare.yaml",
    ]
    assert sorted(p.name for p in (whole / "cells").iterdir()) == ["frozen-planner-seed0", "single-seed0", "team-seed0"]
    assert list(rows(whole)) == [(name, 0) for name in CELLS]
    assert results(whole)["report"]["verdict"] in (whole / "compare.md").read_text()
    question, budget = asked(*SETTINGS), rows(whole)["team", 0]["tokens_generated"]
    for name in ("team", "single", "frozen planner"):
        run = RunDirectory.open(whole / "cells" / f"{name.replace(' ', '-')}-seed0")
        assert run.config() == cell_config(question, name, seed=0, budget=budget)


def test_figures_and_costs_are_those_of_the_runs(whole: Path) -> None:
    found = rows(whole)
    summaries = {
        name: json.loads((whole / "cells" / f"{name.replace(' ', '-')}-seed0" / "summary.json").read_text())
        for name in ("team", "single", "frozen planner")
    }
    for name, summary in summaries.items():
        row, after = found[name, 0], summary["after"]
        assert {key: row[key] for key in ("accuracy", "accuracy_ci95", "reward", "tasks", "failed")} == {
            key: after[key] for key in ("accuracy", "accuracy_ci95", "reward", "tasks", "failed")
        }
        assert {"generated": row["tokens_generated"], "trained": row["tokens_trained"]} == summary["tokens"]
        assert row["iterations"] == summary["iterations"]
        assert row["tokens_per_task"] == pytest.approx(sum(after["tokens"].values()))  # each agent acts once
    before = summaries["team"]["before"]
    assert (found["untuned", 0]["accuracy"], found["untuned", 0]["reward"]) == (before["accuracy"], before["reward"])
    assert found["untuned", 0]["tokens_per_task"] == pytest.approx(sum(before["tokens"].values()))
    assert found["untuned", 0]["tokens_generated"] == 0


def test_all_have_the_same_budget_of_tokens(whole: Path) -> None:
    budget = rows(whole)["team", 0]["tokens_generated"]
    for name in ("single", "frozen-planner"):
        run = RunDirectory.open(whole / "cells" / f"{name}-seed0")
        spent = [row["tokens"]["rollout"] for row in run.metrics()]
        assert sum(spent[:-1]) < budget <= sum(spent)
        assert len(spent) < run.config().train.iterations


def test_the_vote_is_the_trained_single_agent_asked_often(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows(whole)
    vote, single, team = (found[name, 0] for name in ("vote", "single", "team"))
    assert vote["votes"] == max(3, round(team["tokens_per_task"] / single["tokens_per_task"]))
    capsys.readouterr()
    words = [str(whole / "cells" / "single-seed0"), "team.workflow=vote", f"team.votes={vote['votes']}"]
    assert main(["eval", "--json", "--run", str(tmp_path), *words]) == 0
    [row] = json.loads(capsys.readouterr().out)["benchmarks"].values()
    assert (vote["accuracy"], vote["reward"]) == (row["accuracy"], row["reward"])
    assert vote["tokens_per_task"] == pytest.approx(vote["votes"] * row["tokens"]["solver"])
    assert vote["tokens_generated"] == single["tokens_generated"]


def test_tokens_a_task_where_an_agent_acts_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["duo", *SETTINGS, "team.workflow=debate", "team.rounds=2"]
    assert main(["eval", "--json", "--run", str(tmp_path), *words]) == 0
    [row] = json.loads(capsys.readouterr().out)["benchmarks"].values()
    assert row["tokens_per_task"] == pytest.approx(2 * row["tokens"]["planner"] + row["tokens"]["solver"])


def before_each(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, do: Callable[..., None]) -> None:
    """Let `do` look at the arguments of every call, and perhaps raise, before it happens."""
    real = getattr(owner, method)

    def call(*arguments: Any, **named: Any) -> Any:
        do(*arguments)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, method, call)


def in_the_middle(trainer: Trainer) -> None:
    if trainer.run.path.name == "single-seed0" and trainer.position.iteration == 1:
        raise RuntimeError("killed")


def before_the_vote(comparison: Comparison, name: str, seed: int, display: Display) -> None:
    if name == "vote":
        raise RuntimeError("killed")


def test_killed_within_a_cell_and_between_cells(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends as if never interrupted, and nothing is done twice."""
    path = tmp_path / "comparison"
    started: list[str] = []
    iterations: list[str] = []
    before_each(monkeypatch, comparing, "start_run", lambda config, run: started.append(run.name))
    before_each(
        monkeypatch, Trainer, "iterate", lambda t: iterations.append(f"{t.run.path.name} {t.position.iteration}")
    )

    with monkeypatch.context() as patch:
        before_each(patch, Trainer, "iterate", in_the_middle)
        with pytest.raises(RuntimeError, match="killed"):
            compare(path)
    assert [name for name, _ in rows(path)] == ["team", "untuned"]
    team = files(path / "cells" / "team-seed0")

    with monkeypatch.context() as patch:
        before_each(patch, comparing, "make_cell", before_the_vote)
        with pytest.raises(RuntimeError, match="killed"):
            compare(path)
    assert [name for name, _ in rows(path)] == ["team", "untuned", "single"]
    assert "report" not in results(path)

    assert compare(path) == 0
    assert results(path) == results(whole)
    assert (path / "compare.png").read_bytes() == (whole / "compare.png").read_bytes()
    assert files(path / "cells" / "team-seed0") == team
    assert started == ["team-seed0", "single-seed0", "frozen-planner-seed0"]
    assert len(iterations) == len(set(iterations))


@pytest.mark.parametrize("name", ["single", "team"])
def test_a_cell_that_collapses_is_recorded_and_the_others_go_on(
    name: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The team's tokens until then are the others' budget; an agent that collapsed has nothing to vote."""
    path = tmp_path / "comparison"
    line = "solver says nothing any more"

    def collapse(trainer: Trainer) -> None:
        if trainer.run.path.name == f"{name}-seed0" and trainer.position.iteration == 1:
            sign = Sign(name="not finite", agent="solver", line=line, since=2, good=1, collapsed=True)
            raise Collapsed(sign)

    before_each(monkeypatch, Trainer, "iterate", collapse)
    assert compare(path) == 0
    shown = capsys.readouterr().out
    assert (
        f"{name}, seed 0: the run has collapsed and stops: {line} (since iteration 2). The comparison goes on" in shown
    )
    found, usual = rows(path), rows(whole)
    assert list(found) == [(each, 0) for each in CELLS]
    gone = {each for each, _ in found if found[each, 0]["collapsed"]}
    assert gone == ({"single", "vote"} if name == "single" else {"team"})
    [row] = RunDirectory.open(path / "cells" / f"{name}-seed0").metrics()
    assert {key: found[name, 0][key] for key in ("reward", "accuracy", "accuracy_ci95", "iterations", "tokens_generated")} == {
        "reward": None, "accuracy": None, "accuracy_ci95": None, "iterations": 1, "tokens_generated": row["tokens"]["rollout"],
    }  # fmt: skip
    assert found["untuned", 0] == usual["untuned", 0]
    if name == "single":
        assert found["frozen planner", 0] == usual["frozen planner", 0]
    else:
        assert RunDirectory.open(path / "cells" / "single-seed0").config().train.budget == row["tokens"]["rollout"]
    assert f"| {name} | collapsed |" in (path / "compare.md").read_text()

    monkeypatch.delattr(Trainer, "iterate")
    before = results(path)
    assert compare(path) == 0
    assert results(path) == before


def test_a_killed_record_of_a_finished_run(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after the last cell's training and before it was written down: the run is not trained again."""
    expected = results(copy)
    data = json.loads((copy / "compare.json").read_text())
    del data["report"], data["cells"][-1]
    (copy / "compare.json").write_text(json.dumps(data))
    monkeypatch.delattr(Trainer, "iterate")
    assert compare(copy) == 0
    assert results(copy) == expected


def test_a_second_seed_and_json(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = rows(copy)
    capsys.readouterr()
    assert compare(copy, "--json", seeds=2) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads((copy / "compare.json").read_text())
    found = rows(copy)
    assert list(found) == [(name, seed) for seed in (0, 1) for name in CELLS]
    assert {key: found[key] for key in first} == first
    assert RunDirectory.open(copy / "cells" / "single-seed1").config().seed == 1
    assert found["team", 1] != {**found["team", 0], "seed": 1}
    lines = [line for line in err.splitlines() if line.startswith("cell ")]
    assert lines[0] == "cell 1 of 10: team, seed 0; done before"
    assert lines[5] == "cell 6 of 10: team, seed 1; the tokens it takes are the budget of the others"
    assert lines[7] == f"cell 8 of 10: single, seed 1; budget {found['team', 1]['tokens_generated']:,} tokens"
    assert lines[8] == "cell 9 of 10: vote, seed 1; evaluation only"
    assert "iteration    1" in err
    score = results(copy)["report"]["lines"][0]["score"]
    assert math.isclose(score["value"], (found["team", 0]["accuracy"] + found["team", 1]["accuracy"]) / 2)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            ["optimizer.lr=0.1"],
            "compares something else: optimizer.lr is 0.05 there and 0.1 here; choose another --run",
        ),
        (["--single", "Do it all."], '"Do it all." here; choose another --run'),
        (["--frozen", "solver"], '--frozen is ["planner"] there and ["solver"] here; choose another --run'),
    ],
)
def test_another_question_in_the_same_folder(
    whole: Path, more: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (whole / "compare.json").read_bytes()
    capsys.readouterr()
    assert compare(whole, *more) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert expected in line
    assert (whole / "compare.json").read_bytes() == before


def test_a_cell_that_somebody_trained_otherwise(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads((copy / "compare.json").read_text())
    data["cells"] = data["cells"][:2]
    data["cells"][0]["tokens_generated"] -= 1  # so that the single agent's budget is another than that of its run
    (copy / "compare.json").write_text(json.dumps(data))
    capsys.readouterr()
    assert compare(copy) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "single-seed0 belongs to a run with another config: train.budget is" in line


def test_comparisons_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.team.yaml").write_text(to_yaml(load_config("duo")))
    Path("runs/compare-duo-1").mkdir(parents=True)
    made: list[Path] = []
    monkeypatch.setattr(comparing, "compare", lambda question, path, display: made.append(path))
    for words in ([], ["trio"], ["my.team.yaml"]):
        assert main(["compare", *words]) == 0
    assert made == [Path("runs/compare-duo-2"), Path("runs/compare-trio-1"), Path("runs/compare-my.team-1")]
