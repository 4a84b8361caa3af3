"""From a config to a seated team: every kind of agent speaks with what it should, and who learns has a seat of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from quick import config_of, seated, start
from toys import files

from marft.config import load_config
from marft.engines.local import LocalEngine
from marft.engines.openai import OpenAIEngine
from marft.engines.scripted import ScriptedEngine
from marft.engines.vllm.engine import VllmEngine
from marft.evaluation.benchmarks import EvalSettings
from marft.evaluation.held_out import evaluate_held_out
from marft.game.lockstep import Lockstep
from marft.models.peft_format import save_adapter
from marft.models.team import TeamModel
from marft.rollouts.runner import Start
from marft.training import build
from marft.training.agents import make_engine
from marft.training.build import Assembly, learner_settings
from marft.types import MarftError, Message, Request, Sampling, Task

REMOTE = {"prompt": "Be remote.", "remote": {"url": "http://127.0.0.1:9/v1", "model": "far"}}
SCRIPTED = {"script": "test_build:shout"}


def shout(messages: Sequence[Message]) -> str:
    return messages[-1].content.upper()


def adapters(parts: Assembly) -> dict[str, dict[str, int]]:
    """By base: every adapter's rank."""
    return {
        model: {name: spec.rank for name, spec in base.team.lora.specs.items()} for model, base in parts.bases.items()
    }


def weights(team: TeamModel, name: str) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in team.trainable_parameters(name).values()]


def same(team: TeamModel, name: str, other: TeamModel, its: str) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(team, name), weights(other, its), strict=True))


def stirred(**changes: Any) -> TeamModel:
    """A team whose adapters are not those that everybody starts with."""
    [team] = seated(**changes).teams
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name in team.adapters:
            for parameter in team.trainable_parameters(name).values():
                parameter.copy_(torch.randn(parameter.shape, generator=g))
    return team


# --- who speaks with what ---------------------------------------------------------------------------------------------
def test_by_default_every_agent_has_an_adapter_of_its_own() -> None:
    parts = seated()
    [base] = parts.bases.values()
    assert list(adapters(parts).values()) == [{"ann": 2, "bob": 2}]
    assert [(m.agent, m.adapter, m.critic) for m in parts.learner.members] == [
        ("ann",) * 2 + (None,),
        ("bob",) * 2 + (None,),
    ]
    for name, agent in parts.runner.team.items():
        assert (agent.name, agent.adapter, agent.prompt, agent.sees) == (name, name, name, None)
        assert agent.engine is base.engine
    assert not same(base.team, "ann", base.team, "bob")  # they start apart


def test_agents_may_share_an_adapter() -> None:
    parts = seated(
        team={"agents": {"ann": {"adapter": "both"}, "bob": {"adapter": "both"}, "cat": {"prompt": ""}}},
        algorithm="marft-token",
    )
    assert list(adapters(parts).values()) == [{"both": 2, "cat": 2, "critic": 2}]
    assert {name: agent.adapter for name, agent in parts.runner.team.items()} == {
        "ann": "both",
        "bob": "both",
        "cat": "cat",
    }
    assert list(dict.fromkeys(member.adapter for member in parts.learner.members)) == ["both", "cat"]
    assert list(parts.learner.optimizers) == ["both", "cat", "critic"]


def test_a_frozen_agent_without_a_folder_is_the_base_alone() -> None:
    parts = seated(team={"agents": {"bob": {"trainable": False}}}, algorithm="marft-token")
    assert list(adapters(parts).values()) == [{"ann": 2, "critic": 2}]
    assert parts.runner.team["bob"].adapter is None
    assert parts.runner.team["bob"].engine is parts.runner.team["ann"].engine
    assert [member.agent for member in parts.learner.members] == ["ann"]


