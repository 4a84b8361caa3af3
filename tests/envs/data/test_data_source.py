"""Where the rows of a split come from: known sets, the hub, files, folders, and what overrides them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marft.envs.base import Split
from marft.envs.data import DataSource, read_rows, read_split
from marft.envs.data.known import HubPart
from marft.envs.data.source import HUB_NAME, SPLIT_NAME, file_stem, find_origins, split_in_name
from marft.types import MarftError

SPLITS: tuple[Split, Split] = ("train", "test")


def write(path: Path, *prompts: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": "1"}) + "\n" for prompt in prompts))
    return str(path)


def prompts(source: DataSource, split: Split) -> list[str]:
    return [row["prompt"] for row in read_rows(source, split)]


def complaint(split: Split, **settings: Any) -> str:
    with pytest.raises(MarftError) as error:
        read_rows(DataSource(**settings), split)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[Any]:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("marft.envs.data.reading.load_parts", refuse)
    monkeypatch.setattr("marft.envs.data.source.split_names", refuse)


pytestmark = pytest.mark.usefixtures("no_hub")


def test_one_file_is_split_by_its_prompts(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", *(f"Problem {i}" for i in range(100)))
    source = DataSource(data=file)
    train, test = (read_split(source, split) for split in SPLITS)
    assert [len(part.rows) for part in (train, test)] == [89, 11]
    assert sorted(number for part in (train, test) for number in part.rows) == list(range(100))
    assert [test.id(number) for number in test.rows][:2] == ["mine/test/2", "mine/test/11"]
    assert [len(read_rows(DataSource(data=file, held_out=0.5), split)) for split in SPLITS] == [50, 50]


def test_the_same_file_for_both_splits_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "mine.jsonl", *(f"Problem {i}" for i in range(100)))
    for settings in ({"data": file, "test": "./mine.jsonl"}, {"data": "x", "train": file, "test": "mine.jsonl"}):
        assert [len(read_rows(DataSource(**settings), split)) for split in SPLITS] == [89, 11]


def test_files_for_both_splits(tmp_path: Path) -> None:
    a, b, c = (write(tmp_path / f"{name}.jsonl", name) for name in "abc")
    assert [prompts(DataSource(data=a, test=b), split) for split in SPLITS] == [["a"], ["b"]]
    assert [prompts(DataSource(data=a, train=b), split) for split in SPLITS] == [["b"], ["a"]]
    assert [prompts(DataSource(data="gsm8k", train=b, test=c), split) for split in SPLITS] == [["b"], ["c"]]
    assert read_split(DataSource(data="gsm8k", train=b, test=c), "test").id(0) == "gsm8k/test/0"
    assert read_split(DataSource(data=a, train=b, test=c), "test").id(0) == "a/test/0"
    assert read_split(DataSource(data="mine", train=b, test=c), "test").id(0) == "mine/test/0"


@pytest.mark.parametrize(
    ("files", "train", "test"),
    [
        (["train.jsonl", "test.jsonl"], "train.jsonl", "test.jsonl"),
        (["gsm8k_train.jsonl", "my-test.jsonl", "readme.txt"], "gsm8k_train.jsonl", "my-test.jsonl"),
        (["x.Train.jsonl", "x.validation.jsonl"], "x.Train.jsonl", "x.validation.jsonl"),
        (["train.jsonl", "dev.jsonl", "validation.jsonl"], "train.jsonl", "validation.jsonl"),
        (["train.jsonl", "validation.jsonl", "test.jsonl"], "train.jsonl", "test.jsonl"),
    ],
)
def test_a_folder_names_its_splits(tmp_path: Path, files: list[str], train: str, test: str) -> None:
    for file in files:
        write(tmp_path / "set" / file, file)
    source = DataSource(data=str(tmp_path / "set"))
    assert [prompts(source, split) for split in SPLITS] == [[train], [test]]
    assert read_split(source, "test").id(0) == "set/test/0"


def test_shards_are_one_split(tmp_path: Path) -> None:
    for i in range(12):
        write(tmp_path / f"train-{i:05}-of-00012.jsonl", f"row {i}")
    write(tmp_path / "test-00000-of-00001.jsonl", "other")
    source = DataSource(data=str(tmp_path))
    assert [prompts(source, split) for split in SPLITS] == [[f"row {i}" for i in range(12)], ["other"]]
    assert list(read_split(source, "train").rows)[11] == 11
    (tmp_path / "train-00003-of-00012.jsonl").unlink()
    assert "holds 11 of the 12 files of train" in complaint("train", data=str(tmp_path))


def test_a_folder_with_one_file_or_only_train(tmp_path: Path) -> None:
    lone, only = tmp_path / "lone", tmp_path / "only"
    for file in (lone / "contest.jsonl", only / "train.jsonl"):
        write(file, *(f"Problem {i}" for i in range(100)))
    for folder in (lone, only):
        assert [len(read_rows(DataSource(data=str(folder)), split)) for split in SPLITS] == [89, 11]


def test_folders_that_do_not_tell(tmp_path: Path) -> None:
    assert "holds no file that ends in train or test" in complaint("train", data=str(tmp_path))
    for name in ("contest", "strain", "latest"):
        write(tmp_path / f"{name}.jsonl", name)
    assert "holds no file that ends in train or test" in complaint("train", data=str(tmp_path))
    for name in ("a_train", "b_train", "test"):
        write(tmp_path / f"{name}.jsonl", name)
    line = complaint("test", data=str(tmp_path))
    assert line.endswith(
        "holds several files for train: a_train.jsonl, b_train.jsonl; choose with env.train=FILE env.test=FILE"
    )


def test_only_test(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", "a")
    assert prompts(DataSource(data=str(tmp_path)), "test") == ["a"]
    assert complaint("train", data=str(tmp_path)).endswith(
        "is for testing only; give it problems to train on: env.train=FILE or another set"
    )
    assert complaint("train", data="aime-2024").startswith("aime-2024 is for testing only")
    assert complaint("train", data="deepscaler", train="aime-2024", test="amc") == (
        "env.train: aime-2024 has no train split; name another set or a file"
    )


def test_what_is_nowhere(tmp_path: Path) -> None:
    assert complaint("train", data="gsmk8") == "env.data: gsmk8 is no known set and no file; did you mean 'gsm8k'?"
    assert "use owner/name on the hub, a file, a folder or gsm8k, math, " in complaint("train", data="zzz")
    assert "nope.jsonl is not there" in complaint("train", data=str(tmp_path / "nope.jsonl"))
    assert "cannot read this kind of file" in complaint("train", data=str(tmp_path / "nope"))
    file = write(tmp_path / "a.jsonl", "a")
    assert complaint("test", data=file, test="train[:5]").startswith("env.test: train[:5] is no file")
    assert complaint("test", data="mine", train=file, test="test").startswith("env.test: test is no file")


def test_held_out_where_there_is_a_test_split(tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{name}.jsonl", name) for name in "ab")
    line = complaint("train", data="gsm8k", train=a, test=b, held_out=0.2)
    assert line == "env.held_out: gsm8k has a test split of its own; leave held_out away"


@pytest.mark.parametrize("held_out", [0, 1, -0.1, 1.5, float("nan"), True, "0.1"])
def test_bad_shares(held_out: Any) -> None:
    with pytest.raises(ValueError, match="held_out must be a share between 0 and 1"):
        DataSource(data="gsm8k", held_out=held_out)


@pytest.mark.parametrize(
    "settings", [{"data": ""}, {"data": None}, {"data": "a", "train": " "}, {"data": "a", "prompt": 3}]
)
def test_bad_texts(settings: Any) -> None:
    with pytest.raises(ValueError, match="must be a text that is not empty"):
        DataSource(**settings)


def test_known_sets_on_the_hub() -> None:
    origins = find_origins(DataSource(data="gsm8k"))
    assert origins.train is not None
    assert (origins.train.hub, origins.train.parts) == ("openai/gsm8k", (HubPart(config="main", split="train"),))
    origins = find_origins(DataSource(data="deepscaler", test="math-500"))
    assert origins.train is not None
    assert origins.test is not None
    assert (origins.train.name, origins.test.name, origins.test.hub) == (
        *("deepscaler", "math-500", "HuggingFaceH4/MATH-500"),
    )
    assert find_origins(DataSource(data="deepscaler")).test is None


def test_splits_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test").mkdir()  # a folder of that name does not stand in for the split
    origins = find_origins(DataSource(data="gsm8k", train="train[:500]", test="test"))
    assert origins.train is not None
    assert origins.test is not None
    assert origins.train.parts == (HubPart(config="main", split="train[:500]"),)
    assert origins.test.parts == (HubPart(config="main", split="test"),)
    origins = find_origins(DataSource(data="a/b:c", train="train", test="d:train+valid[10%:]"))
    assert origins.train is not None
    assert origins.test is not None
    assert origins.train.parts == (HubPart(config="c", split="train"),)
    assert origins.test.parts == (HubPart(config="d", split="train+valid[10%:]"),)
    origins = find_origins(DataSource(data="deepcoder", train="taco:train"))
    assert origins.train is not None
    assert origins.train.parts == (HubPart(config="taco", split="train"),)
    assert complaint("train", data="deepcoder", train="train[:5]") == (
        "env.train=train[:5]: deepcoder is several sets; say which, "
        "as CONFIG:train[:5] with codeforces, lcbv5, primeintellect, taco"
    )


@pytest.mark.parametrize(
    ("names", "train", "test"),
    [
        (["train", "test"], "train", "test"),
        (["train", "validation"], "train", "validation"),
        (["train"], "train", None),
        (["test"], None, "test"),
        (["everything"], "everything", None),
        (["prompt", "valid", "train"], "train", "valid"),
    ],
)
def test_a_hub_set_that_nobody_knows(
    monkeypatch: pytest.MonkeyPatch, names: list[str], train: str | None, test: str | None
) -> None:
    monkeypatch.setattr("marft.envs.data.source.split_names", lambda hub, config: names)
    origins = find_origins(DataSource(data="some/set:small"))
    expected = [(HubPart(config="small", split=split),) if split else None for split in (train, test)]
    assert [origin and origin.parts for origin in (origins.train, origins.test)] == expected


def test_a_hub_set_with_splits_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.envs.data.source.split_names", lambda hub, config: ["easy", "hard"])
    assert complaint("train", data="some/set") == (
        "some/set has the splits easy, hard; choose: env.train=SPLIT env.test=SPLIT"
    )


def test_one_hub_split_is_split_by_its_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"problem": f"Problem {i}", "answer": i} for i in range(100)]
    monkeypatch.setattr("marft.envs.data.reading.load_parts", lambda hub, parts: rows)
    for settings in ({"data": "deepscaler"}, {"data": "gsm8k", "train": "train", "test": "train"}):
        assert [len(read_rows(DataSource(**settings), split)) for split in SPLITS] == [89, 11]


def test_ids_tell_the_splits_of_mbpp(tmp_path: Path) -> None:
    file = tmp_path / "mbpp.jsonl"
    numbers = [1, 11, 510, 511, 600, 601, 974]
    file.write_text("".join(json.dumps({"text": "t", "task_id": n}) + "\n" for n in numbers))
    source = DataSource(data="mbpp", train=str(file), test=str(file))
    assert [[row["task_id"] for row in read_rows(source, split)] for split in SPLITS] == [[601, 974], [11, 510]]
    assert list(read_split(source, "train").rows) == [5, 6]
    file.write_text(json.dumps({"text": "t", "task_id": 11}) + "\n")
    assert "mbpp has no rows for train" in complaint("train", data="mbpp", train=str(file), test=str(file))


def test_names() -> None:
    assert [
        bool(HUB_NAME.fullmatch(name)) for name in ("a/b", "a/b:c", "a-1/B.c_d", "a", "a/b/c", "/a", "a/", "a b/c")
    ] == [*(True, True, True, False, False, False, False, False)]
    assert [
        bool(SPLIT_NAME.fullmatch(name)) for name in ("train", "train[:5]", "a+b[1:]", "c:train", "a.jsonl", "a/b", "")
    ] == [*(True, True, True, True, False, False, False)]
    assert [
        split_in_name(Path(name)) for name in ("train.csv", "a_test.jsonl.gz", "contest.csv", "test_a.csv", "dev.json")
    ] == [*("train", "test", None, None, "dev")]
    assert [file_stem(Path(name)) for name in ("x/a.b.jsonl.gz", "a.parquet", "folder.v2")] == ["a.b", "a", "folder.v2"]
