"""Held-out episodes can be read and seen again: transcripts, the right answers in them, and `marft play`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import toys
from quick import models_in_memory, resume, start
from toys import without_progress

from marft.cli import main
from marft.commands.play import Replay, describe_replay, find_task, match_transcript, play_task
from marft.envs.arithmetic import Arithmetic
from marft.envs.code import Code
from marft.envs.code.cases import call_tests, describe_tests, stdio_tests
from marft.envs.hosting import InProcess
from marft.envs.math import Math
from marft.envs.reasoning import Reasoning
from marft.evaluation.evaluate import evaluate_benchmarks
from marft.runs.directory import RunDirectory
from marft.runs.transcripts import make_transcript, worst_episodes
from marft.terminal import say
from marft.terminal.display import Display
from marft.training.loading import load_team
from marft.types import Completion, Episode, Reward, Task, Turn

EVAL: dict[str, Any] = {"tasks": 4, "every": 2, "temperature": 0.7, "top_k": 5}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "run"
    return start(path, env="toys:Golden", eval={**EVAL, "benchmarks": {"more": {"size": 3}}})


def kept(run: Path) -> list[dict[str, Any]]:
    return list(RunDirectory(run).held_out())


def said(turns: Sequence[Any]) -> list[tuple[str, str]]:
    return [(turn["agent"], turn["text"]) if isinstance(turn, dict) else (turn.agent, turn.text) for turn in turns]


# --- transcripts ------------------------------------------------------------------------------------------------------
def test_every_evaluation_leaves_its_episodes(run: Path) -> None:
    found = kept(run)
    moments = [(0, "before"), (2, "during"), (4, "during"), (4, "after")]
    own, more = ([row for row in found if row["benchmark"] == name] for name in (None, "more"))
    assert [(row["iteration"], row["when"]) for row in own] == [moment for moment in moments for _ in range(4)]
    assert [(row["iteration"], row["when"]) for row in more] == [moment for moment in moments for _ in range(3)]
    for row in found:
        assert row["gold"] == f"gold of {row['task']}"
        assert row["prompt"].startswith("Start with")
        assert (row["sample"], row["ended"], row["error"]) == (0, "terminated", None)
        assert row["correct"] == (row["reward"] > 0.5)
        assert [turn["agent"] for turn in row["turns"]] == ["ann", "bob"]
        assert {turn["finish"] for turn in row["turns"]} <= {"stop", "length"}


def test_training_episodes_say_what_was_right(run: Path) -> None:
    for row in toys.rows(run / "episodes.jsonl"):
        task = row["task"]
        wanted = "(environment.gold raised LookupError: no such answer)" if task.endswith("/4") else f"gold of {task}"
        assert row["gold"] == wanted
        assert row["correct"] == (row["reward"] > 0.5)


def episode(number: int, correct: bool | None, reward: float, ended: Any = "terminated") -> Episode:
    said = Completion(text="hm", token_ids=(), logprobs=(), finish="length", version=0)
    turn = Turn(agent="ann", index=0, nth=0, shown="", observation=(), prompt_ids=(), completion=said)
    return Episode(
        task=Task(id=str(number), prompt="p"), sample=0, turns=(turn,), reward=Reward(team=reward, correct=correct),
        ended=ended,
    )  # fmt: skip


def test_the_worst_come_first_and_stay_in_order() -> None:
    graded = [
        episode(0, True, 1.0), episode(1, False, 0.0), episode(2, None, 0.0, "failed"), episode(3, True, 1.0),
        episode(4, False, 0.0), episode(5, False, -0.1),
    ]  # fmt: skip
    chosen = {count: [e.task.id for e in worst_episodes(graded, count)] for count in (0, 1, 2, 3, 5, 99)}
    assert chosen == {
        0: [], 1: ["2"], 2: ["2", "5"], 3: ["1", "2", "5"], 5: ["0", "1", "2", "4", "5"], 99: list("012345"),
    }  # fmt: skip
    assert [e.task.id for e in worst_episodes([episode(0, None, 0.5), episode(1, None, 0.2)], 1)] == ["1"]
    assert make_transcript(graded[1], "7").turns[0].finish == "length"


@pytest.mark.parametrize("count", [0, 2])
def test_how_many_are_kept_is_a_setting(tmp_path: Path, count: int) -> None:
    found = kept(start(tmp_path / "run", eval={"tasks": 4}, track={"held_out": count}, train={"iterations": 2}))
    assert len(found) == 2 * count


def test_a_longer_run_has_the_file_of_one_that_was_as_long_from_the_start(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"eval": {"tasks": 4, "every": 2}, "optimizer": {"decay": "constant"}}
    whole = start(tmp_path / "whole", **changes)
    start(tmp_path / "half", **changes, train={"iterations": 2})
    resume(tmp_path / "half", None, "train.iterations=4")
    assert kept(tmp_path / "half") == kept(whole)
    resume(tmp_path / "half")  # there is nothing to do, and nothing is forgotten
    assert kept(tmp_path / "half") == kept(whole)
    resume(tmp_path / "half", 2)
    assert kept(tmp_path / "half") == kept(whole)


# --- the same sample again --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("when", "at"), [("after", None), ("during", 4), ("before", 0)])
def test_play_says_what_was_said_in_the_evaluation(run: Path, when: str, at: int | None) -> None:
    with models_in_memory():
        config, parts = load_team(str(run), [], at)
        with parts.runner.host:
            rows = [row for row in kept(run) if row["when"] == when and row["iteration"] == {None: 4}.get(at, at)]
            assert len(rows) == 7
            for row in rows:
                replay = play_task(config, parts, task=row["task"], benchmark=row["benchmark"])
                assert said(replay.episode.turns) == said(row["turns"])
                assert (replay.gold, replay.episode.reward.team) == (row["gold"], row["reward"])
                assert "the same texts as evaluated" in (match_transcript(replay, kept(run)) or "")


def test_play_says_what_was_said_in_marft_eval(run: Path, tmp_path: Path) -> None:
    overrides = ["eval.samples=3", "eval.temperature=1.5", "eval.top_k=0"]
    with models_in_memory():
        config, parts = load_team(str(run), [*overrides, "eval.benchmarks={}"])
        with parts.runner.host:
            evaluate_benchmarks(config, parts, tmp_path / "e", Display())
            found = toys.rows(tmp_path / "e" / "episodes.jsonl")
            for row in found:
                replay = play_task(config, parts, task=row["task"], sample=row["sample"])
                assert said(replay.episode.turns) == said(row["turns"])
                assert (row["prompt"], row["gold"]) == (replay.episode.task.prompt, replay.gold)
    texts = {row["sample"]: said(row["turns"]) for row in found if row["task"] == "test/0"}
    assert texts[0] != texts[1] != texts[2]  # samples have luck of their own


def test_texts_that_differ_from_the_transcript_are_pointed_out(run: Path) -> None:
    with models_in_memory():
        config, parts = load_team(str(run), ["seed=7"])
        with parts.runner.host:
            other, unknown = play_task(config, parts), play_task(config, parts, sample=5)
    assert "held_out.jsonl has other texts of this sample (iteration 4)" in (match_transcript(other, kept(run)) or "")
    assert match_transcript(unknown, kept(run)) is None


# --- marft play -------------------------------------------------------------------------------------------------------
def test_play_prints_the_task_what_was_said_and_whether_it_is_right(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [row] = [row for row in kept(run) if row["when"] == "after" and row["task"] == "test/2" and not row["benchmark"]]
    with models_in_memory():
        assert main(["play", str(run), "--task", "test/2"]) == 0
        by_id = capsys.readouterr().out
        assert main(["play", str(run), "--task", "2"]) == 0
        assert capsys.readouterr().out == by_id
    lines = by_id.splitlines()
    assert lines[:2] == [f"task: {row['prompt']}", "id: test/2, sample 0"]
    assert "gold answer: gold of test/2" in lines
    assert f"{'right' if row['correct'] else 'wrong'}, reward: {row['reward']:g}" in lines
    assert lines[-1] == "the same texts as evaluated after training, iteration 4 (held_out.jsonl)"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--task", "9"],
            "--task 9: the environment has 5 held-out tasks, and none has this id; give a number below 5, ",
        ),
        (["--task", "test/9"], "or an id such as 'test/0'"),
        (["--sample", "-1"], "--sample -1: samples are counted from 0"),
        (
            ["--benchmark", "mor"],
            "--benchmark mor: unknown benchmark; did you mean 'more'?; those of the config are more",
        ),
        (["--at", "3"], "3"),
    ],
)
def test_mistakes_are_one_line(run: Path, words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with models_in_memory():
        assert main(["play", str(run), *words]) == 2
    [line] = without_progress(capsys.readouterr().err)
    assert expected in line


def test_only_a_run_has_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "--at", "3"]) == 2
    assert "--at 3: only a run has checkpoints" in capsys.readouterr().err


def test_tasks_are_found_by_number_and_by_id() -> None:
    made = Arithmetic().tasks("test")
    assert find_task(made, 7) == find_task(made, "7") == find_task(made, "arithmetic/test/2/7") == made[7]
    odd = [Task(id=name, prompt="p") for name in ("1001", "b/7", "0")]
    assert [find_task(odd, which).id for which in ("1001", "b/7", "0", 2, "2")] == ["1001", "b/7", "1001", "0", "0"]


def test_hostile_texts_do_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    said = Completion(text="\x1b[2Jgone\rfake [red]", token_ids=(), logprobs=(), finish="stop", version=0)
    turn = Turn(agent="ann", index=0, nth=0, shown="", observation=(), prompt_ids=(), completion=said)
    hostile = Episode(
        task=Task(id=":ledger:", prompt="\x1b]0;title\x07 [/]"), sample=0, turns=(turn,), reward=Reward(team=1.0)
    )
    for line in describe_replay(Replay(episode=hostile, gold="\u202e7"), prompts=True):
        say(line)
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\r" not in printed
    for text in (r"\x1b[2Jgone\rfake [red]", ":ledger:", r"\x1b]0;title\x07 [/]", r"\u202e7"):
        assert text in printed


# --- right answers ----------------------------------------------------------------------------------------------------
def test_no_agent_is_ever_told_the_right_answer(tmp_path: Path) -> None:
    run = start(tmp_path / "run", env="toys:Golden", eval={"tasks": 4}, track={"episodes": 99})
    texts = [
        message["content"] for row in toys.rows(run / "episodes.jsonl") for t in row["turns"] for message in t["saw"]
    ]
    assert texts
    assert not any("gold" in text for text in texts)


def test_environments_say_their_right_answers() -> None:
    env = Arithmetic()
    task = env.tasks("test")[0]
    assert env.gold(task) == str(task.data["answer"])
    assert InProcess(toys.Echo()).gold(task) is None
    solved = Task(id="t", prompt="p", data={"answer": "\\frac{1}{2}"})
    assert Math(data="gsm8k").gold(solved) == "\\frac{1}{2}"
    assert Reasoning.gold(Reasoning.__new__(Reasoning), solved) == "\\frac{1}{2}"
    assert Reasoning.gold(Reasoning.__new__(Reasoning), Task(id="t", prompt="p", data={"answer": None})) is None
    program = Task(id="t", prompt="p", data={"tests": stdio_tests(["1"], ["2"], 9)})
    assert Code(data="mbpp").gold(program) == "passes 1 tests:\n'1' → '2'"
    assert describe_tests(stdio_tests(["1 2\n"], ["3\n"], 9)) == "passes 1 tests:\n'1 2\\n' → '3\\n'"
    many = describe_tests(call_tests([f"assert f({i}) == {'9' * 1000}" for i in range(9)], ["f"], 9))
    assert many.startswith("passes 9 tests:\nassert f(0) == 999")
    assert many.endswith("…")
    assert len(many) < 2000


def test_a_prompt_of_one_s_own_is_refused_where_tasks_are_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", *toys.ECHO, "env.name=toys:Seeded", "--prompt", "2 + 2?"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "marft: --prompt: a task of toys:Seeded is more than its prompt; choose one of its own with --task"
    assert main(["play", *toys.ECHO, "env.name=toys:Seeded", "--task", "1"]) == 0
