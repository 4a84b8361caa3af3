"""Files that others may have damaged: read whole, within a limit and of the expected shape, or refused in one line.

A FIFO, a device or a folder in a file's place is refused without waiting for it. JSON is an object of a known shape, which
a dataclass tells.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache, partial
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, TypeAdapter, ValidationError

from marft.types import MarftError

T = TypeVar("T")
# pydantic would take texts for numbers, and numbers for truth values
Count = Annotated[int, Field(strict=True, ge=0, le=1 << 62)]
Natural = Annotated[int, Field(strict=True, ge=1, le=1 << 62)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Truth = Annotated[bool, Field(strict=True)]
ABSENT: Any = None  # the default of a field that may be missing, but may not be null

LARGEST = 16 << 20  # bytes of a file that is read as a whole
LONGEST = 64 << 20  # bytes of a line
SHOWN = 80  # characters of what a file says that a refusal quotes
RESTORE = "nothing was changed; put it back from a copy, or begin anew in another folder"
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
DENIED = (errno.EACCES, errno.EPERM)


class Damaged(MarftError):
    """A file that cannot be what was written. `reason` is without the file's name and the remedy."""

    def __init__(self, path: Path, reason: str, remedy: str = RESTORE) -> None:
        super().__init__(f"{path} {reason}; {remedy}")
        self.path, self.reason = path, reason


class Denied(Damaged):
    """A file that may be whole, but not for this user."""


class Missing(Damaged):
    """A file that is not there."""


class OtherVersion(Damaged):
    """A file that is whole, but was written by another version of marft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a file: where it stands, its bytes without the line's end, and what they say."""

    path: Path
    number: int
    line: bytes
    data: dict[str, Any]


# --- what stands at a path -------------------------------------------------------------------------------------------
def is_there(path: Path) -> bool:
    """Whether anything stands at `path`, also a link that leads nowhere."""
    return file_mode(path, follow=False) is not None


def is_folder(path: Path) -> bool:
    """Whether a folder is there, also by a link."""
    mode = file_mode(path, follow=True)
    return mode is not None and stat.S_ISDIR(mode)


def file_mode(path: Path, *, follow: bool) -> int | None:
    """What stands at `path`, as the system says it; None: nothing. Raises Denied where that cannot be seen."""
    try:
        return os.stat(path, follow_symlinks=follow).st_mode
    except OSError as error:
        if error.errno in DENIED:
            raise denied_error(path, error) from None
        return None
    except ValueError:  # a name that no file can have
        return None


def check_folder(path: Path) -> None:
    """Nothing stands at `path`, or a folder."""
    if is_there(path) and not is_folder(path):
        raise Damaged(path, f"is {file_kind(path)} and should be a folder")


def check_file(path: Path) -> None:
    """Nothing stands at `path`, or a file that can be read."""
    if is_there(path):
        open_file(path).close()


