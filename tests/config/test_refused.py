"""Unknown keys, wrong values, names nobody knows: each ends in one line that says where and what was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mistakes import DUO, mistake, read

from marft.config import load_config
from marft.types import MarftError

TEAM = DUO["team"]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trian.tasks=3", "unknown key 'trian'; did you mean 'train'?"),
        ("train.task=3", "unknown key 'train.task'; did you mean 'train.tasks'?"),
        ("algorithm.clip_lo=0.1", "unknown key 'algorithm.clip_lo'; did you mean 'algorithm.clip_low'?"),
        ("algorithm.normalize=sum", "unknown key 'algorithm.normalize'; did you mean 'algorithm.normalise'?"),
        ("algorithm.kl.weigth=1", "unknown key 'algorithm.kl.weigth'; did you mean 'algorithm.kl.weight'?"),
        ("team.workflo=x", "unknown key 'team.workflo'; did you mean 'team.workflow'?"),
        ("team.agents.a.promt=x", "unknown key 'team.agents.a.promt'; did you mean 'team.agents.a.prompt'?"),
        ("team.agents.a.max_token=3", "unknown key 'team.agents.a.max_token'; did you mean 'team.agents.a.max_tokens'?"),
        ("team.agents.a.remote.ulr=x", "unknown key 'team.agents.a.remote.ulr'; did you mean 'team.agents.a.remote.url'?"),
        ("optimizer.learning=1", "unknown key 'optimizer.learning'; did you mean 'optimizer.lr'?"),
        ("critic.warm_up=1", "unknown key 'critic.warm_up'; did you mean 'critic.warmup'?"),
        ("credit={name: step_discounted, bta: 1}", "unknown key 'credit.bta'; did you mean 'credit.beta'?"),
        ("schedule.intervall=1", "unknown key 'schedule.intervall'; did you mean 'schedule.interval'?"),
        ("lora.ranks=1", "unknown key 'lora.ranks'; did you mean 'lora.rank'?"),
        ("eval.evry=1", "unknown key 'eval.evry'; did you mean 'eval.every'?"),
        ("zzz=1", "unknown key 'zzz'"),
    ],
)  # fmt: skip
def test_an_unknown_key_suggests_the_nearest(override: str, expected: str) -> None:
    assert mistake(override) == expected


def test_an_unknown_key_is_looked_up_in_the_section_that_was_chosen() -> None:
    assert "did you mean 'algorithm.normalise'?" in mistake("algorithm=marft-action", "algorithm.normalize=sum")
    assert mistake("credit=equal", "credit.beta=0.5") == "unknown key 'credit.beta'; it is for step_discounted"


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("seed=x", "seed: "),
        ("seed=-1", "seed: "),
        ("seed=", "seed: input should be a valid integer (the file or override says None)"),
        ("train.tasks=0", "train.tasks: "),
        ("train.tasks=many", "train.tasks: "),
        ("train=3", "train: give its keys (iterations, budget, tasks, "),
        ("train.tokens=10", "train.tokens: "),
        ("train.budget=0", "train.budget: "),
        ("team=3", "team: give its keys (workflow, "),
        ("team.agents=[]", "team.agents: give NAME: PROMPT lines, not a list"),
        ("team.agents.a={a: b", "cannot read the value of 'team.agents.a': "),
        ("team.agents.a.temperature=-1", "team.agents.a.temperature: "),
        ("team.agents.a.temperature=.inf", "team.agents.a.temperature: "),
        ("team.agents.a.temperature=.nan", "team.agents.a.temperature: "),
        ("team.agents.a.sees=b", "team.agents.a.sees: give a list in [brackets], not 'b'"),
        ("team.agents.a.sees=[1]", "team.agents.a.sees.0: "),
        ("team.agents.a.stop=['']", "team.agents.a.stop.0: "),
        ("team.rounds=0", "team.rounds: "),
        ("optimizer.lr=.inf", "optimizer.lr: "),
        ("optimizer.lr=-1", "optimizer.lr: "),
        ("optimizer.decay=cosine", "optimizer.decay: "),
        ("algorithm=5", "algorithm: give a name (marft-token, marft-action, "),
        ("algorithm.clip_low=1", "algorithm.clip_low: "),
        ("algorithm.dual_clip=1", "algorithm.dual_clip: "),
        ("algorithm.value_loss=l1", "algorithm.value_loss: "),
        ("algorithm.kl=much", "algorithm.kl.weight: "),
        ("algorithm.kl=[1]", "algorithm.kl: give its keys (weight, estimator, where, target), not a list"),
        ("algorithm.kl.estimator=k4", "algorithm.kl.estimator: "),
        ("credit=[tree]", "credit: give a name (equal, "),
        ("credit={name: step_discounted, beta: 1}", "credit.beta: "),
        ("critic=null", "critic: give its keys (mode, lr, warmup), not None"),
        ("critic=one", "critic.mode: "),
        ("schedule=random", "schedule.mode: "),
        ("schedule={mode: sequential, clip: 1}", "schedule.clip: "),
        ("eval.top_p=0", "eval.top_p: "),
        ("eval.samples=0", "eval.samples: "),
        ("eval.k=4", "eval.k: give a list in [brackets], not 4"),
        ("eval.k=[0]", "eval.k.0: "),
        ("eval.ablate=2", "eval.ablate: "),
        ("eval.benchmarks.x=5", "eval.benchmarks.x: give its keys (name, deadline, tasks_deadline, workers), not 5"),
        ("eval.benchmarks.x.deadline=0", "eval.benchmarks.x.deadline: "),
        ("eval.benchmarks={'': {}}", "eval.benchmarks.: "),
        ("checkpoint.keep=1", "checkpoint.keep: "),
        ("dtype=int8", "dtype: "),
        ("track.tensorboard=maybe", "track.tensorboard: "),
    ],
)
def test_a_wrong_value_names_its_key(override: str, where: str) -> None:
    assert mistake(override).startswith(where)


def test_a_long_value_is_not_written_out() -> None:
    assert len(mistake(f"seed={'x' * 1000}")) < 150


@pytest.mark.parametrize(
    "name", ["grpo", "rae", "tree", "equal", "prompt", "remote", "agents", "algorithm", "credit", "kl", "team"]
)
def test_an_agent_may_have_any_name(name: str) -> None:
    """Paths in messages are right though it is called like an algorithm, a credit or a key."""
    key = f"team.agents.{name}"
    told = f"{key}.prompt=x"
    assert list(read([told]).team.agents) == ["a", "b", name]
    assert mistake(told, f"{key}.lrr=1") == f"unknown key '{key}.lrr'; did you mean '{key}.lr'?"
    assert mistake(told, f"{key}.rank=0").startswith(f"{key}.rank: input should be")
    assert mistake(told, f"{key}.top_p=0.9").startswith(f"{key}.top_p: an agent is trained")
    assert mistake(told, f"{key}.sees=[zed]").startswith(f"{key}.sees: unknown agent 'zed'")
    assert mistake(told, f"{key}.remote.model=m") == f"{key}.remote.url is missing"
    assert mistake(told, f"{key}.remote=m").startswith(f"{key}.remote: give its keys (url, ")
    assert mistake(f"{key}.rank=3").startswith(f"{key}.prompt: is missing")


def test_a_name_with_a_line_break_stays_on_one_line() -> None:
    base: dict[str, Any] = {**DUO, "team": {"agents": {"a\nb": "x"}}}
    assert mistake(base=base).startswith(r"team.agents.a\nb: a name has small letters")
    assert mistake(base={**DUO, "a\nb": 1}) == r"unknown key 'a\nb'"


def test_names_of_algorithms_and_credits() -> None:
    assert mistake("algorithm=grp").startswith("unknown algorithm 'grp'; did you mean 'grpo'?; known: marft-token, ")
    assert mistake("credit=tre").startswith("unknown credit 'tre'; did you mean 'tree'?; known: equal, ")
    assert mistake(base={"team": TEAM, "algorithm": {}}).startswith("algorithm.name is missing; choose one of")
    assert mistake("credit.beta=0.5").startswith("credit.name is missing; choose one of equal, ")
    assert mistake(base={"team": TEAM}).startswith("algorithm is missing; choose one of marft-token, ")
    assert mistake(base={"algorithm": "grpo"}).startswith("team is missing; list the agents: ")
    assert mistake(base={"algorithm": "grpo", "team": {}}).startswith("team.agents is missing; list the agents: ")
    assert mistake(base={"algorithm": "grpo", "team": {"agents": {}}}).startswith("team.agents: ")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('team: {agents: {ann: {prompt: "half \\ud800"}}}', "team.agents.ann.prompt"),
        ('team: {agents: {ann: "\\udfff"}}', "team.agents.ann.prompt"),
        ('env: {name: arithmetic, note: ["fine", "\\ud800"]}', "env.note.1"),
        ('env: {"x\\ud800": 1}', "env.x\\ud800"),
        ('track: {wandb: "\\ud800"}', "track.wandb"),
    ],
)
def test_half_a_surrogate_pair_is_refused_wherever_it_stands(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(MarftError) as caught:
        load_config(str(tmp_path / "bad.yaml"))
    assert str(caught.value).startswith(f"{where}: this text holds half of a surrogate pair")
    str(caught.value).encode()


def test_an_override_with_half_a_surrogate_pair_is_refused() -> None:
    """So does a shell give what is no UTF-8."""
    with pytest.raises(MarftError, match="model: this text holds half of a surrogate pair"):
        load_config("duo", ["model=nano\udcff"])
