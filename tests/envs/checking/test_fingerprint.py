"""Equal values have equal marks, others have not, whatever they are made of."""

from __future__ import annotations

import pickle
import random
from collections import Counter, OrderedDict, deque
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.envs.checking.fingerprint import fingerprint
from marft.types import Task

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.tuples(inner, inner)
        | st.frozensets(st.integers() | st.text())
    ),
    max_leaves=10,
)


@dataclass
class Plain:
    value: Any


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@given(PLAIN)
def test_a_copy_is_the_same(value: Any) -> None:
    assert fingerprint(deepcopy(value)) == fingerprint(value)
    assert fingerprint(pickle.loads(pickle.dumps(value))) == fingerprint(value)
    for make in (Plain, Slotted):
        assert fingerprint(deepcopy(make(value))) == fingerprint(make(value))


@given(PLAIN, PLAIN)
def test_what_differs_differs(one: Any, two: Any) -> None:
    if repr(one) != repr(two) and one != two:
        assert fingerprint(one) != fingerprint(two)
        assert fingerprint(Slotted(one)) != fingerprint(Slotted(two))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ([1], (1,)),
        ([[1], 2], [[1, 2]]),
        (["ab", "c"], ["a", "bc"]),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("1", 1),
        ({"a": 1}, {"a": 2}),
        ({1, 2}, {1, 3}),
        (deque([1]), deque([2])),
        (random.Random(1), random.Random(2)),
        (Plain(1), Slotted(1)),
        ("\ud83d", "\ud83e"),
        (len, print),
        (Task(id="a", prompt="b"), Task(id="a", prompt="b", data={"c": 1})),
        (OrderedDict(a=1), OrderedDict(a=2)),
        (Counter("ab"), Counter("abb")),
    ],
)
def test_neighbours_are_told_apart(one: Any, two: Any) -> None:
    assert fingerprint(one) != fingerprint(two)
    assert fingerprint(deepcopy(one)) == fingerprint(one)


def test_order_of_keys_and_sets_does_not_count() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({f"{i}" for i in range(99)}) == fingerprint({f"{i}" for i in reversed(range(99))})
    assert fingerprint(MappingProxyType({"a": 1})) == fingerprint({"a": 1})
    assert fingerprint(float("nan")) == fingerprint(float("nan"))


def test_a_value_that_holds_itself_comes_to_an_end() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert fingerprint(ring) == fingerprint(deepcopy(ring))


def test_what_cannot_be_saved_raises() -> None:
    with pytest.raises(TypeError):
        fingerprint(i for i in ())
