"""Plain files: every format gives the same rows, and what is wrong is told with file and line."""

from __future__ import annotations

import csv
import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marft.envs.data.files import Row, data_suffix, is_data_file, read_file
from marft.types import MarftError

ROWS = [{"prompt": "1 + 1?\u2028Really?", "answer": "2"}, {"prompt": 'Say "a,\tb"\nand ü', "answer": "007"}]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    match path.name.split(".", 1)[1]:
        case "jsonl":
            path.write_text(lines, encoding="utf-8")
        case "jsonl.gz":
            path.write_bytes(gzip.compress(lines.encode()))
        case "json":
            path.write_text(json.dumps(rows))
        case "parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        case "csv" | "tsv" as suffix:
            with path.open("w", newline="", encoding="utf-8") as file:
                table = csv.DictWriter(file, list(rows[0]), delimiter="\t" if suffix == "tsv" else ",")
                table.writeheader()
                table.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "json", "parquet", "csv", "tsv"])
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    assert read_file(write(tmp_path / f"a.{suffix}", ROWS)) == ROWS


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        json.dumps({"data": ROWS, "version": 1}),
        json.dumps({key: [row[key] for row in ROWS] for key in ROWS[0]}),
        "".join(json.dumps(row) + "\n" for row in ROWS),  # JSON lines under the wrong name
        "\ufeff" + json.dumps(ROWS),
    ],
)
def test_the_shapes_of_a_json_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    assert read_file(tmp_path / "a.json") == ROWS


def test_a_column_called_data(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"data": [1, 2], "answer": [3, 4]}')
    assert read_file(tmp_path / "a.json") == [{"data": 1, "answer": 3}, {"data": 2, "answer": 4}]


def test_cells_stay_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,answer\r\na,007\r\n\r\nb,1/2\r\nc,2020-01-01\r\nd,\r\n")
    assert [row["answer"] for row in read_file(tmp_path / "a.csv")] == ["007", "1/2", "2020-01-01", ""]


def test_a_cell_of_a_megabyte(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,answer\n" + "x" * 1_000_000 + ",1\n")
    assert len(read_file(tmp_path / "a.csv")[0]["prompt"]) == 1_000_000


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.jsonl", b'{"a": 1}\n\n{"a": }\n', "a.jsonl, line 3: not JSON"),
        ("a.jsonl", b'{"a": 1}\n[1]\n', "a.jsonl, line 2: expected an object with named fields, not list"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl, line 1: not JSON"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "a.jsonl, line 2: not UTF-8 text"),
        ("a.jsonl", b"", "a.jsonl has no rows"),
        ("a.jsonl", b"\n \n", "a.jsonl has no rows"),
        ("a.json", b"[]", "a.json has no rows"),
        ("a.json", b'[\n{"a": 1},\n]', "a.json, line 3: not JSON"),
        ("a.json", b"[" * 100_000, "a.json cannot be read as .json"),
        ("a.json", b'{"a": 1}\n{"a": \n', "a.json, line 2: not JSON"),
        ("a.json", b'[{"a": 1}, 2]', "a.json, row 1: expected an object with named fields, not int"),
        ("a.json", b'"text"', "a.json: expected a list of objects, not str"),
        ("a.json", b"{}", "a.json: expected a list of objects"),
        ("a.json", b'{"a": [1], "b": 2}', "a.json: expected a list of objects"),
        ("a.json", b'{"a": [1], "b": [2, 3]}', "a.json: its columns differ in length"),
        ("a.csv", b"a,b\n1,2\n3\n", "a.csv, line 3: 1 cells, but 2 columns"),
        ("a.csv", b'a,b\n"1,2\n', "a.csv, line 2: unexpected end of data"),
        ("a.csv", b"a,b\n", "a.csv has no rows"),
        ("a.jsonl.gz", b"not gzip", "a.jsonl.gz cannot be read as .jsonl"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n', mtime=0)[:-9], "a.jsonl.gz cannot be read as .jsonl"),
        ("a.parquet", b"PAR1 and nothing", "a.parquet cannot be read as .parquet"),
        ("a.parquet", b"", "a.parquet cannot be read as .parquet"),
        ("a.txt", b"{}", "a.txt: cannot read this kind of file; use .jsonl, .json, .parquet, .csv, .tsv"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MarftError) as error:
        read_file(tmp_path / name)
    assert str(error.value).startswith(f"{tmp_path / name}"[: -len(name)] + complaint)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MarftError, match=r"x\.jsonl is not there; name a file that is, as env\.train=FILE"):
        read_file(tmp_path / "x.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(MarftError, match="is not there"):
        read_file(tmp_path / "folder.jsonl")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary() | st.text(alphabet='{}[]",:\n\r\ta1\\"').map(str.encode))
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".jsonl.gz"])
def test_no_content_ends_in_anything_but_rows_or_one_line(tmp_path: Path, suffix: str, content: bytes) -> None:
    (tmp_path / f"a{suffix}").write_bytes(content)
    rows: list[Row] = []
    with suppress(MarftError):
        rows = read_file(tmp_path / f"a{suffix}")
        assert rows
    assert all(isinstance(row, dict) for row in rows)


def test_suffixes() -> None:
    assert data_suffix(Path("a.b.JSONL.gz")) == ".jsonl"
    assert [is_data_file(Path(name)) for name in ("a.csv", "a.csv.gz", "a.gz", "a", "csv", "a.py")] == [
        *(True, True, False, False, False, False)
    ]
