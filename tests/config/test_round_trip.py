"""What is written is read back the same, and no input does worse than one line."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from mistakes import DUO, outcome, read
from test_keys import KEYS

from marft.config import ALGORITHMS, WORKFLOWS, Config, merge, merge_settings, parse, parse_yaml, to_yaml

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
texts = words.filter(bool)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
fractions = st.floats(0, 1, exclude_min=True, exclude_max=True)


def some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these keys."""
    return st.fixed_dictionaries({}, optional=keys)


scripted = {"prompt": words, "stop": st.lists(texts, max_size=2)}
spoken = {**scripted, "max_tokens": st.integers(1, 99)}
weights = {"init_from": texts, "model": texts}
remotes = st.builds(
    lambda url, rest: {"url": url, **rest},
    st.sampled_from(["http://localhost:8000/v1", "https://api.openai.com/v1"]),
    some(key_env=st.just("A_KEY"), timeout=positive, retries=st.integers(0, 9)).map(
        lambda rest: {"model": "m", **rest}
    ),
)
trained = some(temperature=positive, trainable=st.just(True), rank=st.integers(1, 9), lr=positive, **spoken, **weights)
frozen = some(temperature=positive, top_p=fractions, top_k=st.integers(0, 9), **spoken, **weights)
voices = st.one_of(
    trained,
    frozen.map(lambda keys: {**keys, "trainable": False}),
    some(**scripted).map(lambda keys: {**keys, "script": "m.n:f"}),
    st.builds(lambda keys, remote: {**keys, "remote": remote}, some(temperature=st.floats(0, 2), **spoken), remotes),
)


@st.composite
def teams(draw: st.DrawFn) -> dict[str, Any]:
    names = ["a", "grpo", "tree"][: draw(st.integers(2, 3))]
    workflow = draw(st.sampled_from([*WORKFLOWS, "m:f"]))
    team: dict[str, Any] = {"workflow": workflow, "agents": {}}
    if workflow == "program":
        team["program"] = {"cmd": draw(texts)}
    for key in WORKFLOWS.get(workflow, frozenset()) - {"program"}:
        team[key] = draw(st.none() | st.integers(2, 9))  # in one round nobody can see the others
    if workflow != "orchestrated":
        team["anonymous"] = draw(st.booleans())
    shared = draw(st.booleans())
    for i, name in enumerate(names):
        agent: dict[str, Any] = {"prompt": "x", **draw(voices)}
        if workflow == "dag" or (workflow != "vote" and draw(st.booleans())):
            agent["sees"] = draw(st.lists(st.sampled_from(names[:i]), max_size=2)) if i else []
        if shared and agent.get("trainable", True) and not {"script", "remote"} & set(agent):
            agent = {key: value for key, value in agent.items() if key not in ("rank", "lr", "init_from", "model")}
            agent["adapter"] = "team"
        team["agents"][name] = agent
    return team


kls = st.one_of(
    st.just(0),
    positive,
    st.fixed_dictionaries(
        {"weight": positive},
        optional={"estimator": st.sampled_from(["k2", "k3"]), "where": st.just("reward"), "target": positive},
    ),
)
algorithms = st.builds(
    lambda name, keys: {"name": name, **keys},
    st.sampled_from(sorted(ALGORITHMS)),
    some(
        kl=kls, trust_region=positive, entropy=positive, clip_low=fractions, clip_high=positive, dual_clip=st.floats(1.5, 9),
        aggregation=st.sampled_from(["turn", "agent"]),
    ),
)  # fmt: skip
credits = st.one_of(
    st.sampled_from(["equal", "tree", "difference", "per_step", "per_player"]),
    st.builds(lambda beta: {"name": "step_discounted", "beta": beta}, fractions),
    st.builds(
        lambda name, gamma: {"name": name, "gamma": gamma}, st.sampled_from(["per_step", "per_player"]), fractions
    ),
    st.just({"name": "difference", "baseline": "base"}),
)
schedules = st.one_of(
    st.sampled_from(["joint", "alternate", "sequential", "resample"]),
    st.builds(lambda n: {"mode": "alternate", "interval": n}, st.integers(1, 9)),
    st.builds(lambda clip: {"mode": "sequential", "clip": clip}, st.floats(1.01, 100)),
)
critics = some(mode=st.sampled_from(["shared", "per_agent"]), lr=positive, warmup=st.integers(0, 19))


@st.composite
def configs(draw: st.DrawFn) -> Config:
    team, algorithm = draw(teams()), draw(algorithms)
    learning = [
        name for name, a in team["agents"].items() if a.get("trainable", True) and not {"script", "remote"} & set(a)
    ]
    adapters = {team["agents"][name].get("adapter", name) for name in learning}
    return parse(
        {
            "seed": draw(st.integers(0, 2**63 - 1)),
            "init_from": draw(st.none() | texts),
            "team": team,
            "algorithm": algorithm,
            "credit": draw(credits),
            "critic": draw(critics) if algorithm["name"].startswith("marft") else {},
            "schedule": draw(schedules) if len(adapters) > 1 else "joint",
            "optimizer": {"lr": draw(positive)},
            "lora": {"targets": draw(st.just("all-linear") | st.lists(texts, min_size=1, max_size=2))},
            "train": {"budget": draw(st.none() | st.integers(1))},
            "env": {"name": "x:Y", "setting": draw(words)},
        }
    )


@settings(max_examples=150, deadline=None)
@given(configs())
@example(parse({**DUO, "team": {"agents": {"a": "0\x85", "b": "größer 数"}}}))
@example(parse({**DUO, "team": {"agents": {"a": "x", "b": {"script": "m:f"}}}}))
def test_what_is_written_is_read_back_the_same(config: Config) -> None:
    again = parse(parse_yaml(to_yaml(config), "test"))
    assert again == config
    assert list(again.team.agents) == list(config.team.agents)
    assert to_yaml(again) == to_yaml(config)
    assert parse(merge(config.model_dump(mode="json"), [])) == config  # how a run's config comes back


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([k.partition(":")[0].replace("*", "a") for k in KEYS.split()]) | words, words)
def test_no_override_does_worse_than_one_line(key: str, value: str) -> None:
    assert outcome(lambda: read([f"{key}={value}"]))


trees = st.recursive(
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
    assert outcome(lambda: parse_yaml(text, "f.yaml"))


def test_prompts_stay_readable_in_the_file() -> None:
    config = parse({**DUO, "team": {"agents": {"a": "Größer als 数?"}}})
    assert "Größer als 数?" in to_yaml(config)
