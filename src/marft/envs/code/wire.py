"""What crosses between the sandbox of a program and the sandbox of its tests: plain values, as JSON.

The text of this file also runs inside the sandboxes, so it needs nothing but the standard library.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

LONGEST = 8 * 1024 * 1024  # bytes of one message
BIG = 2**53  # whole numbers from here on travel as text
MOST = 10_000  # what an iterator may yield to cross
COLLECTED: dict[str, type[Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
VIEWS: dict[str, type[Any]] = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
TYPES: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, dict, tuple, set, frozenset)
}


class NotPlain(Exception):
    """A value that cannot be judged by itself."""


class Hung(Exception):
    """The program is gone, or did not answer in time."""


def pack(value: Any, keep: Callable[[Any], dict[str, Any]]) -> Any:
    """A value as JSON; `keep` says what stands for one that is not plain.

    Numbers and texts of other classes, like those of an IntEnum, cross as the plain ones that they are.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -BIG < number < BIG else {"int": hex(number)}
    if type(value) is list:
        return [pack(each, keep) for each in value]
    if type(value) in (bytes, bytearray):
        return {"bytes": value.hex()}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    if isinstance(value, dict):  # Counter, defaultdict, OrderedDict are equal to the plain dict
        return {"dict": [[pack(key, keep), pack(each, keep)] for key, each in value.items()]}
    for name, kind in (COLLECTED | VIEWS).items():
        if isinstance(value, kind):  # so are named tuples
            return {name: [pack(each, keep) for each in value]}
    if type(value) is range:
        return {"range": [pack(each, keep) for each in (value.start, value.stop, value.step)]}
    if isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
        begun = list(islice(value, MOST + 1))
        return {"iterator": pack(begun, keep)} if len(begun) <= MOST else keep(chain(begun, value))
    for name, kind in TYPES.items():
        if value is kind:
            return {"type": name}
    return keep(value)


def unpack(data: Any, recall: Callable[[Any], Any]) -> Any:
    """The value that `pack` wrote; `recall` finds what was kept."""
    if isinstance(data, list):
        return [unpack(each, recall) for each in data]
    if not isinstance(data, dict):
        return data
    [(kind, inner)] = data.items()
    match kind:
        case "int":
            return int(inner, 16)
        case "bytes":
            return bytes.fromhex(inner)
        case "complex":
            return complex(*inner)
        case "dict":
            return {unpack(key, recall): unpack(each, recall) for key, each in inner}
        case "tuple" | "set" | "frozenset":
            return COLLECTED[kind](unpack(each, recall) for each in inner)
        case "keys":
            return dict.fromkeys(unpack(each, recall) for each in inner).keys()
        case "values":
            return {at: unpack(each, recall) for at, each in enumerate(inner)}.values()
        case "items":
            return dict(unpack(each, recall) for each in inner).items()
        case "range":
            return range(*(unpack(each, recall) for each in inner))
        case "iterator":
            return (each for each in [unpack(each, recall) for each in inner])
        case "type":
            return TYPES[inner]
        case "kept":
            return recall(inner)
    raise NotPlain(kind)


class Channel:
    """Messages of JSON, each behind its length."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)

    def send(self, message: Any, deadline: float | None = None) -> None:
        """Sends one message; Hung where the other side is gone or reads nothing until `deadline`."""
        data = json.dumps(message).encode()
        self.set_timeout(deadline)
        try:
            self.socket.sendall(len(data).to_bytes(4, "big") + data)
        except OSError as error:
            raise Hung(str(error)) from None

    def receive(self, deadline: float | None = None) -> Any:
        """The next message; Hung where none comes until `deadline`."""
        length = int.from_bytes(self.receive_exactly(4, deadline), "big")
        if length > LONGEST:
            raise Hung("a message that is too long")
        return json.loads(self.receive_exactly(length, deadline))

    def receive_exactly(self, count: int, deadline: float | None) -> bytes:
        """The next `count` bytes."""
        data = bytearray()
        while len(data) < count:
            self.set_timeout(deadline)
            try:
                chunk = self.socket.recv(min(count - len(data), 65536))
            except OSError as error:
                raise Hung(str(error)) from None
            if not chunk:
                raise Hung("the other side is gone")
            data += chunk
        return bytes(data)

    def set_timeout(self, deadline: float | None) -> None:
        """Sets the socket's timeout to what is left of `deadline`; None waits for ever."""
        self.socket.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