def test_a_frozen_agent_from_a_folder_has_the_rank_it_was_saved_with(tmp_path: Path) -> None:
    saved = stirred(lora={"rank": 5, "alpha": 7.5})
    save_adapter(saved, "ann", tmp_path / "five")
    frozen = {"trainable": False, "init_from": str(tmp_path / "five")}
    parts = seated(team={"agents": {"bob": frozen}})
    [base] = parts.bases.values()
    assert adapters(parts) == {next(iter(parts.bases)): {"ann": 2, "bob": 5}}
    assert base.team.lora.specs["bob"].scaling == 1.5
    assert same(base.team, "bob", saved, "ann")
    assert parts.runner.team["bob"].adapter == "bob"
    assert list(parts.learner.optimizers) == ["ann"]


def test_a_scripted_agent_is_plain_code() -> None:
    parts = seated(team={"agents": {"cat": SCRIPTED}})
    cat = parts.runner.team["cat"]
    assert isinstance(cat.engine, ScriptedEngine)
    assert cat.adapter is None
    task = Task(id="t", prompt="hm")
    [episode] = asyncio.run(parts.runner.episodes([Start(task=task, sample=0)], "seed"))
    ann, bob, third = episode.turns
    assert third.text == f"hm\n\nann: {ann.text}\n\nbob: {bob.text}".upper()


def test_a_remote_agent_is_seated_without_a_call() -> None:
    parts = seated(team={"agents": {"cat": {**REMOTE, "max_tokens": 9, "temperature": 0.3}}})
    cat = parts.runner.team["cat"]
    assert isinstance(cat.engine, OpenAIEngine)
    assert (cat.engine.model, cat.engine.timeout, cat.engine.retries) == ("far", 60.0, 4)
    assert cat.engine.url.startswith("http://127.0.0.1:9/v1")
    assert (cat.sampling.max_tokens, cat.sampling.temperature, cat.adapter) == (9, 0.3, None)


@pytest.mark.parametrize("kind", [{"prompt": "meow"}, SCRIPTED, REMOTE], ids=["local", "scripted", "remote"])
def test_every_engine_is_told_of_adapters_and_closed_with_the_run(kind: dict[str, Any]) -> None:
    parts = seated(team={"agents": {"cat": kind}})
    engine: Any = parts.runner.team["cat"].engine
    assert [each for each in parts.engines if each is engine] == [engine]
    with parts:
        parts.publish(7)
        assert [each.version for each in parts.engines] == [7] * len(parts.engines)  # type: ignore[attr-defined]
        assert not closed(engine)
    assert all(closed(each) for each in parts.engines)
    request = Request(
        adapter=None, prompt_ids=(1,), messages=(Message(role="user", content="hm"),), sampling=Sampling(), seed=0
    )
    with pytest.raises(RuntimeError, match="the engine is closed"):
        asyncio.run(engine.generate(request))


def test_vllm_in_this_process_leaves_the_workers_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(team: Any, **given: Any) -> Any:
        return SimpleNamespace(longest=64, **given)

    monkeypatch.setattr("marft.engines.vllm.process.Process", process)
    engine = {"name": "vllm", "memory": 0.6}
    team = seated().teams[0]
    for workers, memory in ((0, 0.6), (2, 0.2)):
        made: Any = make_engine(config_of(engine=engine, rollout={"workers": workers}), team, Lockstep())
        assert made.backend.memory == pytest.approx(memory)


@pytest.mark.parametrize(("workers", "share"), [(0, 0.6), (2, 0.2)])
def test_the_local_engine_leaves_the_workers_their_part(
    monkeypatch: pytest.MonkeyPatch, workers: int, share: float
) -> None:
    monkeypatch.setattr("marft.engines.local.free_memory", lambda device: 1_000_000)
    made = make_engine(
        config_of(engine={"memory": 0.6}, rollout={"workers": workers}), seated().teams[0], Lockstep(), bases=2
    )
    assert isinstance(made, LocalEngine)
    assert made.memory == pytest.approx(1_000_000 * share / 2, abs=1)


