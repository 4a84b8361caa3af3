"""What our side of vLLM does, with a backend that has no model: versions, loading and dropping, completions."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from teams import fill_b, team_of
from vllm_fake import Backend, short

from marft.config.schema import EngineConfig
from marft.engines.vllm.adapter_versions import AdapterVersion, make_folder, process_space
from marft.engines.vllm.engine import SampledTokens, VllmEngine, check_available
from marft.engines.vllm.process import RANKS, padded_rank, start_engine
from marft.models.peft_format import CONFIG, WEIGHTS, to_peft
from marft.types import Completion, MarftError, PromptTooLong, Request, Sampling, SpeechError

TEAM = team_of({"planner": 2, "solver": 4, "critic": 3}, critics=["critic"])
END = min(TEAM.end_ids)


def engine() -> VllmEngine:
    return VllmEngine(TEAM, Backend())


def backend_of(engine: VllmEngine) -> Backend:
    assert isinstance(engine.backend, Backend)
    return engine.backend


def request(adapter: str | None = "solver", *, prompt: int = 5, seed: int = 0, **sampling: object) -> Request:
    settings = {"max_tokens": 3, **sampling}
    return Request(adapter=adapter, prompt_ids=(7,) * prompt, sampling=Sampling(**settings), seed=seed)  # type: ignore[arg-type]


def ask(engine: VllmEngine, *requests: Request) -> list[Completion]:
    async def play() -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(play())


# --- adapter versions ---------------------------------------------------------------------------------------------------------
def test_an_adapter_is_loaded_once_a_version_and_the_old_one_goes_first() -> None:
    speaking = engine()
    log = backend_of(speaking).log
    ask(speaking, request(), request(seed=1), request("planner"))
    ask(speaking, request(), request(None))
    assert log == [("load", "solver@0"), ("load", "planner@0"), ("load", "base")]
    log.clear()
    speaking.publish(1)
    [said] = ask(speaking, request())
    assert said.version == 1
    assert log == [("drop", "solver@0"), ("drop", "planner@0"), ("load", "solver@1")]
    log.clear()
    ask(speaking, request("planner"), request(None))
    assert log == [("load", "planner@1")]  # the base never changes


def test_a_name_and_a_number_never_come_back() -> None:
    seen = []
    for speaking in (engine(), engine()):
        for version in (0, 1, 0):
            speaking.publish(version)
            ask(speaking, request())
        adapter_versions = [
            adapter_version for _, adapter_version, _ in backend_of(speaking).requests if adapter_version is not None
        ]
        assert [adapter_version.number for adapter_version in adapter_versions] == [2, 4, 6]  # planner's come first
        seen += [adapter_version.name for adapter_version in adapter_versions]
    assert [name.split("-", 2)[2] for name in seen] == ["2-solver@0", "4-solver@1", "6-solver@0"] * 2
    assert len(set(seen)) == 6


def test_a_version_that_is_published_again_is_its_new_weights() -> None:
    """A run that goes back numbers anew: what was loaded under the number is of another past."""
    speaking = engine()
    log = backend_of(speaking).log
    for _ in range(2):
        speaking.publish(1)
        ask(speaking, request())
    assert log == [("load", "solver@1"), ("drop", "solver@1"), ("load", "solver@1")]


def test_versions_that_nobody_asked_for_leave_no_folder() -> None:
    speaking = engine()
    for version in range(5):
        speaking.publish(version)
    assert sorted(path.name.rpartition("-")[2] for path in speaking.adapter_versions.folder.iterdir()) == [
        "planner@4",
        "solver@4",
    ]


@pytest.mark.parametrize(
    ("asked", "dropped"),
    [("solver", ["solver@0", "planner@0", "solver@1"]), (None, ["solver@0", "planner@0"])],
    ids=["before a load", "after an answer"],
)
def test_an_adapter_version_that_cannot_be_dropped_costs_no_answer(
    asked: str | None, dropped: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    speaking = engine()
    backend = backend_of(speaking)
    ask(speaking, request(), request("planner"), request(None))
    folders = [adapter_version.folder for adapter_version in speaking.adapter_versions.known.values()]
    backend.clinging = True
    for version in (1, 2):
        speaking.publish(version)
        assert [said.version for said in ask(speaking, request(asked))] == [version]
    assert [name for what, name in backend.log if what == "drop"] == dropped  # each is tried, and tried once
    assert [folder.exists() for folder in folders] == [False, False, True]  # the base's stays
    assert capsys.readouterr().err == "marft: an old adapter could not be dropped: not now\n"


def test_who_is_interrupted_while_dropping_leaves_the_others_to_drop() -> None:
    speaking = engine()
    backend = backend_of(speaking)
    ask(speaking, request(), request("planner"))
    folders = [adapter_version.folder for adapter_version in speaking.adapter_versions.known.values()]
    drop = backend.drop

    async def never(adapter_version: AdapterVersion) -> None:
        await asyncio.Event().wait()

    async def play() -> None:
        speaking.publish(1)
        backend.drop = never  # type: ignore[method-assign]
        dropping = asyncio.create_task(speaking._drop_outdated())
        await asyncio.sleep(0)
        dropping.cancel()
        await asyncio.gather(dropping, return_exceptions=True)
        assert [folder.exists() for folder in folders] == [False, True]
        backend.drop = drop  # type: ignore[method-assign]
        await speaking.generate(request())
        assert [folder.exists() for folder in folders] == [False, False]
        assert ("drop", "planner@0") in backend.log

    asyncio.run(play())


def test_what_is_loaded_is_the_adapter_as_it_then_is() -> None:
    speaking = engine()
    ask(speaking, request())
    [first] = speaking.adapter_versions.known.values()
    before = load_file(first.folder / WEIGHTS)
    fill_b(TEAM, 0.1, seed=5)
    speaking.publish(1)
    ask(speaking, request())
    assert set(speaking.adapter_versions.known) == {("planner", 1), ("solver", 1)}
    second = speaking.adapter_versions.known["solver", 1]
    after, now = load_file(second.folder / WEIGHTS), to_peft(TEAM, "solver")
    assert after.keys() == now.keys() == before.keys()
    assert all((after[key] == now[key]).all() for key in now)
    assert any((after[key] != before[key]).any() for key in now)
    assert json.loads((second.folder / CONFIG).read_text())["r"] == 4
    assert not first.folder.exists()


def test_the_base_alone_is_an_adapter_of_zeros() -> None:
    speaking = engine()
    ask(speaking, request(None))
    [adapter_version] = speaking.adapter_versions.known.values()
    weights = load_file(adapter_version.folder / WEIGHTS)
    assert weights.keys() == to_peft(TEAM, "planner").keys()
    assert not any(side.any() for side in weights.values())


def test_a_team_without_adapters_loads_nothing() -> None:
    speaking = VllmEngine(team_of({}), Backend())
    ask(speaking, request(None))
    [(_, adapter_version, _)] = backend_of(speaking).requests
    assert adapter_version is None
    assert backend_of(speaking).log == []


def test_an_old_adapter_version_stays_as_long_as_a_request_uses_it() -> None:
    speaking = engine()
    backend = backend_of(speaking)

    async def play() -> None:
        backend.gate = asyncio.Event()
        slow = asyncio.create_task(speaking.generate(request()))
        while not backend.requests:
            await asyncio.sleep(0)
        [(_, old, _)] = backend.requests
        assert old is not None
        speaking.publish(1)
        gate, backend.gate = backend.gate, None
        await speaking.generate(request())
        assert ("drop", "solver@0") not in backend.log
        assert old.folder.exists()
        gate.set()
        assert (await slow).version == 0
        assert backend.log[-1] == ("drop", "solver@0")
        assert not old.folder.exists()

    asyncio.run(play())


def test_a_load_that_fails_reaches_all_who_wait_and_is_tried_again() -> None:
    speaking = engine()
    backend = backend_of(speaking)
    backend.broken = True

    async def play() -> list[object]:
        return await asyncio.gather(speaking.generate(request()), speaking.generate(request()), return_exceptions=True)

    assert [type(said) for said in asyncio.run(play())] == [SpeechError, SpeechError]
    assert backend.log == [("load", "solver@0")]
    backend.broken = False
    assert len(ask(speaking, request())) == 1
    assert backend.log == [("load", "solver@0")] * 2


def test_who_gives_up_while_an_adapter_loads_takes_it_from_nobody() -> None:
    speaking = engine()

    async def play() -> Completion:
        first = asyncio.create_task(speaking.generate(request()))
        second = asyncio.create_task(speaking.generate(request()))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(play()).finish == "length"
    assert backend_of(speaking).log == [("load", "solver@0")]
    assert {
        short(adapter_version): adapter_version.users for adapter_version in speaking.adapter_versions.known.values()
    } == {"solver@0": 0}


# --- completions ------------------------------------------------------------------------------------------------------
def said_as(answer: SampledTokens, **sampling: object) -> Completion:
    speaking = engine()
    backend_of(speaking).answer = answer
    [found] = ask(speaking, request(max_tokens=64, **sampling))
    assert speaking.tokens == len(answer.token_ids)
    return found


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(TEAM.tokenizer.encode(text, add_special_tokens=False))


def spoken(ids: tuple[int, ...], stop: str | None = None) -> SampledTokens:
    return SampledTokens(token_ids=ids, logprobs=tuple(-0.5 for _ in ids), stop=stop)


def test_the_end_of_a_turn_is_a_token_and_no_text() -> None:
    ids = (*ids_of("Answer: 7"), END)
    said = said_as(spoken(ids))
    assert (said.text, said.finish, said.stop) == ("Answer: 7", "stop", None)
    assert said.token_ids == ids
    assert said.logprobs == (-0.5,) * len(ids)
    assert said_as(spoken(ids[:-1])).finish == "length"


def test_a_stop_string_ends_the_text_and_keeps_its_tokens() -> None:
    ids = ids_of("Answer: 7")
    said = said_as(spoken(ids), stop=(": ", "never"))
    assert (said.text, said.finish, said.stop, said.token_ids) == ("Answer", "stop", ": ", ids)
    told = said_as(spoken(ids, stop="never"), stop=("never",))
    assert (told.text, told.finish, told.stop) == ("Answer: 7", "stop", "never")


def test_greedy_tokens_were_certain_and_no_log_prob_is_above_0() -> None:
    ids = ids_of("Answer")
    assert said_as(spoken(ids), temperature=0).logprobs == (0.0,) * len(ids)
    assert said_as(SampledTokens(token_ids=(19,), logprobs=(1e-7,), stop=None)).logprobs == (0.0,)


@pytest.mark.parametrize(("prompt", "limit"), [(5, 3), (97, 3), (98, 2), (99, 1)])
def test_no_more_tokens_are_asked_for_than_fit(prompt: int, limit: int) -> None:
    speaking = engine()
    [said] = ask(speaking, request(prompt=prompt))
    assert [asked for _, _, asked in backend_of(speaking).requests] == [limit]
    assert speaking.tokens == len(said.token_ids) == limit


def test_a_prompt_that_is_too_long_is_refused() -> None:
    with pytest.raises(PromptTooLong, match="the prompt has 100 tokens, vLLM reads 100"):
        ask(engine(), request(prompt=100))


# --- what must be there -----------------------------------------------------------------------------------------------
def test_a_missing_package_is_one_line_that_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.engines.vllm.engine.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MarftError, match=r"pip install 'marft\[vllm\]'"):
        check_available(EngineConfig(name="vllm"))


def test_it_is_missed_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from marft.config import load_config
    from marft.training import build as compose

    monkeypatch.setattr("marft.engines.vllm.engine.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(compose, "load", lambda *_: pytest.fail("the model was loaded"))
    monkeypatch.setattr(compose, "open_env", lambda *_, **__: pytest.fail("the environment was opened"))
    with pytest.raises(MarftError, match="vllm is not installed"):
        compose.assemble(load_config(None, ["engine.name=vllm"]))


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (2, 8), (8, 8), (9, 16), (321, 512), (512, 512)])
def test_the_room_for_a_rank(rank: int, room: int) -> None:
    assert padded_rank(rank) == room


def test_a_rank_that_no_room_has_is_refused() -> None:
    with pytest.raises(MarftError, match=f"lora.rank: .* use {RANKS[-1]} at most"):
        padded_rank(RANKS[-1] + 1)


# --- folders ----------------------------------------------------------------------------------------------------------
def test_folders_go_with_the_engine() -> None:
    speaking = engine()
    ask(speaking, request())
    folder = speaking.adapter_versions.folder
    assert any(folder.iterdir())
    del speaking
    gc.collect()
    assert not folder.exists()


def test_folders_of_processes_that_were_killed_go_and_no_others(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    space = process_space()
    dead = tmp_path / f"marft-{space}-{gone.pid}-abc"
    alive = tmp_path / f"marft-{space}-{os.getppid()}-abc"
    elsewhere = tmp_path / f"marft-{space + 1}-{gone.pid}-abc"  # the number of a process in another container
    other = tmp_path / f"marft-{space}-notes"
    for folder in (dead, alive, elsewhere, other):
        (folder / "adapter").mkdir(parents=True)
    made = make_folder(tmp_path)
    assert made.name.startswith(f"marft-{space}-{os.getpid()}-")
    assert sorted(tmp_path.iterdir()) == sorted([alive, elsewhere, other, made])


def test_apples_gpu_is_refused_before_vllm_is_loaded() -> None:
    team: Any = SimpleNamespace(device=torch.device("mps"))
    with pytest.raises(MarftError, match=r"vLLM does not run on Apple's GPU: use engine\.name=local"):
        start_engine(team, slots=1, memory=0.1)
