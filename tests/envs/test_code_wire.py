"""What crosses between the sandboxes comes out as it went in, and what is not plain does not cross."""

from __future__ import annotations

import json
import socket
import time
from itertools import count
from types import GeneratorType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.envs.code.remote_tests import Remote, is_equal
from marft.envs.code.wire import Channel, Hung, NotPlain, pack, unpack

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.complex_numbers(allow_nan=False)  # fmt: skip
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
VALUES = st.recursive(
    HASHABLE | st.sets(HASHABLE, max_size=3) | st.sampled_from([int, str, list, dict]) | st.builds(range, st.integers(), st.integers(), st.integers(min_value=1)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HASHABLE, inner, max_size=3) | st.tuples(inner),
    max_leaves=12,
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["int", "set", "dict", "kept", "tuple", "bytes", "type", "range", "keys", "items", "iterator", "x"]), inner),
)  # fmt: skip


class Repeated:
    """An iterator of somebody's own class, which may have methods that a test calls."""

    def __iter__(self) -> Repeated:
        return self

    def __next__(self) -> int:
        return 1


def refuse(value: Any) -> Any:
    raise NotPlain(value)


def kinds(value: Any) -> Any:
    """The types all the way down: True equals 1, but is not the same."""
    if isinstance(value, dict):
        return dict, sorted(str((kinds(k), kinds(v))) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        inner = [str(kinds(each)) for each in value]
        return type(value), inner if isinstance(value, list | tuple) else sorted(inner)
    return type(value)


@given(VALUES)
def test_there_and_back(value: Any) -> None:
    back = unpack(json.loads(json.dumps(pack(value, refuse))), refuse)
    assert back == value
    assert kinds(back) == kinds(value)


@settings(max_examples=60)
@given(JSON)
def test_whatever_comes_is_plain_or_an_exception(data: Any) -> None:
    try:
        value = unpack(data, lambda key: Remote(refuse, key))
    except Exception:
        return
    assert type(value) in (type(None), bool, int, float, str, bytes, list, tuple, set, frozenset, dict, type, complex, Remote, range, type({}.keys()), type({}.items()), GeneratorType)  # fmt: skip


@pytest.mark.parametrize("value", [object(), print, count(), Repeated(), type, Exception, type("L", (list,), {})()])  # fmt: skip
def test_what_is_not_plain_is_kept_back(value: Any) -> None:
    with pytest.raises(NotPlain):
        pack(value, refuse)
    assert pack([value], lambda each: {"kept": 0}) == [{"kept": 0}]


def test_a_remote_says_nothing() -> None:
    remote = Remote(refuse, 0)
    for question in (
        lambda: remote == 1, lambda: remote != 1, lambda: remote < 1, lambda: bool(remote), lambda: len(remote),
        lambda: list(remote), lambda: {remote}, lambda: remote in [1], lambda: [1].count(remote), lambda: not remote,
    ):  # fmt: skip
        with pytest.raises(NotPlain):
            question()


@given(st.lists(HASHABLE, max_size=4), st.lists(HASHABLE, max_size=4))
def test_views_and_iterators(keys: list[Any], values: list[Any]) -> None:
    table = dict(zip(keys, values, strict=False))
    found = unpack(
        json.loads(json.dumps(pack([table.keys(), table.values(), table.items(), iter(values)], refuse))), refuse
    )
    assert [*map(type, found[:3])] == [type(table.keys()), type(table.values()), type(table.items())]
    assert [*map(list, found)] == [[*table], [*table.values()], [*table.items()], values]
    assert (found[0], found[2]) == (table.keys(), table.items())


def test_an_endless_iterator_is_kept_whole() -> None:
    kept: list[Any] = []
    assert pack(count(), lambda each: kept.append(each) or {"kept": 0}) == {"kept": 0}  # type: ignore[func-returns-value]
    assert [next(kept[0]) for _ in range(20_000)] == [*range(20_000)]
    assert len(pack(iter(range(10_000)), refuse)["iterator"]) == 10_000


@pytest.mark.parametrize("kind", [int, float, str])
def test_numbers_and_texts_of_other_classes_cross_as_what_they_are(kind: type[Any]) -> None:
    def lie(self: Any) -> Any:
        return kind("7")

    liar = type("Liar", (kind,), {"__int__": lie, "__float__": lie, "__str__": lie, "__index__": lie, "__repr__": lie})
    back = unpack(pack(liar("3"), refuse), refuse)
    assert (type(back), back) == (kind, kind("3"))


@given(VALUES)
def test_equal_values_are_the_same(value: Any) -> None:
    assert is_equal(value, value, False)
    assert not is_equal(value, [value, value], False)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "gone"),
        (b"\0\0", "gone"),
        (b"\0\0\0\x05[1", "gone"),
        (b"\xff\xff\xff\xff", "too long"),
    ],
)
def test_broken_messages(sent: bytes, why: str) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(sent)
    theirs.close()
    with pytest.raises(Hung, match=why):
        Channel(ours.detach()).receive()


def test_waiting_ends() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours.detach())
    with pytest.raises(Hung, match="timed out"):
        channel.receive(time.monotonic() + 0.05)
    with pytest.raises(Hung, match="timed out"):
        channel.send("x" * 10_000_000, time.monotonic() + 0.05)
    theirs.close()
