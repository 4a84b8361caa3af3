"""From files, recipes and overrides to a config: what is read, what adds up, what is dropped."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from mistakes import DUO, mistake, read

from marft.algorithms.grpo import Grpo
from marft.algorithms.marft_action import MarftAction
from marft.algorithms.marft_token import MarftToken
from marft.config import (
    load_config,
    merge,
    merge_settings,
    parse,
    parse_yaml,
    read_source,
    recipes,
    to_yaml,
)
from marft.types import MarftError


# --- sources ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(recipes()))
def test_every_recipe_parses_and_says_what_it_is(name: str) -> None:
    config = load_config(name)
    assert parse(parse_yaml(to_yaml(config), name)) == config
    assert len(recipes()[name]) > 20
    assert not recipes()[name].startswith(("model", "#"))


def test_the_default_is_duo() -> None:
    assert load_config() == load_config("duo")
    assert list(load_config().team.agents) == ["planner", "solver"]


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("team: {agents: {a: Hello.}}\nalgorithm: grpo\nenv: math\n")
    config = load_config(str(path), ["env.data=x", "seed=7"])
    assert config.team.agents["a"].prompt == "Hello."
    assert isinstance(config.algorithm, Grpo)
    assert (config.env.name, config.env.settings, config.seed) == ("math", {"data": "x"}, 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1", "is not valid YAML"),
        ("a: b: c", "is not valid YAML"),
        ("\ta: 1", "is not valid YAML"),
        ("a: \x00", "is not valid YAML"),
        ("- 1\n- 2", "not a list"),
        ("just words", "not a str"),
        ("", "team is missing"),
        ("!!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("seed: 1\nseed: 2", "the key 'seed' comes twice in line 2, column 1"),
        ("team: {agents: {a: x, a: y}}", "the key 'a' comes twice in line 1"),
        ("seed: 2024-13-45", "put it in quotes"),
        ("seed: !!int x", "put it in quotes"),
        (f"seed: {'9' * 5000}", "put it in quotes"),
        ("seed: !!bool x", "put it in quotes"),
        ("[" * 5000, "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(MarftError, match=expected) as caught:
        load_config(str(path))
    assert "\n" not in str(caught.value)


def test_sources_that_are_not_there() -> None:
    with pytest.raises(MarftError, match=r"cannot read nope\.yaml: it is missing"):
        load_config("nope.yaml")
    with pytest.raises(MarftError, match=r"there is no run and no config in runs/x"):
        load_config("runs/x")
    with pytest.raises(MarftError, match=r"unknown recipe 'du'; did you mean 'duo'\?.*marft recipes"):
        load_config("du")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes("team: größer".encode("latin-1"))
    with pytest.raises(MarftError, match="it is not a text in UTF-8; give a file in YAML, saved as UTF-8"):
        load_config(str(path))


def test_anchors_may_be_overridden() -> None:
    """A key beside `<<` is no repetition, however deep the anchor lies."""
    text = "x: &x {p: 1}\na: {b: {c: &m {<<: *x, p: 3}}}\ntop: {<<: *m, q: 4}"
    assert parse_yaml(text, "f.yaml")["top"] == {"p": 3, "q": 4}


# --- overrides --------------------------------------------------------------------------------------------------------
def test_dotted_overrides_reach_every_depth() -> None:
    config = load_config(None, ["seed=3", "train.tasks=8", "team.agents.solver.temperature=0.5", "optimizer.lr=1e-4"])
    assert (config.seed, config.train.tasks) == (3, 8)
    assert config.team.agents["solver"].temperature == 0.5
    assert config.team.agents["solver"].sees == ("planner",)  # its neighbours stay
    assert config.optimizer.lr == 1e-4


def test_the_last_of_two_equal_overrides_wins() -> None:
    assert load_config(None, ["seed=3", "seed=4"]).seed == 4


@pytest.mark.parametrize("order", [1, -1])
def test_a_shorthand_and_a_key_of_its_section_add_up_in_either_order(order: int) -> None:
    config = load_config(None, ["algorithm=grpo", "algorithm.clip_low=0.1"][::order])
    assert isinstance(config.algorithm, Grpo)
    assert config.algorithm.clip_low == 0.1
    env = load_config(None, ["env=math", "env.data=x"][::order]).env
    assert (env.name, env.settings) == ("math", {"data": "x"})
    agent = load_config(None, ["team.agents.solver=Go.", "team.agents.solver.max_tokens=3"][::order]).team.agents[
        "solver"
    ]
    assert (agent.prompt, agent.max_tokens) == ("Go.", 3)


def test_shorthands() -> None:
    config = parse(
        {
            **DUO,
            "env": "math",
            "algorithm": {"name": "grpo", "kl": 0.1},
            "credit": "tree",
            "critic": "none",
            "schedule": "resample",
        }
    )
    assert config.env.name == "math"
    assert (config.algorithm.name, config.algorithm.kl.weight) == ("grpo", 0.1)
    assert (config.credit.name, config.critic.mode, config.schedule.mode) == ("tree", "none", "resample")
    assert config.team.agents["a"].prompt == "One."


@pytest.mark.parametrize("kl", [1, 0.5, "1e-3"])  # YAML takes 1e-3 for a text
def test_a_kl_in_one_number_is_its_weight(kl: Any) -> None:
    assert parse({**DUO, "algorithm": {"name": "rae", "kl": kl}}).algorithm.kl.weight == float(kl)


@pytest.mark.parametrize("order", [1, -1])
def test_a_kl_in_one_number_and_its_keys_add_up_in_either_order(order: int) -> None:
    kl = read(["algorithm.kl=0.1", "algorithm.kl.estimator=k2"][::order]).algorithm.kl
    assert (kl.weight, kl.estimator) == (0.1, "k2")


def test_another_weight_leaves_the_kl_as_it_is() -> None:
    base = {**DUO, "algorithm": {"name": "grpo", "kl": {"weight": 0.1, "where": "reward"}}}
    kl = read(["algorithm.kl=0.2"], base).algorithm.kl
    assert (kl.weight, kl.where) == (0.2, "reward")


def test_another_algorithm_keeps_of_the_old_ones_settings_what_it_has_too() -> None:
    base = {**DUO, "algorithm": {"name": "marft-token", "lam": 1.0, "token_lam": 0.9, "clip_low": 0.3}}
    assert parse(merge(base, ["algorithm=grpo"])).algorithm == Grpo(name="grpo", clip_low=0.3)
    action = parse(merge(base, ["algorithm=marft-action", "algorithm.clip_low=0.1"])).algorithm
    assert action == MarftAction(name="marft-action", lam=1.0, clip_low=0.1)
    kept = parse(merge(base, ["algorithm=marft-token", "algorithm.token_gamma=0.5"])).algorithm
    assert kept == MarftToken(name="marft-token", lam=1.0, token_lam=0.9, clip_low=0.3, token_gamma=0.5)
    assert parse(merge_settings(base, {"algorithm": {"name": "grpo", "std_floor": 0.1}})).algorithm == Grpo(
        name="grpo", std_floor=0.1, clip_low=0.3
    )


def test_an_algorithm_whose_name_is_no_text_is_one_line() -> None:
    with pytest.raises(MarftError, match="algorithm"):
        parse(merge(DUO, ["algorithm.name=[x]"]))


def test_another_environment_drops_the_old_ones_settings() -> None:
    base = {**DUO, "env": {"name": "arithmetic", "level": 3}}
    assert parse(merge(base, ["env=math", "env.data=x"])).env.settings == {"data": "x"}
    assert parse(merge(base, ["env.level=4"])).env.settings == {"level": 4}


def test_another_credit_drops_the_old_ones_settings() -> None:
    base = {**DUO, "credit": {"name": "step_discounted", "beta": 0.5}}
    assert read(["credit=per_step"], base).credit.model_dump() == {"name": "per_step", "gamma": 1.0}
    assert read(["credit.beta=0.4"], base).credit.model_dump() == {"name": "step_discounted", "beta": 0.4}


def test_another_schedule_drops_the_old_ones_settings() -> None:
    base = {**DUO, "schedule": {"mode": "alternate", "interval": 2}}
    assert read(["schedule=joint"], base).schedule.interval is None
    assert read(["schedule=alternate"], base).schedule.interval == 2


def test_another_workflow_drops_the_old_ones_settings() -> None:
    base = {**DUO, "team": {**DUO["team"], "workflow": "debate", "rounds": 3}}
    assert read(["team.workflow=vote", "team.votes=2"], base).team.settings == {"votes": 2}
    assert read(["team.workflow=rounds"], base).team.settings == {}
    assert read(["team.rounds=4"], base).team.settings == {"rounds": 4}
    assert read(["team.workflow=debate"], base).team.settings == {"rounds": 3}


def test_another_critic_keeps_its_settings() -> None:
    base = {**DUO, "critic": {"mode": "shared", "lr": 0.1, "warmup": 2}}
    assert read(["critic=per_agent"], base).critic.model_dump() == {"mode": "per_agent", "lr": 0.1, "warmup": 2}


@pytest.mark.parametrize("odd", [None, 5, [1]])
@pytest.mark.parametrize("section", ["env", "algorithm"])
def test_an_override_repairs_a_section_of_the_wrong_kind(section: str, odd: Any) -> None:
    name = {"env": "arithmetic", "algorithm": "grpo"}[section]
    assert getattr(parse(merge({**DUO, section: odd}, [f"{section}={name}"])), section).name == name


def test_the_base_is_left_as_it_was() -> None:
    base = read_source("duo")
    copy = yaml.safe_load(yaml.safe_dump(base))
    merge(base, ["algorithm=grpo", "team.agents.solver.max_tokens=3", "env=math"])
    assert base == copy


def test_what_is_not_an_override() -> None:
    assert mistake("seed") == "'seed' is not an override; write key=value"
    assert mistake("seed: 3") == "'seed' is not an override; write key=value"
    assert "unknown key" in mistake("=3")
    assert "seed" in mistake("seed=")


def test_values_that_are_no_text_are_yaml() -> None:
    assert mistake("seed=[1").startswith("cannot read the value of 'seed': ")
    assert mistake("env.instruction=End with: a: b").endswith("; write a text as 'env.instruction=\"…\"'")
    assert mistake("env.instruction=${") == (
        "cannot apply 'env.instruction': its value holds an open '${'; write it in a file"
    )
    assert read(["env.instruction='End with: \"N\"'"]).env.settings == {"instruction": 'End with: "N"'}


# --- extends ----------------------------------------------------------------------------------------------------------
def test_a_file_may_extend_a_recipe_or_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "below.yaml").write_text("extends: duo\ntrain: {iterations: 3, tasks: 5}\n")
    (tmp_path / "above.yaml").write_text("extends: below.yaml\nalgorithm: grpo\ntrain: {tasks: 7}\n")
    config, duo = load_config(str(tmp_path / "above.yaml"), ["seed=4"]), load_config("duo")
    assert (config.train.iterations, config.train.tasks, config.train.samples) == (3, 7, duo.train.samples)
    assert config.algorithm == parse({**DUO, "algorithm": "grpo"}).algorithm  # nothing of marft-token is left
    assert (config.team, config.seed) == (duo.team, 4)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("extends: 3", "name a recipe or a .yaml file"),
        ("extends: mine.yaml", "never ends; drop one of them"),
        ("extends: other.yaml", "never ends; drop one of them"),
        ("extends: nothing.yaml", "cannot read"),
        ("extends: duoo", "unknown recipe 'duoo'; did you mean 'duo'?"),
    ],
)
def test_what_cannot_be_extended(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "other.yaml").write_text("extends: mine.yaml")
    with pytest.raises(MarftError, match=re.escape(line)):
        load_config(str(tmp_path / "mine.yaml"))


def test_one_benchmark_of_a_list_can_be_overridden() -> None:
    config = read(["eval.benchmarks.amc.test=x.jsonl"], {**DUO, "eval": {"benchmarks": ["amc", "aime-2024"]}})
    given = {name: each.given for name, each in config.eval.benchmarks.items()}
    assert given == {"amc": {"data": "amc", "test": "x.jsonl"}, "aime-2024": {"data": "aime-2024"}}
