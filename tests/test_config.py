"""The config: what is read, what is refused and how, and which keys there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from marft.config import (
    ALGORITHMS,
    Config,
    GrpoConfig,
    MarftTokenConfig,
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

DUO: dict[str, Any] = {"team": {"agents": {"a": "One.", "b": "Two."}}, "algorithm": "marft-token"}
KEYS = """
seed device dtype model init_from
env.name
team.workflow team.agents.*.prompt team.agents.*.sees team.agents.*.temperature team.agents.*.max_tokens team.agents.*.lr
algorithm.name:marft-token algorithm.name:marft-action algorithm.name:grpo
algorithm.clip_low algorithm.clip_high algorithm.entropy algorithm.kl algorithm.lam algorithm.whiten
algorithm.value_clip algorithm.value_loss algorithm.aggregation algorithm.token_gamma algorithm.token_lam
algorithm.normalise algorithm.std_floor
credit.name critic.mode critic.lr critic.warmup schedule.mode
lora.rank lora.alpha lora.targets
optimizer.lr optimizer.weight_decay optimizer.grad_clip optimizer.warmup optimizer.decay
train.iterations train.tasks train.samples train.epochs train.minibatches train.tokens
engine.slots
eval.tasks eval.every eval.temperature eval.top_p eval.top_k
checkpoint.every checkpoint.keep
track.tensorboard track.wandb track.trackio track.episodes
"""


def mistake(*overrides: str, base: dict[str, Any] | None = None) -> str:
    """The one line that a wrong config ends in."""
    with pytest.raises(MarftError) as caught:
        parse(merge(base if base is not None else DUO, overrides))
    line = str(caught.value)
    assert line
    assert "\n" not in line
    return line


def outcome(call: Callable[[], object]) -> str:
    """The line of a mistake; any other exception gets through."""
    try:
        call()
    except MarftError as error:
        return str(error)
    return "fine"


def keys(model: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        if prefix == "" and name == "algorithm":
            for label, one in ALGORITHMS.items():
                found |= {f"algorithm.name:{label}"} | {f"algorithm.{n}" for n in one.model_fields if n != "name"}
        elif get_origin(kind) is dict:
            found |= keys(get_args(kind)[1], f"{prefix}{name}.*.")
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            found |= keys(kind, f"{prefix}{name}.")
        else:
            found.add(f"{prefix}{name}")
    return found


def test_the_keys_of_the_config() -> None:
    """They are public: a key that comes, goes or changes its name is changed here too, on purpose."""
    assert keys(Config) == set(KEYS.split())


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
    path.write_text("team: {agents: {a: Hello.}}\nalgorithm: grpo\nenv: gsm8k\n")
    config = load_config(str(path), ["env.path=x", "seed=7"])
    assert config.team.agents["a"].prompt == "Hello."
    assert isinstance(config.algorithm, GrpoConfig)
    assert (config.env.name, config.env.settings, config.seed) == ("gsm8k", {"path": "x"}, 7)


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
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(MarftError, match=expected) as caught:
        load_config(str(path))
    assert "\n" not in str(caught.value)


def test_sources_that_are_not_there() -> None:
    with pytest.raises(MarftError, match=r"cannot read nope\.yaml: No such file"):
        load_config("nope.yaml")
    with pytest.raises(MarftError, match=r"unknown recipe 'du'; did you mean 'duo'\?.*marft recipes"):
        load_config("du")


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
    assert isinstance(config.algorithm, GrpoConfig)
    assert config.algorithm.clip_low == 0.1
    env = load_config(None, ["env=gsm8k", "env.path=x"][::order]).env
    assert (env.name, env.settings) == ("gsm8k", {"path": "x"})
    agent = load_config(None, ["team.agents.solver=Go.", "team.agents.solver.max_tokens=3"][::order]).team.agents[
        "solver"
    ]
    assert (agent.prompt, agent.max_tokens) == ("Go.", 3)


def test_shorthands() -> None:
    config = parse(
        {**DUO, "env": "gsm8k", "algorithm": "grpo", "credit": "equal", "critic": "none", "schedule": "joint"}
    )
    assert config.env.name == "gsm8k"
    assert config.algorithm.name == "grpo"
    assert (config.credit.name, config.critic.mode, config.schedule.mode) == ("equal", "none", "joint")
    assert config.team.agents["a"].prompt == "One."


def test_another_algorithm_drops_the_old_ones_settings() -> None:
    base = {**DUO, "algorithm": {"name": "marft-token", "token_lam": 0.9, "clip_low": 0.3}}
    config = parse(merge(base, ["algorithm=grpo"]))
    assert config.algorithm == GrpoConfig(name="grpo")
    kept = parse(merge(base, ["algorithm=marft-token", "algorithm.token_gamma=0.5"])).algorithm
    assert kept == MarftTokenConfig(name="marft-token", token_lam=0.9, clip_low=0.3, token_gamma=0.5)
    assert parse(merge_settings(base, {"algorithm": {"name": "grpo", "std_floor": 0.1}})).algorithm == GrpoConfig(
        name="grpo", std_floor=0.1
    )


def test_another_environment_drops_the_old_ones_settings() -> None:
    base = {**DUO, "env": {"name": "arithmetic", "level": 3}}
    assert parse(merge(base, ["env=gsm8k", "env.path=x"])).env.settings == {"path": "x"}
    assert parse(merge(base, ["env.level=4"])).env.settings == {"level": 4}


@pytest.mark.parametrize("odd", [None, 5, [1]])
@pytest.mark.parametrize("section", ["env", "algorithm"])
def test_an_override_repairs_a_section_of_the_wrong_kind(section: str, odd: Any) -> None:
    name = {"env": "arithmetic", "algorithm": "grpo"}[section]
    assert getattr(parse(merge({**DUO, section: odd}, [f"{section}={name}"])), section).name == name


def test_the_base_is_left_as_it_was() -> None:
    base = read_source("duo")
    copy = yaml.safe_load(yaml.safe_dump(base))
    merge(base, ["algorithm=grpo", "team.agents.solver.max_tokens=3", "env=gsm8k"])
    assert base == copy


def test_dollars_and_quotes_in_overrides() -> None:
    def prompt(value: str) -> str:
        return load_config(None, [f"team.agents.solver.prompt={value}"]).team.agents["solver"].prompt

    assert prompt("${price} each") == "${price} each"  # never looked up
    assert prompt("'a: b'") == "a: b"
    assert prompt('"a = b"') == "a = b"
    assert prompt("it costs $5") == "it costs $5"
    assert prompt('say "N", it\'s all') == 'say "N", it\'s all'
    assert prompt("'end with \"Answer: N\"'") == 'end with "Answer: N"'
    assert mistake("team.agents.a.prompt=Answer: N").startswith("team.agents.a.prompt: ")  # YAML: a mapping
    assert "cannot apply" in mistake("team.agents.a.prompt=${")
    assert "cannot read" in mistake("team.agents.a.prompt='open")


def test_what_is_not_an_override() -> None:
    assert mistake("seed") == "'seed' is not an override; write key=value"
    assert "unknown key" in mistake("=3")
    assert "seed" in mistake("seed=")


# --- refused ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trian.tasks=3", "unknown key 'trian'; did you mean 'train'?"),
        ("train.task=3", "unknown key 'train.task'; did you mean 'train.tasks'?"),
        ("algorithm.clip_lo=0.1", "unknown key 'algorithm.clip_lo'; did you mean 'algorithm.clip_low'?"),
        ("algorithm.normalize=sum", "unknown key 'algorithm.normalize'"),
        ("team.workflo=x", "unknown key 'team.workflo'; did you mean 'team.workflow'?"),
        ("team.agents.a.promt=x", "unknown key 'team.agents.a.promt'; did you mean 'team.agents.a.prompt'?"),
        ("team.agents.a.max_token=3", "unknown key 'team.agents.a.max_token'; did you mean 'team.agents.a.max_tokens'?"),
        ("optimizer.learning=1", "unknown key 'optimizer.learning'"),
        ("critic.warm_up=1", "unknown key 'critic.warm_up'; did you mean 'critic.warmup'?"),
        ("lora.ranks=1", "unknown key 'lora.ranks'; did you mean 'lora.rank'?"),
        ("eval.evry=1", "unknown key 'eval.evry'; did you mean 'eval.every'?"),
        ("zzz=1", "unknown key 'zzz'"),
    ],
)  # fmt: skip
def test_an_unknown_key_suggests_the_nearest(override: str, expected: str) -> None:
    assert mistake(override) == expected


def test_an_unknown_key_of_a_flat_algorithm_is_looked_up_in_that_algorithm() -> None:
    assert "did you mean 'algorithm.normalise'?" in mistake("algorithm=marft-action", "algorithm.normalize=sum")


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("seed=x", "seed: "),
        ("seed=-1", "seed: "),
        ("train.tasks=0", "train.tasks: "),
        ("train.tasks=many", "train.tasks: "),
        ("train=3", "train: "),
        ("train.tokens=10", "train.tokens: "),
        ("team=3", "team: "),
        ("team.agents=[]", "team.agents: "),
        ("team.agents.a=3", "team.agents.a: "),
        ("team.agents.a.temperature=0", "team.agents.a.temperature: "),
        ("team.agents.a.temperature=.inf", "team.agents.a.temperature: "),
        ("team.agents.a.temperature=.nan", "team.agents.a.temperature: "),
        ("team.agents.Big=x", "team.agents.Big: "),
        ("optimizer.lr=.inf", "optimizer.lr: "),
        ("optimizer.lr=-1", "optimizer.lr: "),
        ("optimizer.decay=cosine", "optimizer.decay: "),
        ("algorithm.clip_low=1", "algorithm.clip_low: "),
        ("algorithm.value_loss=l1", "algorithm.value_loss: "),
        ("eval.top_p=0", "eval.top_p: "),
        ("checkpoint.keep=1", "checkpoint.keep: "),
        ("dtype=int8", "dtype: "),
        ("env.name=3", "env.name: "),
        ("track.tensorboard=maybe", "track.tensorboard: "),
        ("lora.targets=q_proj", "lora.targets"),
    ],
)
def test_a_wrong_value_names_its_key(override: str, where: str) -> None:
    assert mistake(override).startswith(where)


def test_algorithms_by_name() -> None:
    assert mistake("algorithm=grp").startswith("unknown algorithm 'grp'; did you mean 'grpo'?")
    assert mistake(base={"team": DUO["team"], "algorithm": {}}).startswith("algorithm.name is missing; choose one of")
    assert mistake(base={"team": DUO["team"]}) == "algorithm is missing"
    assert mistake(base={"algorithm": "grpo"}) == "team is missing"
    assert mistake(base={"algorithm": "grpo", "team": {"agents": {"a": {}}}}) == "team.agents.a.prompt is missing"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["algorithm=grpo", "critic=shared"], "grpo uses no critic"),
        (["critic=none"], "marft-token estimates advantages with a critic"),
        (["algorithm=marft-action", "critic=none"], "marft-action estimates advantages with a critic"),
        (["algorithm=grpo", "train.samples=1"], "train.samples: grpo compares samples"),
        (["algorithm=grpo", "critic.warmup=2"], "grpo has no critic; drop critic.warmup"),
        (["algorithm=grpo", "critic.lr=0.1"], "grpo has no critic; drop critic.warmup"),
        (
            ["train.tasks=2", "train.samples=1", "train.minibatches=3"],
            "train.minibatches: more minibatches than episodes",
        ),
        (["team.workflow=tree"], "team.workflow: unknown workflow 'tree'"),
        (["team.agents.critic=x"], "agent name 'critic' is reserved"),
        (["team.agents.base=x"], "agent name 'base' is reserved"),
        (["team.agents.a.sees=[b]"], "agents.a.sees: 'b' acts later"),
        (["team.agents.a.sees=[a]"], "agents.a.sees: 'a' acts later"),
        (["team.agents.b.sees=[aa]"], "agents.b.sees: unknown agent 'aa'; did you mean 'a'?"),
    ],
)
def test_combinations_without_meaning(overrides: list[str], expected: str) -> None:
    assert expected in mistake(*overrides)


def test_combinations_that_border_on_them() -> None:
    parse(merge(DUO, ["train.tasks=2", "train.samples=1", "train.minibatches=2"]))
    parse(merge(DUO, ["algorithm=grpo", "critic=none", "train.samples=2"]))
    parse(merge(DUO, ["team.workflow=m:f", "team.agents.a.sees=[a,b]"]))  # a workflow of one's own has its own order
    assert parse(merge(DUO, ["team.agents.b.sees=[]"])).team.agents["b"].sees == ()
    assert parse(DUO).has_critic
    assert not parse(merge(DUO, ["algorithm=grpo"])).has_critic


# --- properties -------------------------------------------------------------------------------------------------------
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
configs = st.builds(
    lambda prompt, sees, seed, lr, temperature, algorithm, targets: parse(
        {
            "seed": seed,
            "team": {"agents": {"a": prompt, "b": {"prompt": prompt, "sees": sees, "temperature": temperature}}},
            "algorithm": algorithm,
            "optimizer": {"lr": lr},
            "lora": {"targets": targets},
            "env": {"name": "x:Y", "setting": prompt},
        }
    ),
    words,
    st.none() | st.lists(st.just("a"), max_size=2),
    st.integers(0, 2**63 - 1),
    positive,
    positive,
    st.sampled_from(sorted(ALGORITHMS)),
    st.just("all-linear") | st.lists(words, max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(configs)
@example(parse({**DUO, "team": {"agents": {"a": "0\x85", "b": "größer 数"}}}))
def test_what_is_written_is_read_back_the_same(config: Config) -> None:
    again = parse(parse_yaml(to_yaml(config), "test"))
    assert again == config
    assert list(again.team.agents) == list(config.team.agents)
    assert to_yaml(again) == to_yaml(config)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([k.partition(":")[0].replace("*", "a") for k in KEYS.split()]) | words, words)
def test_no_override_does_worse_than_one_line(key: str, value: str) -> None:
    assert outcome(lambda: parse(merge(DUO, [f"{key}={value}"])))


trees: Annotated[Any, "plain data"] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words | st.integers(), inner, max_size=2),
    max_leaves=5,
)
sections = st.sampled_from(sorted(Config.model_fields))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(sections, trees, max_size=3), st.sampled_from([DUO, {}]))
def test_no_data_does_worse_than_one_line(data: dict[str, Any], base: dict[str, Any]) -> None:
    assert outcome(lambda: parse(merge_settings(base, data)))


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_no_file_does_worse_than_one_line(text: str) -> None:
    assert "\n" not in outcome(lambda: parse_yaml(text, "f.yaml"))


def test_prompts_stay_readable_in_the_file() -> None:
    config = parse({**DUO, "team": {"agents": {"a": "Größer als 数?"}}})
    assert "Größer als 数?" in to_yaml(config)
