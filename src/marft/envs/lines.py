"""Lines that another process writes, each waited for no longer than it may take."""

from __future__ import annotations

import io
import queue
import threading


class Lines:
    """The lines of an unbuffered pipe, which it closes at the end. A thread reads it: no other wait works on every platform."""

    def __init__(self, pipe: io.FileIO) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def next(self, seconds: float) -> bytes | None:
        """The next whole line, without its end; None when there are no more. TimeoutError: nothing came in time."""
        try:
            line = self._lines.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise TimeoutError from None
        if line is None:
            self._lines.put(None)  # for whoever asks again
        return line

    def _read(self, pipe: io.FileIO) -> None:
        rest = b""
        with pipe:
            while piece := pipe.read(1 << 16):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    self._lines.put(line)
        self._lines.put(None)


def lines_of(pipe: object) -> Lines:
    """Of the standard output of a `subprocess.Popen` without buffers."""
    assert isinstance(pipe, io.FileIO)
    return Lines(pipe)
