"""What follows `=` on the command line: texts as they are, everything else as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mistakes import DUO, mistake, read
from test_keys import KEYS

from marft.arguments import parse_arguments, split_words
from marft.cli import main
from marft.config import free_settings, load_config, merge, parse, parse_yaml, to_yaml
from marft.config.schema_keys import is_text, kinds_at

TEXTS = """
device model init_from env.name team.workflow team.program.function team.program.cmd
team.agents.NAME.prompt team.agents.NAME.adapter team.agents.NAME.init_from team.agents.NAME.model team.agents.NAME.script
team.agents.NAME.inline_call
team.agents.NAME.remote.url team.agents.NAME.remote.model team.agents.NAME.remote.key_env
cluster.address rollout.replay engine.name eval.benchmarks.NAME.name track.wandb track.trackio
"""
printable = st.text(st.characters(exclude_categories=["C"]) | st.sampled_from("\n\t'\"#:{}[]$&*!|>%@`, 0.-~=\\"))


def test_which_keys_are_texts() -> None:
    """The schema's types say so; a key that becomes a text, or ceases to be one, changes this list on purpose."""
    keys = {key.partition(":")[0].replace("*", "NAME") for key in KEYS.split()}
    assert {key for key in keys if is_text(kinds_at(key.split(".")))} == set(TEXTS.split())


@settings(max_examples=300, deadline=None)
@given(printable)
@example('You solve. End with "Answer: N".')
@example("null")
@example("yes")
@example("007")
@example("1e-3")
@example("2024-01-01")
@example("${price} and ${")
@example("'open")
@example("# not a comment")
@example("a # b")
@example("[a, b]: {c}")
@example("key=value = more")
@example("- a\n- b")
@example("&a *b !c")
@example("~")
@example("")
@example(" led and trailed ")
def test_any_prompt_survives_the_command_line_and_the_file(text: str) -> None:
    words = parse_arguments(["train", f"team.agents.solver.prompt={text}"]).words
    config = load_config(*split_words(words))
    assert config.team.agents["solver"].prompt == text
    assert parse(parse_yaml(to_yaml(config), "config.yaml")) == config
    assert parse(merge(parse_yaml(to_yaml(config), "config.yaml"), [f"team.agents.solver.prompt={text}"])) == config


def test_a_prompt_survives_in_the_files_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = 'You solve: [a, "b"] # ${x} End with "Answer: N".'
    assert main(["train", f"team.agents.solver.prompt={prompt}", "--dry-run"]) == 0
    assert prompt in capsys.readouterr().out
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(load_config(None, [f"team.agents.solver.prompt={prompt}"])), encoding="utf-8")
    assert load_config(str(path)).team.agents["solver"].prompt == prompt


@settings(max_examples=100, deadline=None)
@given(printable.filter(lambda text: not text.lstrip().startswith("{")))
@example("3")
@example("null")
@example('You solve. End with "Answer: N".')
def test_an_agent_given_as_a_string_is_its_prompt(text: str) -> None:
    assert read([f"team.agents.a={text}"]).team.agents["a"].prompt == text


def test_an_agent_given_in_braces_is_its_keys() -> None:
    agent = read(["team.agents.a={prompt: 'Say: x', max_tokens: 3, stop: [END]}"]).team.agents["a"]
    assert (agent.prompt, agent.max_tokens, agent.stop) == ("Say: x", 3, ("END",))
    assert read(["team.agents.a.prompt={x: 1}"]).team.agents["a"].prompt == "{x: 1}"


@pytest.mark.parametrize("none", ["", "null"])
def test_an_optional_text_is_taken_away_by_nothing_or_null(none: str) -> None:
    base: dict[str, Any] = {**DUO, "init_from": "x", "track": {"wandb": "p"}}
    base["team"] = {"agents": {"a": {"prompt": "x", "adapter": "team"}, "b": {"prompt": "y", "adapter": "team"}}}
    words = [f"init_from={none}", f"track.wandb={none}", f"team.agents.a.adapter={none}"]
    config = read(words, base)
    assert (config.init_from, config.track.wandb, config.team.agents["a"].adapter) == (None, None, None)


def test_a_text_that_must_be_there_takes_them_literally() -> None:
    assert [read([f"team.agents.a.prompt={word}"]).team.agents["a"].prompt for word in ("", "null")] == ["", "null"]
    assert mistake("team.workflow=null").startswith("team.workflow: unknown workflow 'null'")


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("team.agents.a.stop=[END, '\\n']", ("team", "agents", "a", "stop"), ("END", "\\n")),
        ("team.agents.a.sees=[]", ("team", "agents", "a", "sees"), ()),
        ("team.agents.a.max_tokens=12", ("team", "agents", "a", "max_tokens"), 12),
        ("team.agents[a].prompt=x: y", ("team", "agents", "a", "prompt"), "x: y"),
        ("train.recompute=true", ("train", "recompute"), True),
        ("train.recompute=yes", ("train", "recompute"), True),
        ("train.budget=null", ("train", "budget"), None),
        ("optimizer.lr=1e-3", ("optimizer", "lr"), 0.001),
        ("env.level=3", ("env", "settings", "level"), 3),
        ("env.options={a: [1]}", ("env", "settings", "options"), {"a": [1]}),
        ("env.deep.er=1", ("env", "settings", "deep"), {"er": 1}),
        ("env=a.b:C", ("env", "name"), "a.b:C"),
        ("env={name: math, data: x}", ("env", "settings"), {"data": "x"}),
        ("lora.targets=[q_proj]", ("lora", "targets"), ("q_proj",)),
        ("lora.targets=all-linear", ("lora", "targets"), "all-linear"),
        ("model=org/name-1.5B", ("model",), "org/name-1.5B"),
        ("model=007", ("model",), "007"),
        ("eval.benchmarks.amc.test=x.jsonl", ("eval", "benchmarks", "amc", "given"), {"test": "x.jsonl"}),
    ],
)
def test_every_other_value_is_read_as_before(override: str, path: tuple[str, ...], value: Any) -> None:
    found: Any = read([override])
    for name in path:
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_settings_of_an_environment_under_check_know_no_schema() -> None:
    """They may be called as keys of ours are."""
    assert free_settings(["model=3", "credit=tree", "deep.er=1", "deep.est=[2]"]) == {
        "model": 3,
        "credit": "tree",
        "deep": {"er": 1, "est": [2]},
    }
