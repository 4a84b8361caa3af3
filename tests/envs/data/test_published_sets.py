"""The publishers' own files: counts, splits, gold answers, and what train and test share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marft.envs.data import DataSource, overlapping_tasks, read_rows, repeated_tasks
from marft.envs.data.columns import answer_column, gold_of
from marft.envs.data.known import KNOWN
from marft.envs.data.overlap import normalise_prompt
from marft.envs.math import Math
from marft.types import Task

DATA = Path(__file__).parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the published files are not here ({DATA})")


def math_env(data: str, train: str, test: str | None = None) -> Math:
    return Math(data=data, train=str(DATA / train), test=str(DATA / test) if test else None)


def exact(pairs: list[tuple[str, str]], *tasks: Task) -> list[tuple[str, str]]:
    prompts = {task.id: normalise_prompt(task.prompt) for task in tasks}
    return [pair for pair in pairs if prompts[pair[0]] == prompts[pair[1]]]


def test_gsm8k() -> None:
    env = math_env("gsm8k", "gsm8k_train.jsonl", "gsm8k_test.jsonl")
    train, test = env.tasks("train"), env.tasks("test")
    assert (len(train), len(test)) == (7473, 1319)
    assert (test[0].id, test[0].data["answer"], test[0].prompt[:13]) == ("gsm8k/test/0", "18", "Janet’s ducks")
    assert all(task.data["answer"].replace(",", "").removeprefix("-").isdigit() for task in [*train, *test])
    assert overlapping_tasks(train, test) == repeated_tasks(train) == repeated_tasks(test) == []


def test_math(capsys: pytest.CaptureFixture[str]) -> None:
    env = math_env("math", "math_train.jsonl", "math_test.jsonl")
    train, test = env.tasks("train"), env.tasks("test")
    assert (len(train), len(test)) == (7498, 5000)
    assert capsys.readouterr().err == (
        "marft: warning: math/train: nothing in problem or solution (last boxed) of 2 of 7500 rows: 5078, 5456; left out\n"
    )
    assert (test[0].data["answer"], train[18].data["answer"]) == ("920.25", "2")  # the latter is \boxed 2
    assert train[-1].id == "math/train/7499"
    found = overlapping_tasks(train, test)
    assert (len(found), exact(found, *train, *test)) == (
        47,
        [
            *(("math/train/1484", "math/test/137"), ("math/train/130", "math/test/801")),
            *(("math/train/1347", "math/test/2594"), ("math/train/3321", "math/test/4885")),
        ],
    )
    assert (len(repeated_tasks(train)), repeated_tasks(test)) == (4, [("math/test/1152", "math/test/2730")])


def test_deepscaler_against_math() -> None:
    env = math_env("deepscaler", "deepscaler_train_math.json", "math_test.jsonl")
    train, test = env.tasks("train"), env.tasks("test")
    assert (len(train), len(test)) == (7470, 5000)  # four rows have no answer
    assert not {886, 1009, 5328, 5330} & {int(task.id.split("/")[-1]) for task in train}
    found = overlapping_tasks(train, test)
    assert (len(found), len(exact(found, *train, *test))) == (43, 4)
    env = math_env("deepscaler", "deepscaler_train_aime.json", "math_test.jsonl")
    train = env.tasks("train")
    found = overlapping_tasks(train, test)
    assert (len(train), len(found), len(exact(found, *train, *test))) == (975, 51, 38)


def test_deepscaler_holds_a_test_part_out() -> None:
    env = math_env("deepscaler", "deepscaler_train_aime.json")
    train, test = env.tasks("train"), env.tasks("test")
    assert (len(train), len(test), overlapping_tasks(train, test)) == (876, 99, [])


def test_mbpp() -> None:
    source = DataSource(data="mbpp", train=str(DATA / "mbpp.jsonl"), test=str(DATA / "mbpp.jsonl"))
    train, test = read_rows(source, "train"), read_rows(source, "test")
    assert [row["task_id"] for row in train] == list(range(601, 975))
    assert [row["task_id"] for row in test] == list(range(11, 511))
    tasks = [[Task(id=str(row["task_id"]), prompt=row["text"]) for row in rows] for rows in (train, test)]
    assert overlapping_tasks(*tasks) == [("653", "174"), ("872", "216"), ("602", "217"), ("704", "248")]


def test_deepcoder() -> None:
    file = str(DATA / "deepcoder_code_contests_test.json")
    rows = read_rows(DataSource(data="code-contests", train=str(DATA / "mbpp.jsonl"), test=file), "test")
    assert len(rows) == 165
    assert all(set(row) == {"problem", "tests"} for row in rows)
    assert [len(read_rows(DataSource(data=file), split)) for split in ("train", "test")] == [149, 16]


def test_a_folder_of_many_sets_does_not_guess() -> None:
    with pytest.raises(Exception, match=r"several files for train: gsm8k_train\.jsonl, math_train\.jsonl; choose"):
        Math(data=str(DATA)).tasks("train")


def test_every_gold_answer_is_what_the_file_says() -> None:
    """Against an independent reading: what follows #### on GSM8K's last line."""
    lines = (DATA / "gsm8k_train.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    column, gold = answer_column(rows, None, KNOWN["gsm8k"])
    assert [gold_of(row[column], gold) for row in rows] == [
        row["answer"].splitlines()[-1].removeprefix("#### ") for row in rows
    ]
