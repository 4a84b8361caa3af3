"""Rows from plain files, by suffix: JSON lines, JSON, Parquet, CSV and TSV; the text ones also gzipped."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from marft.types import MarftError

Row: TypeAlias = Mapping[str, Any]  # a record with its publisher's own fields


def read_file(path: Path) -> list[Row]:
    """All rows of one file, in order."""
    reader = READERS.get(data_suffix(path))
    if reader is None:
        raise MarftError(f"{path}: cannot read this kind of file; use {', '.join(READERS)}")
    if not path.is_file():
        raise MarftError(f"{path} is not there; name a file that is, as env.train=FILE or env.test=FILE")
    try:
        rows = reader(path)
    except MarftError:
        raise
    except (OSError, EOFError, ValueError, RecursionError, csv.Error) as error:  # unreadable, not its format, too deep
        raise MarftError(f"{path} cannot be read as {data_suffix(path)}: {error}") from None
    if not rows:
        raise MarftError(f"{path} has no rows")
    return rows


def data_suffix(path: Path) -> str:
    """`.jsonl` of `x.jsonl` and of `x.jsonl.gz`; the suffix of a file that holds rows, or whatever else it has."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix == ".gz" else suffix


def is_data_file(path: Path) -> bool:
    """Whether there is a reader for its suffix."""
    return data_suffix(path) in READERS


def read_text(path: Path) -> str:
    """The whole file as UTF-8, unzipped where it is gzipped; MarftError names the line that is not."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise MarftError(f"{path}, line {line}: not UTF-8 text") from None


def read_lines(path: Path) -> list[Row]:
    """One JSON object a line; empty lines are skipped."""
    rows: list[Row] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):  # not splitlines: a text may hold U+2028
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise MarftError(f"{path}, line {number}: not JSON: {error}") from None
        rows.append(as_row(row, f"{path}, line {number}"))
    return rows


def read_json(path: Path) -> list[Row]:
    """A list of objects, `{"data": [objects]}`, an object of columns, or JSON lines under the wrong name."""
    try:
        whole = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return read_lines(path)
        raise MarftError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    if isinstance(whole, dict) and is_list_of_rows(whole.get("data")):
        whole = whole["data"]
    if isinstance(whole, dict):
        return rows_of_columns(path, whole)
    if not isinstance(whole, list):
        raise MarftError(f"{path}: expected a list of objects, not {type(whole).__name__}")
    return [as_row(row, f"{path}, row {number}") for number, row in enumerate(whole)]


def is_list_of_rows(value: object) -> bool:
    """Whether it is a list of nothing but objects."""
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def rows_of_columns(path: Path, columns: dict[str, Any]) -> list[Row]:
    """The rows of an object of equally long columns."""
    if not columns or not all(isinstance(values, list) for values in columns.values()):
        raise MarftError(f'{path}: expected a list of objects, {{"data": [objects]}} or an object of columns')
    if len({len(values) for values in columns.values()}) > 1:
        raise MarftError(f"{path}: its columns differ in length")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def as_row(value: object, where: str) -> Row:
    """The value itself if it is an object; MarftError names `where` it stands otherwise."""
    if not isinstance(value, dict):
        raise MarftError(f"{where}: expected an object with named fields, not {type(value).__name__}")
    return value


def read_table(path: Path, delimiter: str) -> list[Row]:
    """Cells stay text as they are written: an answer of 007 or 1/2 is nobody's number."""
    csv.field_size_limit(sys.maxsize)  # worked solutions and tests of programs are long
    table = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    rows: list[Row] = []
    try:
        for cells in table:
            if not cells:
                continue
            if not header:
                header = cells
            elif len(cells) != len(header):
                raise MarftError(f"{path}, line {table.line_num}: {len(cells)} cells, but {len(header)} columns")
            else:
                rows.append(dict(zip(header, cells, strict=True)))
    except csv.Error as error:
        raise MarftError(f"{path}, line {table.line_num}: {error}") from None
    return rows


def read_parquet(path: Path) -> list[Row]:
    """Needs pyarrow, which `datasets` brings along."""
    import pyarrow.parquet  # type: ignore[import-untyped]

    rows: list[Row] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


READERS: dict[str, Callable[[Path], list[Row]]] = {
    ".jsonl": read_lines,
    ".json": read_json,
    ".parquet": read_parquet,
    ".csv": partial(read_table, delimiter=","),
    ".tsv": partial(read_table, delimiter="\t"),
}
