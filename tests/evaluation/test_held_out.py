"""Evaluation: how held-out tasks are played, and the figures that come of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import toys
from quick import config_of, resume, start

from marft.config import parse, parse_yaml, to_yaml
from marft.engines.scripted import ScriptedEngine
from marft.envs.hosting import InProcess
from marft.evaluation.benchmarks import EvalSettings, eval_settings, with_settings
from marft.evaluation.held_out import evaluate_held_out, summarise_episodes
from marft.evaluation.intervals import wilson_interval
from marft.game.agent import Agent
from marft.game.lockstep import Lockstep
from marft.game.workflows import find_workflow
from marft.rollouts.runner import EpisodeRunner
from marft.types import Completion, Episode, Request, Reward, Sampling, Task, Turn

OWN = Sampling(temperature=0.7, top_p=0.9, top_k=5, max_tokens=11, stop=("!",))
ASIS = EvalSettings(tasks=3, temperature=None, top_p=None, top_k=None)


def runner(asked: list[Request], env: Any = None) -> EpisodeRunner:
    def speak(request: Request) -> str:
        asked.append(request)
        return f"{len(request.messages[-1].content)}"

    agent = Agent(name="a", prompt="", sees=None, adapter="a", sampling=OWN, engine=ScriptedEngine(speak))
    return EpisodeRunner(team={"a": agent}, host=InProcess(env or toys.Echo()), workflow=find_workflow("sequential"))


def episode(**more: Any) -> Episode:
    correct = more.pop("correct", None)
    lengths = more.pop("lengths", ())
    turns = tuple(
        Turn(
            agent="ab"[k % 2], index=k, nth=k // 2, shown="", observation=(), prompt_ids=(),
            completion=Completion(text="", token_ids=(5,) * n, logprobs=(0.0,) * n, finish="stop", version=0),
        )
        for k, n in enumerate(lengths)
    )  # fmt: skip
    reward = Reward(team=more.pop("reward", 0.0), correct=correct)
    return Episode(task=Task(id="t", prompt=""), sample=0, turns=turns, reward=reward, **more)


# --- how --------------------------------------------------------------------------------------------------------------
def test_what_is_not_given_is_each_agent_s_own() -> None:
    asked: list[Request] = []
    agent = runner(asked).team["a"]
    assert with_settings(agent, ASIS) == agent
    changes: list[dict[str, Any]] = [{"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 0}]
    for change in changes:
        assert with_settings(agent, replace(ASIS, **change)) == replace(agent, sampling=replace(OWN, **change))
    evaluate_held_out(runner(asked), replace(ASIS, temperature=0.0, top_p=1.0), seed=0, lockstep=Lockstep())
    assert {request.sampling for request in asked} == {replace(OWN, temperature=0.0, top_p=1.0)}


def test_the_config_decides() -> None:
    assert eval_settings(config_of()) == EvalSettings(tasks=0, temperature=None, top_p=None, top_k=None)
    given = {"tasks": 7, "temperature": 0.25, "top_p": 0.5, "top_k": 3}
    assert eval_settings(config_of(eval=given)) == EvalSettings(tasks=7, temperature=0.25, top_p=0.5, top_k=3)


HOST = {"deadline": 60.0, "tasks_deadline": None, "workers": None}


def test_a_benchmark_is_laid_over_the_runs_own_environment() -> None:
    own = {"name": "x:Y", "data": "mine", "test": "held_out.jsonl", "prompt": "question", "level": 3, "deadline": 5}
    given = {
        "same": {"level": 4},
        "another set": {"data": "aime"},
        "another file": {"test": "other.jsonl", "workers": 1},
        "another env": {"name": "code", "data": "mbpp", "deadline": 7},
    }
    found = eval_settings(config_of(env=own, eval={"benchmarks": given})).benchmarks
    all_of_it = {**HOST, **own}
    assert found == {
        "same": {**all_of_it, "level": 4},
        "another set": {**HOST, "deadline": 5, "name": "x:Y", "data": "aime", "level": 3},
        "another file": {**all_of_it, "test": "other.jsonl", "workers": 1},
        "another env": {"name": "code", "data": "mbpp", "deadline": 7, "tasks_deadline": None, "workers": None},
    }
    assert list(found) == list(given)
    assert eval_settings(config_of(eval={"benchmarks": ["aime"]})).benchmarks == {
        "aime": {**HOST, "name": "toys:Echo", "data": "aime"}
    }


def test_benchmarks_stand_below_the_runs_own_tasks() -> None:
    """In training one episode a task, with the figures of an evaluation there alone."""
    asked: list[Request] = []
    envs = {"few": {"name": "toys:Echo", "size": 2}, "many": {"name": "toys:Echo", "size": 9}}
    row = evaluate_held_out(runner(asked), replace(ASIS, benchmarks=envs), seed=0, lockstep=Lockstep())
    alone = evaluate_held_out(runner(asked), ASIS, seed=0, lockstep=Lockstep())
    assert row == {**alone, "benchmarks": {"few": row["benchmarks"]["few"], "many": alone}}
    assert row["benchmarks"]["few"] == evaluate_held_out(
        runner(asked, toys.Echo(size=2)), ASIS, seed=0, lockstep=Lockstep()
    )
    assert row["benchmarks"]["few"]["tasks"] == 2
    assert "benchmarks" not in alone


def test_benchmarks_before_during_and_after_training(tmp_path: Path) -> None:
    """One episode a task there, whatever `samples` and `ablate` say: those are for `marft eval`."""
    given = {"few": {"size": 2}, "flaky": {"name": "toys:Flaky"}}
    more = {"samples": 4, "ablate": True}
    train = {"iterations": 2}
    run = start(tmp_path / "run", train=train, eval={"tasks": 3, "every": 1, "benchmarks": given, **more})
    plain = start(tmp_path / "plain", train=train, eval={"tasks": 3, "every": 1})
    here, there = (json.loads((path / "summary.json").read_text()) for path in (run, plain))
    metrics = [row["eval"] for row in toys.rows(run / "metrics.jsonl")]
    assert {**here["after"]["benchmarks"]} == metrics[-1]["benchmarks"]
    for row in (here["before"], here["after"], *metrics):
        assert {name: found["tasks"] for name, found in row["benchmarks"].items()} == {"few": 2, "flaky": 3}
        assert set(row["benchmarks"]["few"]) == {*there["after"]} - {"iteration", "settings"}
    for when in ("before", "after"):
        own = {key: value for key, value in here[when].items() if key not in ("benchmarks", "settings")}
        assert own == {key: value for key, value in there[when].items() if key != "settings"}
    resume(run)
    assert json.loads((run / "summary.json").read_text()) == here  # nothing is evaluated anew
    resume(run, None, "eval.benchmarks={one: {size: 1}}")
    again = json.loads((run / "summary.json").read_text())
    assert {name: found["tasks"] for name, found in again["after"]["benchmarks"].items()} == {
        "few": 2,
        "flaky": 3,
        "one": 1,
    }


def test_benchmarks_are_written_and_read_back_in_their_order() -> None:
    given = {"zed": {"name": "x:Y", "deadline": 3}, "a b/c": {"sizes": [1]}, "empty": {}}
    config = config_of(eval={"benchmarks": given, "samples": 4, "k": [4, 1], "ablate": True})
    again = parse(parse_yaml(to_yaml(config), "test"))
    assert again == config
    assert {name: benchmark.given for name, benchmark in again.eval.benchmarks.items()} == given
    assert list(again.eval.benchmarks) == list(given)


def test_what_is_saved_of_the_settings_is_read_back_the_same() -> None:
    """A summary's figures are worked out anew when its settings are other ones."""
    settings = asdict(eval_settings(config_of(eval={"benchmarks": {"b": {"sizes": [1, 2], "level": None}}})))
    assert json.loads(json.dumps(settings)) == settings
    assert settings["benchmarks"]["b"]["sizes"] == [1, 2]


