"""A few lines of YAML that stand for billions of values."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.config import parse_yaml
from marft.config.safe_yaml import MOST
from marft.types import MarftError


def bomb(levels: int, times: int = 9) -> str:
    lines = [f"a0: &a0 [{', '.join(['x'] * times)}]"]
    lines += [f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * times)}]" for i in range(levels)]
    return "\n".join(lines)


@given(levels=st.integers(4, 200), times=st.integers(9, 20))
@settings(max_examples=25, deadline=None)
def test_a_bomb_ends_in_time(levels: int, times: int) -> None:
    began = time.monotonic()
    with pytest.raises(MarftError, match="aliases stand for more than 20,000 values"):
        parse_yaml(bomb(levels, times), "f.yaml")
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [*a]", "an alias stands for what it stands in"),
        ("a: &a {b: {c: *a}}", "an alias stands for what it stands in"),
        ("a: &a " + "x" * 3000 + "\n" + "b: [" + "*a, " * 1000 + "]", "aliases stand for more than"),
        ("a: [" + "1, " * (MOST + 1) + "]", "more than 20,000 values"),
        ("[" * 100_000, "it is nested too deeply"),
        ("{a: " * 100_000, "it is nested too deeply"),
    ],
)  # fmt: skip
def test_other_ways_to_have_too_much(text: str, said: str) -> None:
    began = time.monotonic()
    with pytest.raises(MarftError, match=said):
        parse_yaml(text, "f.yaml")
    assert time.monotonic() - began < 10


def test_aliases_are_welcome() -> None:
    text = "base: &base {prompt: be brief, max_tokens: 5}\nagents: {a: *base, b: {<<: *base, max_tokens: 7}, c: *base}"
    assert parse_yaml(text, "f.yaml")["agents"]["b"] == {"prompt": "be brief", "max_tokens": 7}
    assert parse_yaml(bomb(2), "f.yaml")["a1"] == [["x"] * 9] * 9
