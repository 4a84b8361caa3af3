"""Messages in a pipe: each with its length before it."""

from __future__ import annotations

from typing import IO

HEADER = 8  # bytes that say how many follow


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(HEADER, "big") + data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """The next message; None where the pipe has ended, in the middle of one or before."""
    header = pipe.read(HEADER)
    if len(header) < HEADER:
        return None
    size = int.from_bytes(header, "big")
    data = pipe.read(size)
    return data if len(data) == size else None
