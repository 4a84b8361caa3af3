"""Files that others may have damaged: what is read, what is refused, and that nobody waits."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft import files
from marft.files import (
    ABSENT,
    Count,
    Damaged,
    Denied,
    Finite,
    Missing,
    OtherVersion,
    check_folder,
    is_ended,
    is_folder,
    is_there,
    open_file,
    read_bytes,
    read_json,
    read_object,
    read_rows,
    read_text,
    read_whole_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    iteration: Count
    value: Finite = 0.0
    inner: Inner = ABSENT


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Whoever waits is told so."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# --- what stands at a path --------------------------------------------------------------------------------------------
def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket is short
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


KINDS = {
    "is a FIFO and should be a file": os.mkfifo,
    "is a folder and should be a file": Path.mkdir,
    "is a device and should be a file": lambda path: path.symlink_to("/dev/zero"),
    "is a socket or a device and should be a file": make_socket,
    "is a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("said", KINDS)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, said: str) -> None:
    path = tmp_path / "file"
    KINDS[said](path)
    assert is_there(path)
    for read in (open_file, read_bytes, read_text, lambda path: list(read_rows(path, Shape))):
        with pytest.raises(Damaged, match=rf"file {said}; nothing was changed; put it back from a copy"):
            read(path)  # type: ignore[operator]


def test_a_link_to_a_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert read_text(tmp_path / "link") == "text"


def test_what_is_missing(tmp_path: Path) -> None:
    for path in (tmp_path / "file", tmp_path / "a\0b", tmp_path / ("x" * 5000)):
        assert not is_there(path)
        assert not is_folder(path)
        check_folder(path)
    with pytest.raises(Missing, match="file is missing"):
        read_bytes(tmp_path / "file")
    (tmp_path / "file").touch()
    with pytest.raises(Missing):
        read_bytes(tmp_path / "file" / "below")
    with pytest.raises(Damaged, match="is a file and should be a folder"):
        check_folder(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="nobody else can take away a right of the tests' user and get it back")
def test_what_may_not_be_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        closed = Path(folder) / "closed"
        closed.mkdir()
        (closed / "file").touch()
        os.chmod(closed, 0)
        os.seteuid(65534)
        try:
            for look in (is_there, is_folder, read_bytes):
                with pytest.raises(Denied, match=r"cannot be read \(Permission denied\); make it readable"):
                    look(closed / "file")
        finally:
            os.seteuid(0)


def test_a_file_has_a_limit_of_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b" " * 10)
    assert read_bytes(path, 10) == b" " * 10
    os.truncate(path, 3 << 40)  # takes no disk
    with pytest.raises(Damaged, match="is larger than 16 MiB"):
        read_bytes(path)


# --- objects ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is not JSON"),
        ("[1]", "it holds a list and should hold an object"),
        ("[" * 100_000, "it is nested too deeply"),
        ("{}", "'iteration': field required"),
        ('{"iteration": "1"}', "'iteration': input should be a valid integer"),
        ('{"iteration": true}', "'iteration': input should be a valid integer"),
        ('{"iteration": 1.0}', "'iteration': input should be a valid integer"),
        ('{"iteration": -1}', "'iteration': input should be greater than or equal to 0"),
        (f'{{"iteration": {10**30}}}', "'iteration': input should be less than"),
        (f'{{"iteration": {"1" * 5000}}}', "for integer string conversion"),
        ('{"iteration": 1, "value": NaN}', "NaN is no number"),
        ('{"iteration": 1, "value": 1e999}', "'value': input should be a finite number"),
        ('{"iteration": 1, "value": "1"}', "'value': input should be a valid number"),
        ('{"iteration": 1, "inner": null}', "'inner': input should be"),
        ('{"iteration": 1, "inner": {"text": 3}}', "'inner.text': input should be a valid string"),
    ],
)
def test_an_object_of_another_shape_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    for read in (read_json, read_object, read_whole_json):
        with pytest.raises(Damaged) as error:
            read(path, Shape)
        assert str(error.value).startswith(f"{path} is damaged: ")
        assert said in str(error.value)
        assert "\n" not in str(error.value)


def test_other_keys_are_let_through_or_are_another_version(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"iteration": 1, "inner": {"text": "\\ud800"}, "more": 2}')
    assert read_json(path, Shape) == Shape(iteration=1, inner=Inner(text="\ud800"))
    assert read_object(path, Shape) == {"iteration": 1, "inner": {"text": "\ud800"}, "more": 2}
    with pytest.raises(OtherVersion, match="has 'more', which this version of marft does not know"):
        read_whole_json(path, Shape)


@given(st.binary(max_size=60) | st.recursive(st.none() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["iteration", "value", "inner", "text"]), inner, max_size=4)).map(lambda data: json.dumps(data).encode()))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_whatever_a_file_holds_it_is_read_or_refused_in_one_line(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        try:
            assert read_json(path, Shape).iteration >= 0
        except Damaged as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017


# --- lines ------------------------------------------------------------------------------------------------------------
@given(st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=5) | st.integers(), max_size=3), min_size=1, max_size=4), st.data())  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_a_file_that_is_cut_anywhere_has_the_rows_before(given_rows: list[dict[str, Any]], data: st.DataObject) -> None:
    wanted = [{**row, "iteration": i} for i, row in enumerate(given_rows)]
    whole = b"".join(json.dumps(row).encode() + b"\n" for row in wanted)
    cut = data.draw(st.integers(0, len(whole)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(whole[:cut])
        found = [row.data for row in read_rows(path, Shape)]
        assert is_ended(path) == (cut == 0 or whole[cut - 1 : cut] == b"\n")
    assert found == wanted[: len(found)]
    assert len(found) >= whole[:cut].count(b"\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"iteration": 1}\n{"iter\n', "line 2: it is not JSON"),
        (b'{"iteration": 1}\n{"iter\n{"iteration": 3}\n', "line 2: it is not JSON"),
        (b'{"iteration": 1}\n3', "line 2: it holds a int"),
        (b'{"iteration": 1}\ngarbage', "line 2: it is not JSON"),
        (b'{"iteration": 1}\n\n{"iteration": 2}\n', "line 2: it is not JSON"),
        (b'{"iteration": 1}\n{}', "line 2: 'iteration': field required"),
        (b"\xff\xfe\n", "line 1: it is not JSON in UTF-8"),
        (b"[" * 100_000, "line 1: it is nested too deeply"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(text)
    with pytest.raises(Damaged) as error:
        list(read_rows(path, Shape))
    assert f"{path} is damaged: {said}" in str(error.value)
    assert "mend or delete line" in str(error.value)


def test_a_line_has_a_limit_of_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST", 30)
    path = tmp_path / "file"
    path.write_text('{"iteration": 1}\n{"iteration": 2' + " " * 30)
    with pytest.raises(Damaged, match="line 2 is longer than"):
        list(read_rows(path, Shape))
