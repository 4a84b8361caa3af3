"""A key that somebody writes into a config shows up in no message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mistakes import DUO, mistake, outcome, read

from marft.config import RemoteConfig, load_config, merge, parse, parse_yaml

SECRET = "sk-proj-T3BlbkFJ"
REMOTE = {"url": "https://api.openai.com/v1", "model": "m"}
KEY = "team.agents.a.remote"


def with_remote(**changes: Any) -> dict[str, Any]:
    return {**DUO, "team": {"agents": {"a": {"prompt": "x", "remote": {**REMOTE, **changes}}, "b": "y"}}}


def test_only_the_name_of_a_variable_can_be_given() -> None:
    assert [key for key in RemoteConfig.model_fields if "key" in key] == ["key_env"]
    assert parse(with_remote(key_env="OPENAI_API_KEY")).team.agents["a"].remote == RemoteConfig(
        url=REMOTE["url"], model="m", key_env="OPENAI_API_KEY"
    )


def test_a_key_is_an_unknown_key() -> None:
    expected = f"unknown key '{KEY}.key'; did you mean '{KEY}.key_env'?"
    assert mistake(base=with_remote(key=SECRET)) == expected
    assert mistake(f"{KEY}.key={SECRET}") == expected  # though the url is missing too


@pytest.mark.parametrize("key", [SECRET, "hf_abcDEF123", "sk_live_123", "openai api key", "1KEY", "${KEY}", ""])
def test_a_key_in_the_place_of_its_variable(key: str) -> None:
    line = mistake(base=with_remote(key_env=key))
    assert line.startswith(f"{KEY}.key_env: not an environment variable in capitals; put the key into one")
    assert not key or key not in line


@pytest.mark.parametrize(
    "url",
    [
        f"https://user:{SECRET}@host/v1",
        f"https://{SECRET}@host/v1",
        f"https://host/v1?key={SECRET}",
        f"https://host/v1#{SECRET}",
        f"https://host/v1 {SECRET}",
        f"https://[{SECRET}",
        f"https://host:{SECRET}/v1",
        f"https://ho℀st:{SECRET}@x",  # urlsplit quotes what it cannot normalise
        f"ftp://{SECRET}",
        f"https:///{SECRET}",
        SECRET,
    ],
)
def test_a_key_in_the_address(url: str) -> None:
    line = mistake(base=with_remote(url=url))
    assert line.startswith(f"{KEY}.url: ")
    assert "; " in line
    assert SECRET not in line


@pytest.mark.parametrize("url", ["http://localhost:8000/v1", "https://host", "https://host/v1/@cf/x"])
def test_addresses(url: str) -> None:
    assert parse(with_remote(url=url)).team.agents["a"].remote == RemoteConfig(url=url, model="m")


@pytest.mark.parametrize(
    "agents",
    [
        {"a": {"prompt": "x", "remote": SECRET}},
        {"a": {"prompt": "x", "remote": [SECRET]}},
        {"a": {"prompt": "x", "remote": {**REMOTE, "model": [SECRET]}}},
        {"a": {"prompt": "x", "remote": {**REMOTE, "timeout": SECRET}}},
        {"a": {"prompt": "x", "remote": {**REMOTE, "retries": {"key": SECRET}}}},
        {"a": {"prompt": "x", "key": SECRET}},
        {"a": ["x", SECRET]},
        {"a": {"prompt": {"remote": {"key": SECRET}}}},
        [{"name": "a", "remote": {"key": SECRET}}],
        {"a": {"prompt": "x", "sees": {"key": SECRET}}},
        {"remote": {"prompt": "x", "remote": {**REMOTE, "timeout": SECRET}}},
    ],
)
def test_a_key_in_the_wrong_place(agents: Any) -> None:
    line = mistake(base={**DUO, "team": {"agents": agents}})
    assert line.split(":")[0].strip("'").removeprefix("unknown key '").startswith("team.agents")
    assert SECRET not in line


@pytest.mark.parametrize(
    "override",
    [
        f"{KEY}.key='{SECRET}",
        f"{KEY}.key={SECRET}${{",
        f"{KEY}.key={{{SECRET}: [",
        f"{KEY}.key=!!int {SECRET}",
        f"{KEY}.key: {SECRET}",
        f"{KEY}.key {SECRET}",
        f"{KEY}.key:{SECRET}==",
    ],
)
def test_a_key_in_an_override_that_cannot_be_read(override: str) -> None:
    line = mistake(override)
    assert KEY in line
    assert SECRET not in line


def test_a_key_beside_an_override_that_cannot_be_read() -> None:
    assert SECRET not in mistake(f"{KEY}.key={SECRET}", "team.agents.a.prompt=${")


@pytest.mark.parametrize("line", [f'key: "{SECRET}', f"key: {SECRET}: x", f"key: [{SECRET}", f"key: !!int {SECRET}"])
def test_a_key_in_a_file_that_cannot_be_read(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"team:\n  agents:\n    a:\n      remote:\n        {line}\n")
    found = outcome(lambda: load_config(str(path)))
    assert "is not valid YAML" in found
    assert SECRET not in found


values = st.recursive(
    st.just(SECRET) | st.integers() | st.none() | st.text(max_size=5).map(lambda text: text + SECRET),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["key", "url", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(RemoteConfig.model_fields)) | st.just("key"), values, max_size=4))
@example({"url": SECRET})
def test_no_message_about_an_endpoint_quotes_what_was_written(remote: dict[str, Any]) -> None:
    assert SECRET not in outcome(lambda: parse(with_remote(**remote)))


@example("*", "")  # an alias
@example("&a b\nc: &", " d")  # an anchor, which may come twice
@example("!", " x")  # a tag
@example("!a!", " x")  # a tag's handle
@settings(max_examples=100, deadline=None)
@given(st.text(max_size=4), st.text(max_size=4))
def test_no_message_about_an_override_quotes_a_key(before: str, after: str) -> None:
    assert SECRET not in outcome(lambda: read([f"{KEY}.key={before}{SECRET}{after}"]))
    assert SECRET not in outcome(lambda: merge(DUO, [f"{KEY}.key:{before}{SECRET}{after}"]))
    assert SECRET not in outcome(lambda: parse_yaml(f"key: {before}{SECRET}{after}\nb: [", "f.yaml"))