def open_file(path: Path) -> BufferedReader:
    """A regular file, for reading: whatever else stands there is refused at once, also where opening it would wait."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise read_error(path, error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Damaged(path, f"is {file_kind(path)} and should be a file")
    return os.fdopen(descriptor, "rb")


def read_error(path: Path, error: OSError) -> Damaged:
    """What the system says of a file that it does not let us read."""
    if error.errno in DENIED:
        return denied_error(path, error)
    if error.errno == errno.ENXIO:
        return Damaged(path, "is a socket or a device and should be a file")
    if os.path.islink(path):
        return Damaged(path, "is a link that leads nowhere")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Missing(path, "is missing")
    return Damaged(path, f"cannot be read ({error.strerror})")


def denied_error(path: Path, error: OSError) -> Denied:
    """The error for a file that may not be read."""
    return Denied(path, f"cannot be read ({error.strerror})", "make it readable; nothing was changed")


def file_kind(path: Path) -> str:
    """What stands at a path: a file, a folder, a pipe …"""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "a file")
    except OSError:
        return "a link that leads nowhere"


# --- contents --------------------------------------------------------------------------------------------------------
def read_bytes(path: Path, limit: int = LARGEST) -> bytes:
    """All of a file; raises Damaged where it has more than `limit` bytes or cannot be read."""
    with open_file(path) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise read_error(path, error) from None
    if len(data) > limit:
        raise Damaged(path, f"is larger than {limit >> 20} MiB")
    return data


def read_text(path: Path, limit: int = LARGEST) -> str:
    """All of a file in UTF-8; raises Damaged where it is none."""
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError:
        raise Damaged(path, "is not a text in UTF-8") from None


def read_json(path: Path, shape: type[T], limit: int = LARGEST) -> T:
    """The object in a file, which may have other keys beside."""
    return parse_object(path, shape, limit)[1]


def read_whole_json(path: Path, shape: type[T], limit: int = LARGEST) -> T:
    """The same, where a key that `shape` does not have means that another version of marft has written the file."""
    data, found = parse_object(path, shape, limit)
    if unknown := sorted(data.keys() - {each.name for each in fields(cast(Any, shape))}):
        reason = f"has {quote_key(unknown[0])}, which this version of marft does not know"
        raise OtherVersion(path, reason, "nothing was changed; use the version that wrote it")
    return found


def read_object(path: Path, shape: type[Any], limit: int = LARGEST) -> dict[str, Any]:
    """The object in a file as plain data; what `shape` has of it is as `shape` says."""
    return parse_object(path, shape, limit)[0]


def parse_object(path: Path, shape: type[T], limit: int) -> tuple[dict[str, Any], T]:
    """The object in a file, as plain data and as a `shape`."""
    try:
        data: dict[str, Any] = parse_json(read_bytes(path, limit))
        return data, validate_shape(data, shape)
    except ValueError as error:
        raise Damaged(path, f"is damaged: {error}") from None


# --- lines -----------------------------------------------------------------------------------------------------------
def read_rows(path: Path, shape: type[Any]) -> Iterator[Row]:
    """The objects of a file, one a line; none where it is missing. A last line that a kill has torn is left out."""
    if not is_there(path):
        return
    with open_file(path) as file:
        for number, line in enumerate(iter(partial(file.readline, LONGEST + 1), b""), start=1):
            if len(line) > LONGEST:
                raise Damaged(path, f"is damaged: line {number} is longer than {LONGEST >> 20} MiB")
            try:
                data = parse_json(line)
            except ValueError as error:
                if is_torn(line) and not file.read(1):
                    return
                raise damaged_line(path, number, error) from None
            row = Row(path=path, number=number, line=line.removesuffix(b"\n"), data=data)
            check_row(row, shape)
            yield row


def check_row(row: Row, shape: type[Any]) -> None:
    """Raise Damaged, with the line's number, unless the row has the keys and types of `shape`."""
    try:
        validate_shape(row.data, shape)
    except ValueError as error:
        raise damaged_line(row.path, row.number, error) from None


def damaged_line(path: Path, number: int, reason: object) -> Damaged:
    """The error for one line of a file."""
    remedy = f"nothing was changed; put the file back from a copy, or mend or delete line {number}"
    return Damaged(path, f"is damaged: line {number}: {reason}", remedy)


def is_ended(path: Path) -> bool:
    """Whether the last line of a file has its end."""
    with open_file(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) in (b"\n", b"")


def is_torn(line: bytes) -> bool:
    """Whether a kill or a power cut may have left it so: the beginning of an object, or never filled at all."""
    return (line.startswith(b"{") and not line.endswith(b"\n")) or not line.strip(b"\0\n")


# --- JSON ------------------------------------------------------------------------------------------------------------
def parse_json(raw: bytes) -> Any:
    """ValueError, with a few words, for whatever is no JSON of ours."""
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg})") from None
    except UnicodeDecodeError:
        raise ValueError("it is not JSON in UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise ValueError(str(error).partition(";")[0]) from None


def refuse_constant(name: str) -> Any:
    """Raise ValueError for NaN and infinities, which Python's JSON reader would accept."""
    raise ValueError(f"{name} is no number")


@cache
def type_adapter(shape: Any) -> TypeAdapter[Any]:
    """Pydantic's validator of a dataclass, made once."""
    return TypeAdapter(shape)


def validate_shape(data: Any, shape: type[T]) -> T:
    """`data` as a `shape`; ValueError, with a few words, where it is none."""
    if not isinstance(data, dict):
        raise ValueError(f"it holds a {type(data).__name__} and should hold an object")
    try:
        found: T = type_adapter(cast(Any, shape)).validate_python(data)
    except ValidationError as error:
        raise ValueError(describe_mismatch(error)) from None
    return found


def describe_mismatch(error: ValidationError) -> str:
    """The first mistake in a few words: which key, and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{quote_key(where)}: {first['msg'][:1].lower()}{first['msg'][1:]}"


def quote_key(text: str) -> str:
    """The text's repr, cut where it is long."""
    return repr(text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…")