def test_the_first_held_out_tasks_are_played_once_each_with_the_same_luck() -> None:
    asked: list[Request] = []
    first, second = (evaluate_held_out(runner(asked), ASIS, seed=0, lockstep=Lockstep()) for _ in range(2))
    assert first == second
    assert first["tasks"] == 3
    held_out = toys.Echo().tasks("test")
    assert [request.messages[-1].content for request in asked] == [task.prompt for task in held_out[:3]] * 2
    assert [request.seed for request in asked[:3]] == [request.seed for request in asked[3:]]
    assert len({request.seed for request in asked}) == 3
    evaluate_held_out(runner(asked), ASIS, seed=1, lockstep=Lockstep())
    assert len({request.seed for request in asked}) == 6
    assert (
        evaluate_held_out(runner(asked), replace(ASIS, tasks=100), seed=0, lockstep=Lockstep())["tasks"] == 5
    )  # all that there are


# --- figures ----------------------------------------------------------------------------------------------------------
def test_figures_by_hand() -> None:
    row = summarise_episodes(
        [
            episode(reward=1.0, correct=True, lengths=(2, 4, 4)),
            episode(reward=0.5, correct=False, lengths=(6,)),
            episode(ended="failed", error="no paper"),
            episode(ended="failed", error="no ink"),
        ]
    )
    assert row["tasks"] == 4
    assert row["reward"] == 1.5 / 4
    assert (row["failed"], row["first_error"]) == (2, "no paper")
    assert row["accuracy"] == 1 / 4  # a failure is no success
    assert row["accuracy_ci95"] == list(wilson_interval(1, 4))
    assert row["tokens"] == {"a": 4.0, "b": 4.0}


def test_without_right_answers_there_is_no_accuracy() -> None:
    row = summarise_episodes([episode(reward=1.0), episode(ended="failed", error="no")])
    assert "accuracy" not in row
    assert row["reward"] == 0.5
