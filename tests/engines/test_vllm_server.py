"""What goes to a vLLM server and what is made of its answers, with a server that only speaks the protocol."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from teams import team_of
from vllm_fake import Fake, faking

from marft.config.schema import EngineConfig
from marft.engines.vllm.engine import VllmEngine
from marft.engines.vllm.opening import open_engine, require
from marft.types import Completion, MarftError, Request, Sampling, SpeechError

TEAM = team_of({"solver": 4})
LOAD, UNLOAD, COMPLETE = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/completions"


@pytest.fixture
def fake() -> Iterator[Fake]:
    with faking() as server:
        yield server


def open_at(url: str) -> VllmEngine:
    async def at_once() -> None: ...

    return open_engine(TEAM, EngineConfig(name="vllm", url=url, slots=4), at_once)


def ask(engine: VllmEngine, *adapters: str | None, **sampling: Any) -> list[Completion]:
    async def play() -> list[Completion]:
        requests = [
            Request(adapter=adapter, prompt_ids=(7, 8), sampling=Sampling(**sampling), seed=2**62 + i)
            for i, adapter in enumerate(adapters)
        ]
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(play())


def test_a_request_says_all_that_the_server_might_have_its_own_idea_of(fake: Fake) -> None:
    [said] = ask(open_at(fake.url), "solver", temperature=0.7, top_p=0.9, top_k=5, max_tokens=9, stop=("END",))
    [loaded] = fake.bodies(LOAD)
    [body] = fake.bodies(COMPLETE)[1:]  # the first asks how it gives log-probs
    assert loaded.keys() == {"lora_name", "lora_path"}
    assert loaded["lora_name"].endswith("-solver@0")
    assert body == {
        "model": loaded["lora_name"], "prompt": [7, 8], "max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 5,
        "seed": 2**62, "stop": ["END"], "stop_token_ids": sorted(TEAM.end_ids), "ignore_eos": True, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logprobs": 0,
        "return_token_ids": True,
    }  # fmt: skip
    assert (said.token_ids, said.logprobs, said.finish, said.stop) == ((19, 2), (-0.5, -0.25), "stop", None)


def test_limits_are_the_server_s_own_where_they_are_lower(fake: Fake) -> None:
    engine = open_at(fake.url)
    assert engine.longest == 64 < TEAM.longest
    ask(engine, "solver", max_tokens=100)
    assert fake.bodies(COMPLETE)[-1]["max_tokens"] == 62


def test_a_stop_string_of_ours_is_believed_and_no_other(fake: Fake) -> None:
    fake.choice |= {"token_ids": [19], "logprobs": {"token_logprobs": [-0.5]}, "stop_reason": "END"}
    engine = open_at(fake.url)
    assert ask(engine, "solver", stop=("END",))[0].stop == "END"
    assert ask(engine, "solver")[0].stop is None


def test_adapters_are_loaded_once_and_unloaded_after_an_update(fake: Fake) -> None:
    engine = open_at(fake.url)
    ask(engine, "solver", "solver", None)
    engine.version = 1
    ask(engine, "solver")
    names = [body["lora_name"].rpartition("-")[2] for body in fake.bodies(LOAD)]
    assert sorted(names[:2]) == ["base", "solver@0"]
    assert names[2:] == ["solver@1"]
    assert [body["lora_name"].rpartition("-")[2] for body in fake.bodies(UNLOAD)] == ["solver@0"]
    del engine
    gc.collect()
    left = [body["lora_name"].rpartition("-")[2] for body in fake.bodies(UNLOAD)[1:]]
    assert sorted(left) == ["base", "solver@1"]  # a server that goes on without us keeps nothing of ours


def test_what_the_server_keeps_is_asked_back_again_and_what_it_has_not_is_forgotten(fake: Fake) -> None:
    def unloaded() -> list[str]:
        return [body["lora_name"].rpartition("-")[2] for body in fake.bodies(UNLOAD)]

    engine = open_at(fake.url)
    for version, status in enumerate((200, 500, 404, 200)):
        engine.version, fake.refuses[UNLOAD] = version, status
        assert ask(engine, "solver")[0].version == version
    assert unloaded() == ["solver@0", "solver@0", "solver@1", "solver@2"]
    del engine
    gc.collect()
    assert unloaded()[4:] == ["solver@3"]


def test_connections_are_closed_with_their_event_loop(fake: Fake) -> None:
    engine = open_at(fake.url)
    ask(engine, "solver")
    ask(engine, "solver")
    assert engine.backend.clients == {}  # type: ignore[attr-defined]


# --- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("url", ["http://127.0.0.1:9/v1", "nowhere", "http://[::1"])
def test_a_server_that_is_away(url: str) -> None:
    with pytest.raises(MarftError, match=r"engine.url: no vLLM server answers at .*; start one with vllm serve"):
        require(EngineConfig(name="vllm", url=url))


def test_log_probs_before_temperature_are_refused(fake: Fake) -> None:
    fake.certain = -0.4
    with pytest.raises(MarftError, match="start it with --logprobs-mode processed_logprobs"):
        require(EngineConfig(name="vllm", url=fake.url))


def test_another_kind_of_server_is_refused(fake: Fake) -> None:
    fake.choice = {"text": "hello"}
    with pytest.raises(MarftError, match="is no vLLM server of a known version"):
        require(EngineConfig(name="vllm", url=fake.url))


def test_a_server_without_adapters_says_how_to_start_it(fake: Fake) -> None:
    fake.refuses[LOAD] = 404
    with pytest.raises(MarftError) as caught:
        ask(open_at(fake.url), "solver")
    line = str(caught.value)
    assert "(no such thing)" in line
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora, --max-loras 2 and --max-lora-rank 4 or more" in line


@pytest.mark.parametrize(
    "choice",
    [
        {"finish_reason": "abort"},
        {"token_ids": [19]},
        {"token_ids": []},
        {"logprobs": None},
        {"logprobs": {"token_logprobs": [None, -0.25]}},
    ],
)
def test_half_an_answer_fails_its_episode_alone(fake: Fake, choice: dict[str, Any]) -> None:
    engine = open_at(fake.url)
    fake.choice |= choice
    with pytest.raises(SpeechError, match="gives no whole answer"):
        ask(engine, "solver")


def test_a_refusal_fails_its_episode_alone(fake: Fake) -> None:
    engine = open_at(fake.url)
    fake.refuses[COMPLETE] = 400
    with pytest.raises(SpeechError, match="answers 400: no such thing"):
        ask(engine, "solver")