def test_vllm_is_told_of_adapters_and_closed_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Backend:
        longest = 64
        closed = False

        def close(self) -> None:
            self.closed = True

    backend: Any = Backend()
    monkeypatch.setattr(build, "make_engine", lambda config, team, lockstep, bases: VllmEngine(team, backend))
    parts = seated(team={"agents": {"cat": SCRIPTED}})
    vllm, scripted = parts.engines
    assert isinstance(vllm, VllmEngine)
    with parts:
        parts.publish(7)
        assert {adapter for adapter, version in vllm.adapter_versions.known if version == 7} == {"ann", "bob"}
        assert not backend.closed
    assert backend.closed
    assert closed(vllm)
    assert closed(scripted)


def test_the_scripted_words_of_a_run_carry_its_version() -> None:
    parts = seated(team={"agents": {"cat": SCRIPTED}})
    parts.publish(3)
    [episode] = asyncio.run(parts.runner.episodes([Start(task=Task(id="t", prompt="hm"), sample=0)], "seed"))
    assert [turn.completion.version for turn in episode.turns] == [3, 3, 3]


def test_an_engine_that_fails_to_close_keeps_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = seated(team={"agents": {"cat": SCRIPTED, "dog": REMOTE}})

    def broken(self: LocalEngine) -> None:
        raise OSError("no")

    monkeypatch.setattr(LocalEngine, "close", broken)
    with pytest.raises(OSError, match="no"):
        parts.close()
    assert [closed(engine) for engine in parts.engines] == [False, True, True]


def closed(engine: Any) -> bool:
    return bool(engine._connections.closed if isinstance(engine, OpenAIEngine) else engine.closed)


def test_a_script_that_is_not_there_is_one_line() -> None:
    with pytest.raises(MarftError, match=r"script: cannot import 'test_build:whisper'"):
        seated(team={"agents": {"cat": {"script": "test_build:whisper"}}})


def test_an_anonymous_team_knows_no_prompts_and_no_names() -> None:
    parts = seated(team={"anonymous": True})
    assert [agent.prompt for agent in parts.runner.team.values()] == [None, None]
    [episode] = asyncio.run(parts.runner.episodes([Start(task=Task(id="t", prompt="hm"), sample=0)], "seed"))
    ann, bob = episode.turns
    assert [message.role for message in bob.observation] == ["user"]
    assert bob.observation[0].content == f"hm\n\n{ann.text}"


def test_a_team_without_weights_of_ours_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*arguments: Any) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("known_answers.tiny.loaded_once", load)
    with pytest.raises(AssertionError, match="a model is loaded"):
        seated()
    parts = seated(team={"agents": {"ann": None, "bob": None, "cat": SCRIPTED, "dog": SCRIPTED}})
    assert (parts.bases, parts.teams, parts.learner.members, parts.tokens) == ({}, [], (), 0)
    assert parts.device == "no device of ours"
    assert parts.fingerprint == seated(team={"agents": {"ann": None, "bob": None, "far": REMOTE}}).fingerprint
    found = evaluate_held_out(
        parts.runner, EvalSettings(tasks=3, temperature=None, top_p=None, top_k=None), seed=0, lockstep=Lockstep()
    )
    assert (found["tasks"], found["failed"]) == (3, 0)


def test_a_team_that_cannot_learn_is_not_trained(tmp_path: Path) -> None:
    with pytest.raises(MarftError, match=r"no agent of this team learns; make one trainable"):
        start(tmp_path / "run", team={"agents": {"ann": None, "bob": None, "cat": SCRIPTED}})
    assert not (tmp_path / "run").exists()


# --- several bases ----------------------------------------------------------------------------------------------------
TWO = {"agents": {"bob": {"model": "nano"}, "cat": {"prompt": "", "model": "nano"}}}


