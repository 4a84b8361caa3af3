"""An evaluation's folder: it goes on where it stopped, whole chunk by whole chunk, and answers one question only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marft.config import Config, load_config, to_yaml
from marft.evaluation.folder import EvalRequest, Evaluation, Played, Record, Slot
from marft.runs.transcripts import Said, Transcript
from marft.types import MarftError


def make_eval_request(*overrides: str, weights: str = "w", **tasks: str) -> EvalRequest:
    return EvalRequest(config=load_config("duo", list(overrides)), weights=weights, tasks={"b": "t", **tasks})


def slot(number: int, silent: str | None = None) -> Slot:
    return Slot(benchmark="b", silent=silent, task=f"t{number}", sample=0)


def played(where: Slot, **more: Any) -> Played:
    fields: dict[str, Any] = {
        "reward": 0.5,
        "correct": True,
        "answer": "größer\n",
        "tokens": {"a": 3},
        "turns": {"a": 1},
    }
    return Played(slot=where, **{**fields, "error": None, "seconds": 0.25, **more})


def record(row: Played) -> Record:
    """What was said, as the row counts it."""
    turns = tuple(Said(agent=agent, text="hm", finish="stop") for agent, n in row.turns.items() for _ in range(n))
    return Record(
        played=row,
        transcript=Transcript(
            task=row.slot.task, sample=row.slot.sample, prompt="How many?", gold="7", reward=row.reward,
            correct=row.correct, ended="failed" if row.error else "terminated", error=row.error, fault=None, trace="",
            turns=turns,
        ),
    )  # fmt: skip


def add(evaluation: Evaluation, rows: list[Played]) -> None:
    evaluation.append([record(row) for row in rows])


CHUNKS = [[slot(0), slot(1), slot(2)], [slot(3)], [slot(0, "a"), slot(1, "a"), slot(2, "a")]]


@pytest.fixture
def evaluation(tmp_path: Path) -> Evaluation:
    return Evaluation.begin(tmp_path / "e", make_eval_request())


def lines(evaluation: Evaluation) -> list[bytes]:
    return (evaluation.path / "episodes.jsonl").read_bytes().splitlines(keepends=True)


def refusal(path: Path, asked: EvalRequest) -> str:
    with pytest.raises(MarftError) as caught:
        Evaluation.begin(path, asked)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- rows -------------------------------------------------------------------------------------------------------------
def test_what_is_written_is_read_back_the_same(evaluation: Evaluation) -> None:
    rows = [played(slot(0)), played(slot(1, "a"), correct=None, answer=None, error="no\npaper", tokens={}, turns={})]
    add(evaluation, rows)
    assert evaluation.read_played() == rows
    assert json.loads(lines(evaluation)[0]) == {
        "benchmark": "b", "silent": None, "task": "t0", "sample": 0, "reward": 0.5, "correct": True,
        "answer": "größer\n", "tokens": {"a": 3}, "turns": [{"agent": "a", "text": "hm", "finish": "stop"}], "error": None, "seconds": 0.25,
        "prompt": "How many?", "gold": "7", "ended": "terminated", "fault": None, "trace": "",
    }  # fmt: skip


def test_a_new_folder_has_nothing_yet(evaluation: Evaluation) -> None:
    assert evaluation.read_played() == []
    assert evaluation.keep_whole_chunks(CHUNKS) == 0
    assert sorted(p.name for p in evaluation.path.iterdir()) == ["episodes.jsonl", "eval.yaml", "manifest.json"]


@pytest.mark.parametrize(("written", "whole"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3)])
@pytest.mark.parametrize("torn", [b"", b'{"benchmark": "b", "sil'])
def test_whole_chunks_stay_and_the_rest_is_dropped(
    evaluation: Evaluation, written: int, whole: int, torn: bytes
) -> None:
    rows = [played(each) for chunk in CHUNKS for each in chunk][:written]
    add(evaluation, rows)
    with (evaluation.path / "episodes.jsonl").open("ab") as file:
        file.write(torn)
    assert evaluation.keep_whole_chunks(CHUNKS) == whole
    kept = sum(map(len, CHUNKS[:whole]))
    assert evaluation.read_played() == rows[:kept]
    assert len(lines(evaluation)) == kept
    add(evaluation, [played(each) for chunk in CHUNKS[whole:] for each in chunk])
    assert [row.slot for row in evaluation.read_played()] == [each for chunk in CHUNKS for each in chunk]


def test_a_line_without_its_end_counts(evaluation: Evaluation) -> None:
    add(evaluation, [played(each) for each in CHUNKS[0]])
    path = evaluation.path / "episodes.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    assert evaluation.keep_whole_chunks(CHUNKS) == 1
    add(evaluation, [played(slot(3))])
    assert len(evaluation.read_played()) == 4


@pytest.mark.parametrize("rows", [[1], [0, 2], [0, 1, 2, 0], [0, 1, 2, 3, 3]])
def test_rows_out_of_place_are_refused(evaluation: Evaluation, rows: list[int]) -> None:
    add(evaluation, [played(slot(number)) for number in rows])
    before = lines(evaluation)
    with pytest.raises(MarftError, match=r"is damaged: line \d is out of place; choose another --run"):
        evaluation.keep_whole_chunks(CHUNKS)
    assert lines(evaluation) == before


@pytest.mark.parametrize("line", [b"{}\n", b"3\n", b'{"benchmark": "b"}\n'])
def test_lines_of_another_kind_are_refused(evaluation: Evaluation, line: bytes) -> None:
    (evaluation.path / "episodes.jsonl").write_bytes(line)
    with pytest.raises(MarftError, match="is damaged: line 1: "):
        evaluation.keep_whole_chunks(CHUNKS)


def test_a_line_that_is_no_json_in_the_middle_is_refused(evaluation: Evaluation) -> None:
    (evaluation.path / "episodes.jsonl").write_bytes(b"{torn\n{}\n")
    with pytest.raises(MarftError, match="is damaged: line 1: it is not JSON"):
        evaluation.keep_whole_chunks(CHUNKS)


# --- one question -----------------------------------------------------------------------------------------------------
def test_the_same_question_goes_on(evaluation: Evaluation) -> None:
    add(evaluation, [played(each) for each in CHUNKS[0]])
    again = Evaluation.begin(evaluation.path, make_eval_request())
    assert again.keep_whole_chunks(CHUNKS) == 1


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            make_eval_request("eval.samples=4"),
            "evaluates something else: eval.samples is 1 there and 4 here; choose another --run",
        ),
        (make_eval_request("seed=1"), "evaluates something else: seed is 0 there and 1 here; choose another --run"),
        (
            make_eval_request("eval.benchmarks=[aime]"),
            "evaluates something else: eval.benchmarks.aime is nothing there and {",
        ),
        (make_eval_request(weights="v"), "evaluates other weights: the team has changed since; choose another --run"),
        (make_eval_request(b="u"), "evaluates other tasks: those of 'b' have changed; choose another --run"),
    ],
)
def test_another_question_is_refused(evaluation: Evaluation, asked: EvalRequest, expected: str) -> None:
    assert refusal(evaluation.path, asked).startswith(f"{evaluation.path} {expected}")


@pytest.mark.parametrize(("name", "what"), [("config.yaml", "a run"), ("compare.yaml", "a comparison")])
def test_other_folders_are_left_alone(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / name).write_text(to_yaml(load_config("duo")))
    assert refusal(tmp_path, make_eval_request()) == f"{tmp_path} is {what}, not an evaluation; choose another --run"
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "text"),
    [("manifest.json", "{"), ("manifest.json", "[]"), ("manifest.json", "{}"), ("eval.yaml", "seed: x"), ("eval.yaml", "[")],
)  # fmt: skip
def test_a_damaged_folder_is_refused(evaluation: Evaluation, name: str, text: str) -> None:
    (evaluation.path / name).write_text(text)
    assert "holds no evaluation of this version: " in refusal(evaluation.path, make_eval_request())


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refusal(tmp_path / "file" / "e", make_eval_request()).endswith("Not a directory; choose another --run")


def test_a_disk_that_refuses_is_one_line(evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("marft.evaluation.folder.append_whole", refuse)
    monkeypatch.setattr("marft.evaluation.folder.write_atomically", refuse)
    line = r"cannot write .*/{}: No space left on device; .* with --run "
    with pytest.raises(MarftError, match=line.format("episodes.jsonl")):
        add(evaluation, [played(slot(0))])
    with pytest.raises(MarftError, match=line.format("results.md")):
        evaluation.write("results.md", b"")


def test_the_config_is_there_to_be_read(evaluation: Evaluation) -> None:
    assert isinstance(evaluation.request.config, Config)
    assert (evaluation.path / "eval.yaml").read_text() == to_yaml(evaluation.request.config)
    assert json.loads((evaluation.path / "manifest.json").read_text()) == {"weights": "w", "tasks": {"b": "t"}}


@pytest.mark.parametrize("name", ["episodes.jsonl", "manifest.json", "results.json", "results.md"])
def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    assert f"holds a {name} of something else; choose another --run" in refusal(tmp_path, make_eval_request())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}
