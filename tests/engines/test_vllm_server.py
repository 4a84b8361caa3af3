"""What goes to a vLLM server and what is made of its answers, with a server that only speaks the protocol."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from teams import team_of
from vllm_fake import Fake, faking

from marft.config.schema import EngineConfig
from marft.engines.vllm.engine import VllmEngine, check_available, make_vllm_engine
from marft.types import Completion, MarftError, Request, Sampling, SpeechError

TEAM = team_of({"solver": 4})
LOAD, UNLOAD, COMPLETE = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/completions"


@pytest.fixture
def fake() -> Iterator[Fake]:
    with faking() as server:
        yield server


def open_at(url: str) -> VllmEngine:
    async def at_once() -> None: ...

    return make_vllm_engine(TEAM, EngineConfig(name="vllm", url=url, slots=4), at_once)


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
    engine.publish(1)
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
        engine.publish(version)
        fake.refuses[UNLOAD] = status
        assert ask(engine, "solver")[0].version == version
    assert unloaded() == ["solver@0", "solver@0", "solver@1", "solver@2"]
    del engine
    gc.collect()
    assert unloaded()[4:] == ["solver@3"]


def test_connections_are_closed_with_their_event_loop(fake: Fake) -> None:
    engine = open_at(fake.url)
    ask(engine, "solver")
    ask(engine, "solver")
    [member] = engine.backend.members  # type: ignore[attr-defined]
    assert member.server.connections.by_loop == {}


# --- the key ----------------------------------------------------------------------------------------------------------
SECRET = "sesame-0123456789"


def test_the_key_is_sent_with_every_request_and_shown_to_nobody(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    fake.key = SECRET
    engine = open_at(fake.url)
    ask(engine, "solver", None)
    engine.publish(1)
    ask(engine, "solver")
    fake.refuses[COMPLETE], fake.quoted = 400, SECRET
    with pytest.raises(SpeechError, match=r"no such thing \*\*\*") as error:
        ask(engine, "solver")
    described = f"{error.value!r} {error.value.__cause__!r} {engine!r} {vars(engine.backend)!r} {caplog.text} {capfd.readouterr()}"
    del engine, error  # whose traceback holds it
    gc.collect()
    assert SECRET not in described + caplog.text
    assert set(fake.authorizations) == {f"Bearer {SECRET}"}
    assert len(fake.bodies(UNLOAD)) == 3  # what is left at the end too


def test_without_a_key_none_is_sent(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", " ")
    ask(open_at(fake.url), "solver")
    assert set(fake.authorizations) == {None}


@pytest.mark.parametrize("given", ["", "another-0123456789"])
def test_a_key_that_the_server_does_not_know(fake: Fake, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("VLLM_API_KEY", given)
    fake.key = SECRET
    with pytest.raises(MarftError, match=r"HTTP 401: .* set VLLM_API_KEY to the one it was started with") as error:
        check_available(EngineConfig(name="vllm", url=fake.url))
    assert not given or given not in str(error.value)


@pytest.mark.parametrize("url", ["http://10.1.2.3:8000", "http://example.org/v1", "http://127.0.0.1.example.org"])
def test_a_key_goes_to_no_other_machine_in_clear_text(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    with pytest.raises(MarftError, match=r"would go to .* in clear text") as error:
        check_available(EngineConfig(name="vllm", url=url))
    assert SECRET not in str(error.value)


# --- mistakes ---------------------------------------------------------------------------------------------------------
def test_a_server_that_is_away() -> None:
    said = r"engine.url: no vLLM server answers at .*; start one with .* vllm serve MODEL --host 127.0.0.1, and set VLLM_API_KEY"
    with pytest.raises(MarftError, match=said):
        check_available(EngineConfig(name="vllm", url="http://127.0.0.1:9/v1"))


@pytest.mark.parametrize(
    "url", ["nowhere", "http://[::1", "http://me:sesame@127.0.0.1:8000", "http://127.0.0.1:8000?key=1"]
)
def test_an_address_that_is_none_or_holds_a_secret(url: str) -> None:
    with pytest.raises(ValidationError) as error:
        EngineConfig(name="vllm", url=url)
    assert "sesame" not in error.value.errors()[0]["msg"]


def test_log_probs_before_temperature_are_refused(fake: Fake) -> None:
    fake.certain = -0.4
    with pytest.raises(MarftError, match="start it with --logprobs-mode processed_logprobs"):
        check_available(EngineConfig(name="vllm", url=fake.url))


def test_another_kind_of_server_is_refused(fake: Fake) -> None:
    fake.choice = {"text": "hello"}
    with pytest.raises(MarftError, match="is no vLLM server of a known version"):
        check_available(EngineConfig(name="vllm", url=fake.url))


@pytest.mark.parametrize(
    ("says", "line"),
    [
        (b"", r"no vLLM server answers at .* \(no whole answer within 0\.2 s\); start one with"),
        (b"220 mail.example ESMTP\r\n", r"no vLLM server answers at .* \(.*\); start one with"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "is no vLLM server of a known version"),
    ],
    ids=["nothing", "mail", "pages"],
)
def test_whatever_else_has_the_port_is_one_line_at_once(
    says: bytes, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marft.engines.vllm.discovery.LISTING", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1)
                connection.sendall(says)
                connection.recv(1 << 16)
                done.wait()

        done = threading.Event()
        threading.Thread(target=greet, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(MarftError, match=line) as caught:
            check_available(EngineConfig(name="vllm", url=f"http://127.0.0.1:{other.getsockname()[1]}"))
        assert time.monotonic() - began < 5
        assert "\n" not in str(caught.value)
        done.set()


def test_a_server_without_adapters_says_how_to_start_it(fake: Fake) -> None:
    fake.refuses[LOAD] = 404
    with pytest.raises(MarftError) as caught:
        ask(open_at(fake.url), "solver")
    line = str(caught.value)
    assert "(no such thing)" in line
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora, --max-loras 2 and --max-lora-rank 4 or more" in line


def test_an_adapter_too_large_for_a_server_is_no_failure_of_it(fake: Fake) -> None:
    fake.refuses[LOAD], fake.quoted = 500, "LoRA rank 4 is greater than max_lora_rank 2"
    with pytest.raises(MarftError, match="--max-lora-rank 4 or more"):
        ask(open_at(fake.url), "solver")


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


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), float("-inf"), 0.5, 10**30], ids=str)
def test_a_log_prob_that_no_probability_has_is_no_certainty(fake: Fake, logprob: Any) -> None:
    engine = open_at(fake.url)
    fake.choice |= {"logprobs": {"token_logprobs": [-0.5, logprob]}}
    with pytest.raises(
        SpeechError, match=r"for the log-prob of a token, which no probability has|gives no whole answer"
    ):
        ask(engine, "solver")
    fake.certain = logprob
    with pytest.raises(
        MarftError, match=r"for a log-prob, which no probability has|is no vLLM server of a known version"
    ):
        check_available(EngineConfig(name="vllm", url=fake.url))


@pytest.mark.parametrize("logprobs", [["-0.5", -0.25], [True, -0.25], [[], -0.25]])
def test_a_log_prob_is_a_number(fake: Fake, logprobs: list[Any]) -> None:
    engine = open_at(fake.url)
    fake.choice |= {"logprobs": {"token_logprobs": logprobs}}
    with pytest.raises(SpeechError, match="a log-prob is no number"):
        ask(engine, "solver")


@pytest.mark.parametrize("ids", [[19, -1], [19, 10**9], [19, 1.5], [19, True], ["19", 2]])
def test_tokens_that_the_model_does_not_have(fake: Fake, ids: list[Any]) -> None:
    engine = open_at(fake.url)
    fake.choice |= {"token_ids": ids}
    with pytest.raises(SpeechError, match=r"vLLM gives the token|is no number"):
        ask(engine, "solver")


def test_more_tokens_than_were_asked_for(fake: Fake) -> None:
    engine = open_at(fake.url)
    with pytest.raises(SpeechError, match="vLLM gives 2 tokens with 2 log-probs, of 1"):
        ask(engine, "solver", max_tokens=1)


@pytest.mark.parametrize(
    "raw", [b"", b"[" * 100_000, b"\xff\xfe", b"[]", b"null", b'{"choices": {}}', b'{"choices": [3]}']
)
def test_what_is_no_answer_fails_its_episode_alone(fake: Fake, raw: bytes) -> None:
    engine = open_at(fake.url)
    fake.raw = raw
    with pytest.raises(SpeechError, match="gives no whole answer"):
        ask(engine, "solver")


def test_an_answer_has_a_limit_of_size(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.engines.vllm.server.LARGEST", 2 << 20)
    engine = open_at(fake.url)
    fake.raw = b" " * (3 << 20)
    with pytest.raises(SpeechError, match="its answer is longer than 2 MB"):
        ask(engine, "solver")
    monkeypatch.setattr("marft.engines.vllm.discovery.LARGEST", 10)
    with pytest.raises(MarftError, match="its answer is longer than 0 MB"):
        check_available(EngineConfig(name="vllm", url=fake.url))


def test_a_server_that_drips_has_a_limit_of_time(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.engines.vllm.server.PATIENCE", 0.3)
    for module in ("discovery", "server", "fleet"):
        monkeypatch.setattr(f"marft.engines.vllm.{module}.SHORT", 0.3)
    engine = open_at(fake.url)
    fake.drip = 0.1
    began = time.monotonic()
    with pytest.raises(SpeechError, match=r"is away: no whole answer within 0.3 s"):
        ask(engine, None)
    with pytest.raises(MarftError, match=r"no whole answer within 0.3 s"):
        check_available(EngineConfig(name="vllm", url=fake.url))
    assert time.monotonic() - began < 5
    fake.drip = 0.0


def test_a_refusal_fails_its_episode_alone(fake: Fake) -> None:
    engine = open_at(fake.url)
    fake.refuses[COMPLETE] = 400
    with pytest.raises(SpeechError, match="answers 400: no such thing"):
        ask(engine, "solver")