def test_agents_on_another_model_have_its_engine_and_a_critic_there() -> None:
    parts = seated(team=TWO, algorithm="marft-token")
    first, second = parts.bases
    assert second == "nano"
    assert adapters(parts) == {first: {"ann": 2, "critic": 2}, "nano": {"bob": 2, "cat": 2, "critic-1": 2}}
    engines = {name: base.engine for name, base in parts.bases.items()}
    assert {name: agent.engine for name, agent in parts.runner.team.items()} == {
        "ann": engines[first],
        "bob": engines["nano"],
        "cat": engines["nano"],
    }
    learner, tiny, nano = parts.learner, parts.bases[first].team, parts.bases["nano"].team
    assert [(m.agent, m.critic, learner.teams[m.adapter]) for m in learner.members] == [
        ("ann", "critic", tiny),
        ("bob", "critic-1", nano),
        ("cat", "critic-1", nano),
    ]
    assert learner.teams == {"ann": tiny, "critic": tiny, "bob": nano, "cat": nano, "critic-1": nano}
    hm = [Message(role="user", content="red")]
    spoken = [parts.runner.team[m.agent].engine for m in learner.members]
    assert [len(engine.encode(hm)) for engine in spoken] == [3, *[len(engines["nano"].encode(hm))] * 2]
    prints = {base.fingerprint for base in parts.bases.values()}
    assert len({parts.fingerprint, *prints}) == 3


def test_a_model_that_only_frozen_agents_speak_with_has_no_critic() -> None:
    parts = seated(team={"agents": {"bob": {"model": "nano", "trainable": False}}}, algorithm="marft-token")
    assert list(adapters(parts).values()) == [{"ann": 2, "critic": 2}, {}]
    assert isinstance(parts.runner.team["bob"].engine, LocalEngine)
    assert parts.runner.team["bob"].engine is parts.bases["nano"].engine


def test_the_team_s_model_is_not_loaded_for_nobody() -> None:
    parts = seated(model="./nowhere", team={"agents": {"ann": {"model": "nano"}, "bob": {"model": "nano"}}})
    assert list(parts.bases) == ["nano"]


def test_critics_of_agents() -> None:
    parts = seated(team=TWO, algorithm="marft-action", critic="per_agent")
    assert [member.critic for member in parts.learner.members] == ["critic-ann", "critic-bob", "critic-cat"]
    assert [list(base.team.value_heads) for base in parts.bases.values()] == [
        ["critic-ann"],
        ["critic-bob", "critic-cat"],
    ]


def test_a_team_on_two_bases_trains(tmp_path: Path) -> None:
    run = start(tmp_path / "run", team=TWO, algorithm="marft-token", train={"iterations": 2})
    before, after = (files(run / "checkpoints" / f"{i:06d}") for i in (0, 2))
    moved = {name for name in before if name.endswith("adapter_model.safetensors") and before[name] != after[name]}
    names = ("agents/ann", "agents/bob", "agents/cat", "critics/critic", "critics/critic-1")
    assert moved == {f"{name}/adapter_model.safetensors" for name in names}


# --- where adapters begin ---------------------------------------------------------------------------------------------
@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Adapters of rank 2 for ann and bob, as `export` lays them out, and one of rank 3 beside them."""
    team = stirred()
    for name in ("ann", "bob"):
        save_adapter(team, name, tmp_path / "exported" / name)
    save_adapter(stirred(lora={"rank": 3, "alpha": 9}), "bob", tmp_path / "three")
    return tmp_path


def test_all_begin_from_a_folder(folders: Path) -> None:
    [team] = seated(init_from=str(folders / "exported")).teams
    known = stirred()
    assert same(team, "ann", known, "ann")
    assert same(team, "bob", known, "bob")


def test_one_agent_begins_from_its_own_folder(folders: Path) -> None:
    """The others as everybody does, or as the team's `init_from` says."""
    bob = {"agents": {"bob": {"init_from": str(folders / "three")}}}
    [plain] = seated(team={"agents": {"bob": {"rank": 3}}}).teams
    three = stirred(lora={"rank": 3, "alpha": 9})
    parts = seated(team=bob)
    [team] = parts.teams
    assert adapters(parts)[team.name] == {"ann": 2, "bob": 3}
    assert team.lora.specs["bob"].alpha == 9
    assert same(team, "bob", three, "bob")
    assert same(team, "ann", plain, "ann")
    assert list(parts.learner.optimizers) == ["ann", "bob"]  # to start from, not to stay with
    [team] = seated(team=bob, init_from=str(folders / "exported")).teams
    assert same(team, "bob", three, "bob")
    assert same(team, "ann", stirred(), "ann")


