"""`marft eval` as a whole: what is played, that it may be killed anywhere, and what it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import toys
from quick import config_of, models_in_memory, seated
from toys import ECHO

from marft.cli import main
from marft.config import Config
from marft.engines.scripted import ScriptedEngine
from marft.envs.hosting import InProcess
from marft.evaluation.benchmarks import eval_settings, read_benchmarks
from marft.evaluation.chunks import answer_text, extract_answers, plan_chunks, text_with_digest, with_silent_agent
from marft.evaluation.evaluate import evaluate_benchmarks
from marft.evaluation.folder import Evaluation, Record
from marft.evaluation.held_out import evaluate_held_out
from marft.game.agent import Agent
from marft.game.lockstep import Lockstep
from marft.game.workflows import find_workflow
from marft.rollouts.runner import EpisodeRunner, Start
from marft.terminal.display import Display
from marft.types import MarftError, Request, Sampling, Task

EVAL: dict[str, Any] = {"tasks": 3, "samples": 2}


def measured(path: Path, **changes: Any) -> Path:
    config, parts = config_of(**changes), seated(**changes)
    evaluate_benchmarks(config, parts, path, Display())
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return toys.rows(path / "episodes.jsonl")


def results(path: Path) -> Any:
    """Without the times."""

    def timeless(found: Any) -> Any:
        if not isinstance(found, dict):
            return found
        return {key: timeless(value) for key, value in found.items() if key != "seconds"}

    return timeless(json.loads((path / "results.json").read_text()))


# --- what is played ---------------------------------------------------------------------------------------------------
def test_every_sample_of_every_task_in_order(tmp_path: Path) -> None:
    found = rows(measured(tmp_path / "e", eval=EVAL))
    assert [(row["task"], row["sample"]) for row in found] == [(f"test/{i}", s) for i in range(3) for s in range(2)]
    assert {(row["benchmark"], row["silent"]) for row in found} == {("toys:Echo", None)}
    for row in found:
        assert [turn["agent"] for turn in row["turns"]] == ["ann", "bob"]
        assert row["tokens"].keys() == {"ann", "bob"}
    assert len({row["answer"] for row in found}) > 2  # samples have luck of their own


def test_one_sample_gives_the_figures_of_an_evaluation_in_training(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"eval": {"tasks": 4, "temperature": 0.5}}
    [row] = results(measured(tmp_path / "e", **changes))["benchmarks"].values()
    config = config_of(**changes)
    inside = evaluate_held_out(seated(**changes).runner, eval_settings(config), config.seed, Lockstep())
    assert {key: row[key] for key in inside} == inside
    assert row["pass@k"] == row["maj@k"] == {"1": row["accuracy"]}


def test_luck_follows_from_task_and_sample_alone(tmp_path: Path) -> None:
    """More samples, fewer tasks and other chunks leave the first samples as they are."""
    few = rows(measured(tmp_path / "few", eval={"tasks": 2}))
    many = rows(measured(tmp_path / "many", eval={"tasks": 3, "samples": 3}, engine={"slots": 1}))
    assert few == [row for row in many if row["sample"] == 0 and row["task"] != "test/2"]
    other = rows(measured(tmp_path / "other", eval={"tasks": 2}, seed=1))
    assert [row["answer"] for row in few] != [row["answer"] for row in other]


def test_a_chunk_is_twice_what_is_generated_at_once() -> None:
    changes: dict[str, Any] = {"eval": {**EVAL, "ablate": True}, "engine": {"slots": 2}}
    config = config_of(**changes)
    chunks = plan_chunks(config, read_benchmarks(config, seated(**changes)))
    assert [(chunk[0].silent, len(chunk)) for chunk in chunks] == [
        (None, 4), (None, 2), ("ann", 4), ("ann", 2), ("bob", 4), ("bob", 2),
    ]  # fmt: skip


def test_a_silent_agent_says_nothing_and_the_others_have_the_same_luck(tmp_path: Path) -> None:
    path = measured(tmp_path / "e", eval={**EVAL, "ablate": True})
    found = rows(path)
    of = {silent: [row for row in found if row["silent"] == silent] for silent in (None, "ann", "bob")}
    assert [len(each) for each in of.values()] == [6, 6, 6]
    for team, without_bob, without_ann in zip(of[None], of["bob"], of["ann"], strict=True):
        assert without_bob["tokens"] == {"ann": team["tokens"]["ann"], "bob": 0}
        assert without_bob["answer"] is None
        assert without_ann["tokens"]["ann"] == 0
    [row] = results(path)["benchmarks"].values()
    assert list(row["ablations"]) == ["ann", "bob"]
    for silent, told in row["ablations"].items():
        own = [each["correct"] for each in of[silent]]
        assert told["accuracy"] == pytest.approx(sum(own) / 6)
        assert told["accuracy_drop"] == pytest.approx(row["accuracy"] - told["accuracy"])
        assert told["reward_drop"] == pytest.approx(row["reward"] - told["reward"])


def test_what_others_see_of_a_silent_agent() -> None:
    seen: list[str] = []

    def speak(request: Request) -> str:
        seen.append(request.messages[-1].content)
        return "hello"

    team = {
        name: Agent(name=name, prompt="", sees=None, adapter=name, sampling=Sampling(max_tokens=9), engine=ScriptedEngine(speak))
        for name in ("ann", "bob")
    }  # fmt: skip
    runner = EpisodeRunner(
        team=with_silent_agent(team, "ann"), host=InProcess(toys.Echo()), workflow=find_workflow("sequential")
    )
    [episode] = asyncio.run(runner.episodes([Start(task=Task(id="t", prompt="Go."), sample=0)], "0"))
    assert [turn.text for turn in episode.turns] == ["", "hello"]
    assert episode.turns[0].completion.token_ids == ()
    assert seen == ["Go.\n\nann: "]
    assert with_silent_agent(team, None) == team


# --- benchmarks -------------------------------------------------------------------------------------------------------
def test_several_benchmarks(tmp_path: Path) -> None:
    benchmarks: dict[str, Any] = {"few": {"size": 2}, "flaky": {"name": "toys:Flaky"}}
    path = measured(tmp_path / "e", eval={"tasks": 4, "samples": 2, "benchmarks": benchmarks})
    found = results(path)
    assert {name: row["tasks"] for name, row in found["benchmarks"].items()} == {"few": 2, "flaky": 4}
    mean = (found["benchmarks"]["few"]["accuracy"] + found["benchmarks"]["flaky"]["accuracy"]) / 2
    assert found["macro"]["accuracy"] == pytest.approx(mean)
    own = measured(tmp_path / "own", eval={"tasks": 2, "samples": 2})
    [alone] = results(own)["benchmarks"].values()
    assert found["benchmarks"]["few"] == alone
    assert [line.split(" |")[0] for line in (path / "results.md").read_text().splitlines()[4:7]] == [
        "| few", "| flaky", "| mean",
    ]  # fmt: skip


def test_a_benchmark_in_other_processes(tmp_path: Path) -> None:
    """Who answers 4 to everything is right once in two tasks, and its majority too."""
    sums = tmp_path / "sums.jsonl"
    sums.write_text("".join(f'{{"prompt": "{i} + {4 - i}?", "answer": "{4 + i % 2}"}}\n' for i in range(20)))
    benchmark = {"name": "math", "data": str(sums), "test": str(sums), "workers": 2}
    changes: dict[str, Any] = {
        "eval": {"tasks": 99, "samples": 3, "benchmarks": {"sums": benchmark}},
        "team": {"agents": {"bob": {"prompt": "", "script": "test_evaluate:four", "max_tokens": 64}}},
    }
    path = measured(tmp_path / "e", **changes)
    found = rows(path)
    assert {row["answer"] for row in found} == {"4"}
    [row] = results(path)["benchmarks"].values()
    assert row["tasks"] * 3 == len(found)
    assert row["accuracy"] == row["maj@k"]["3"] == sum(row["correct"] for row in found) / len(found)
    assert 0 < row["accuracy"] < 1


def four(messages: Any) -> str:
    return "It is \\boxed{4}."


def test_failed_episodes_are_wrong_and_say_why(tmp_path: Path) -> None:
    path = measured(tmp_path / "e", env="toys:Flaky", eval={"tasks": 5, "samples": 8})
    failed = [row for row in rows(path) if row["error"]]
    assert failed
    assert {row["error"] for row in failed} == {"environment.reward raised RuntimeError: illegible"}
    assert {(row["reward"], row["correct"], row["answer"]) for row in failed} == {(0.0, None, None)}
    [row] = results(path)["benchmarks"].values()
    assert row["failed"] == len(failed)
    assert row["errors"] == {"environment.reward raised RuntimeError: illegible": len(failed)}
    assert row["accuracy"] == pytest.approx(sum(bool(each["correct"]) for each in rows(path)) / 40)
    assert f"{len(failed)} of 40 episodes failed and count as wrong" in (path / "results.md").read_text()


def test_tasks_need_ids_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toys.Echo, "tasks", lambda self, split: [Task(id="t", prompt=p) for p in "ab"])
    with pytest.raises(MarftError, match="toys:Echo: two held-out tasks have the same id; give each its own"):
        measured(tmp_path / "e", eval=EVAL)
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"eval": {"tasks": 0}}, "eval.tasks is 0: say how many"),
        ({"eval": {**EVAL, "ablate": True}, "team": {"agents": {"bob": None}}}, "eval.ablate: without its only agent"),
        (
            {"eval": {**EVAL, "benchmarks": {"x": {"sise": 3}}}},
            "benchmark x: unknown key 'eval.benchmarks.x.sise'; did you mean 'eval.benchmarks.x.size'?; settings",
        ),
        (
            {"eval": {**EVAL, "benchmarks": {"x": {"name": "toys:NoTasks"}}}},
            "benchmark x: environment.tasks('test')",
        ),
        ({"eval": {**EVAL, "benchmarks": ["aime"]}}, "benchmark aime: unknown key 'eval.benchmarks.aime.data'"),
    ],
)
def test_what_cannot_be_measured_leaves_no_folder(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(MarftError) as caught:
        measured(tmp_path / "e", **changes)
    assert str(caught.value).startswith(expected)
    assert not (tmp_path / "e").exists()


# --- killed anywhere --------------------------------------------------------------------------------------------------
LONG: dict[str, Any] = {
    "eval": {"tasks": 5, "samples": 2, "ablate": True, "benchmarks": {"one": {}, "two": {"size": 3}}},
    "engine": {"slots": 2},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured(tmp_path_factory.mktemp("whole") / "e", **LONG)


@pytest.mark.parametrize("after", [0, 1, 4, 9, 14])
@pytest.mark.parametrize("torn", [0, 700])
def test_killed_and_gone_on_with_it_gives_the_same(tmp_path: Path, whole: Path, after: int, torn: int) -> None:
    """After some chunks, with some bytes of the last one missing."""
    written = 0
    real = Evaluation.append

    def append(self: Evaluation, played: list[Record]) -> None:
        nonlocal written
        if written == after:
            raise KeyboardInterrupt
        real(self, played)
        written += 1

    with patch.object(Evaluation, "append", append), pytest.raises(KeyboardInterrupt):
        measured(tmp_path / "e", **LONG)
    assert not (tmp_path / "e" / "results.json").exists()
    path = tmp_path / "e" / "episodes.jsonl"
    path.write_bytes(path.read_bytes()[: max(0, path.stat().st_size - torn)])
    measured(tmp_path / "e", **LONG)
    assert rows(tmp_path / "e") == rows(whole)
    assert results(tmp_path / "e") == results(whole)


def test_what_is_done_is_not_played_again(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(*arguments: Any) -> None:
        raise AssertionError("played again")

    before = {name: (whole / name).read_bytes() for name in ("episodes.jsonl", "results.json", "results.md")}
    monkeypatch.setattr("marft.evaluation.evaluate.play_chunk", play)
    measured(whole, **LONG)
    assert {name: (whole / name).read_bytes() for name in before} == before


def test_other_weights_are_refused(tmp_path: Path) -> None:
    config, parts = config_of(eval=EVAL), seated(eval=EVAL)
    evaluate_benchmarks(config, parts, tmp_path / "e", Display())
    weight = next(iter(parts.teams[0].trainable_parameters("bob").values()))
    weight.data[0, 0] += 1
    with pytest.raises(MarftError, match="evaluates other weights"):
        evaluate_benchmarks(config, parts, tmp_path / "e", Display())


def test_other_tasks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(tmp_path / "e", eval=EVAL)
    monkeypatch.setattr(toys.Echo, "tasks", lambda self, split: [Task(id=f"test/{i}", prompt="x") for i in range(3)])
    with pytest.raises(MarftError, match="evaluates other tasks: those of 'toys:Echo' have changed"):
        measured(tmp_path / "e", eval=EVAL)


# --- answers ----------------------------------------------------------------------------------------------------------
class Answers(toys.Echo):
    """Answers what a message says it does."""

    def answer(self, text: str) -> Any:
        if text == "raise":
            raise RuntimeError("illegible")
        return {"list": [1], "none": None}.get(text, text)


def test_the_last_message_that_the_environment_heard_is_asked_for_its_answer() -> None:
    said = iter(["first", "aside", "x", "raise", "x", "list", "x", "none"])
    voice = ScriptedEngine(lambda request: next(said))
    agent = Agent(name="a", prompt="", sees=None, adapter=None, sampling=Sampling(max_tokens=99), engine=voice)

    async def twice(game: Any) -> None:
        await game.act("a")
        await game.act("a", aside=game.task.id == "0")

    runner = EpisodeRunner(team={"a": agent}, host=InProcess(Answers()), workflow=twice)

    async def ask(number: int) -> Hashable | None:
        [episode] = await runner.episodes([Start(task=Task(id=str(number), prompt=""), sample=0)], "0")
        failed = replace(episode, ended="failed", error="x")
        assert await extract_answers(runner, [failed, replace(episode, turns=())]) == [None, None]
        [found] = await extract_answers(runner, [episode])
        return found

    assert [asyncio.run(ask(i)) for i in range(4)] == ["first", None, None, None]


@pytest.mark.parametrize(
    ("one", "two"),
    [(3, 3.0), (-0.0, 0), (True, 1), ((1, 2.0), (1.0, 2)), (frozenset("abc"), frozenset("cba")), (frozenset({(1,)}), frozenset({(1.0,)}))],
)  # fmt: skip
def test_equal_answers_have_equal_texts(one: Hashable, two: Hashable) -> None:
    assert one == two
    assert answer_text(one) == answer_text(two)


def test_other_answers_have_other_texts() -> None:
    found: list[Hashable] = [
        3, 3.5, "a", "ab", (1, 2), (12,), frozenset({1, 2}), float("inf"), float("nan"), Fraction(1, 2), b"a", 10**400,
    ]  # fmt: skip
    assert len(set(map(answer_text, found))) == len(found)
    assert answer_text("x" * 500) == "x" * 500


def test_a_long_answer_is_its_beginning_and_a_hash() -> None:
    assert text_with_digest("x" * 200) == "x" * 200
    long = [text_with_digest("x" * 500 + end) for end in ("", "y", "\ud800")]
    assert len(set(long)) == 3
    assert all(text.startswith("x" * 200 + "… ") and len(text) == 218 for text in long)


# --- the command ------------------------------------------------------------------------------------------------------
@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", *ECHO, "eval.tasks=2", "eval.samples=2"]
    assert main([*words, "--ablate"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    first = here / "runs" / "eval-duo-1"
    assert "\nevaluation in runs/eval-duo-1; should it be stopped, the same command with --run " in out
    for part in ("toys:Echo", "2 × 2", "pass@2", "maj@2", "planner", "solver", "paired by task", "results.md"):
        assert part in out
    assert {path.name for path in first.iterdir()} == {
        "eval.yaml", "manifest.json", "episodes.jsonl", "results.json", "results.md",
    }  # fmt: skip

    assert main([*words, "--ablate", "--json", "--run", str(first)]) == 0  # goes on: nothing is left to do
    out, err = capsys.readouterr()
    assert out == (first / "results.json").read_text()
    assert "evaluation in" in err
    assert list(json.loads(out)["benchmarks"]["toys:Echo"]["ablations"]) == ["planner", "solver"]

    assert main([*words, "--run", str(first)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("evaluates something else: eval.ablate is true there and false here; choose another --run")
    assert main([*words, "seed=1"]) == 0
    assert (here / "runs" / "eval-duo-2" / "results.json").exists()


def test_settings_are_those_of_the_config() -> None:
    config: Config = config_of(eval={"samples": 6, "k": [4, 2, 4]})
    assert config.eval.ks == (2, 4)
    assert config_of(eval={"samples": 6}).eval.ks == (1, 6)
    assert config_of().eval.ks == (1,)
    with models_in_memory():
        assert config_of(eval={"benchmarks": ["x"]}).eval.benchmarks["x"].given == {"data": "x"}