def test_agents_that_share_an_adapter_begin_from_one_folder(folders: Path) -> None:
    shares = {"adapter": "both", "init_from": str(folders / "three")}
    parts = seated(team={"agents": {"ann": shares, "bob": shares}})
    [team] = parts.teams
    assert adapters(parts)[team.name] == {"both": 3}
    assert same(team, "both", stirred(lora={"rank": 3, "alpha": 9}), "bob")


def test_frozen_agents_begin_from_the_team_s_folder_too(folders: Path) -> None:
    parts = seated(team={"agents": {"bob": {"trainable": False}}}, init_from=str(folders / "exported"))
    [team] = parts.teams
    assert parts.runner.team["bob"].adapter == "bob"
    assert same(team, "bob", stirred(), "bob")
    assert list(parts.learner.optimizers) == ["ann"]


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MarftError, match=r"cannot read .*nowhere/adapter_config.json"):
        seated(team={"agents": {"bob": {"init_from": str(tmp_path / "nowhere")}}})
    with pytest.raises(MarftError, match=r"init_from: .*nowhere is neither a run nor a folder"):
        seated(init_from=str(tmp_path / "nowhere"))


# --- what the learner is told -----------------------------------------------------------------------------------------
def test_learning_rates_are_each_adapter_s_own() -> None:
    changes: dict[str, Any] = {
        "team": {"agents": {"ann": {"lr": 0.5}, "bob": {"adapter": "b"}}},
        "algorithm": "marft-action",
        "critic": {"mode": "per_agent", "lr": 0.25},
    }
    settings = seated(**changes).learner.settings
    assert settings.lr == {"ann": 0.5, "b": 0.05, "critic-ann": 0.25, "critic-bob": 0.25}


def test_everything_that_the_learner_may_be_told_comes_from_the_config() -> None:
    config = load_config(
        "duo",
        [
            "algorithm.entropy=0.25", "algorithm.kl={weight: 0.5, estimator: k2}", "algorithm.trust_region=0.125",
            "algorithm.value_clip=0.75", "algorithm.value_loss=huber", "algorithm.huber_delta=7.0",
            "algorithm.kl_stop=0.0625", "schedule={mode: sequential, clip: 2.5}",
            "optimizer={lr: 2.0, weight_decay: 3.0, grad_clip: 4.0, eps: 0.5, beta1: 0.75}",
            "train={epochs: 5, minibatches: 6, tokens: 700}",
        ],
    )  # fmt: skip
    found = learner_settings(config, [])
    assert (found.entropy, found.kl_estimator, found.trust_region, found.factor_clip) == (0.25, "k2", 0.125, 2.5)
    assert (found.value_clip, found.huber_delta, found.kl_stop, found.eps, found.lr) == (0.75, 7.0, 0.0625, 0.5, {})
    assert (found.weight_decay, found.grad_clip, found.beta1) == (3.0, 4.0, 0.75)
    assert (found.epochs, found.minibatches, found.tokens) == (5, 6, 700)
    default, huber = learner_settings(config_of(), []), load_config("duo", ["algorithm.value_loss=huber"])
    assert (default.factor_clip, default.huber_delta, learner_settings(huber, []).huber_delta) == (5.0, None, 1.0)


@pytest.mark.parametrize(("lag", "limit", "found"), [(0, 0.6, 0.6), (1, 0.6, 0.6), (2, 0.6, 0.2), (2, None, None)])
def test_updates_between_play_and_learning_share_the_limits_on_their_kl(
    lag: int, limit: float | None, found: float | None
) -> None:
    config = config_of(train={"lag": lag}, algorithm={"name": "grpo", "trust_region": limit, "kl_stop": limit})
    settings = learner_settings(config, [])
    assert settings.trust_region == settings.kl_stop == (None if found is None else pytest.approx(found))
