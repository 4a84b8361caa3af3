from __future__ import annotations

import asyncio
import gzip
import logging
import random
import subprocess
import sys
import threading
import time
import traceback
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hostile import (
    Behaviour,
    Handler,
    babbles,
    breaks_off,
    drips,
    floods,
    hangs,
    hangs_up,
    reply,
    says,
    serving,
    slowly,
)  # fmt: skip

from marft.engines.openai import OpenAIEngine, reported_stop, retry_delay, unclosed_tag
from marft.types import Completion, MarftError, Message, Request, Sampling, SpeechError

MESSAGES = (Message(role="system", content="You add."), Message(role="user", content="3 + 4, naïve?"))
KEY = "sk-proj-a/b+c_0123456789-quite-secret"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def engine_of(url: str, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(url, "gpt-x", **{"key_env": None, "pause": 0.001, **settings})


def request(seed: int = 1, **sampling: Any) -> Request:
    return Request(adapter=None, messages=MESSAGES, prompt_ids=(), sampling=Sampling(**sampling), seed=seed)


def ask(engine: OpenAIEngine, *requests: Request) -> list[Completion]:
    async def play() -> list[Completion]:
        async with asyncio.timeout(30):
            return list(await asyncio.gather(*map(engine.generate, requests or [request()])))

    return asyncio.run(play())


def refused(engine: OpenAIEngine) -> str:
    with pytest.raises(SpeechError) as caught:
        ask(engine)
    message = str(caught.value)
    assert message.startswith(f"{engine.url}: ")
    assert message.isprintable()  # one line, and nothing that a terminal would obey
    assert len(message) < 400
    return message


def test_the_request_is_what_the_endpoint_documents() -> None:
    with serving(says("7")) as endpoint:
        engine = engine_of(endpoint.url + "/")
        assert engine.encode(MESSAGES) == ()
        sampling: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 12}
        ask(engine, request(seed=2**62 + 5, **sampling))
        ask(engine, request(stop=("\n", "END"), **sampling))
    first, second = endpoint.seen
    messages = [{"role": "system", "content": "You add."}, {"role": "user", "content": "3 + 4, naïve?"}]
    assert first.path == "/v1/chat/completions"
    assert first.body == {"model": "gpt-x", "messages": messages, "seed": 5, **sampling}
    assert second.body == {**first.body, "seed": 1, "stop": ["\n", "END"]}
    assert "authorization" not in first.headers
    assert first.headers["content-type"] == "application/json"


def test_different_seeds_stay_different_and_small() -> None:
    with serving(says("7")) as endpoint:
        ask(engine_of(endpoint.url), *(request(seed=seed) for seed in (2**63 - 1, 2**40 + 3, 3, 4)))
    seeds = sorted(seen.body["seed"] for seen in endpoint.seen)
    assert seeds == [3, 3, 4, 2**31 - 1]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "stop"), (None, "stop"), ({}, "stop")],
)
def test_a_completion_is_text_alone(reason: object, finish: Any) -> None:
    with serving(says("It is 7.", reason)) as endpoint:
        [said] = ask(engine_of(endpoint.url))
    assert said == Completion(text="It is 7.", token_ids=(), logprobs=(), finish=finish, version=0)


def test_no_finish_reason_is_a_stop() -> None:
    with serving(reply({"choices": [{"message": {"content": ""}}]})) as endpoint:
        assert ask(engine_of(endpoint.url))[0].finish == "stop"


def test_a_stop_string_that_comes_back_is_cut() -> None:
    with serving(says("7\nEND", "length")) as endpoint:
        [said] = ask(engine_of(endpoint.url), request(stop=("END", "\n")))
    assert (said.text, said.finish) == ("7", "stop")


def test_half_a_surrogate_pair_neither_comes_nor_goes() -> None:
    """JSON may spell one; a tokenizer of ours would break on it."""
    with serving(reply(b'{"choices": [{"message": {"content": "a\\ud800b"}}]}')) as endpoint:
        assert ask(engine_of(endpoint.url))[0].text == "a?b"
        torn = Request(
            adapter=None, messages=(Message(role="user", content="\udc00"),), prompt_ids=(), sampling=Sampling(), seed=1
        )
        ask(engine_of(endpoint.url), torn)


PASSING: dict[str, Behaviour] = {
    **{str(status): reply({"error": {"message": "busy"}}, status) for status in (408, 409, 429, 500, 502, 503, 529)},
    "hangs up": hangs_up, "breaks off": breaks_off, "babbles": babbles(b"\x00\xff" * 50), "hangs": hangs, "drips": drips,
}  # fmt: skip


@pytest.mark.parametrize("name", PASSING)
def test_what_may_pass_is_tried_again(name: str) -> None:
    with serving(PASSING[name], PASSING[name], says("7")) as endpoint:
        assert ask(engine_of(endpoint.url, timeout=0.5))[0].text == "7"
    assert len(endpoint.seen) == 3
    assert endpoint.seen[0].body == endpoint.seen[2].body


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("503", "HTTP 503: busy"), ("hangs up", "RemoteProtocolError: "), ("breaks off", "RemoteProtocolError: "),
        ("babbles", "RemoteProtocolError: "), ("hangs", "no whole answer within 0.1 s"), ("drips", "no whole answer within 0.1 s"),
    ],
)  # fmt: skip
def test_what_does_not_pass_is_given_up(name: str, reason: str) -> None:
    with serving(PASSING[name]) as endpoint:
        said = refused(engine_of(endpoint.url, timeout=0.1, retries=2))
    assert reason in said
    assert said.endswith("(tried 3×)")
    assert len(endpoint.seen) == 3


def test_an_endpoint_that_is_away_is_given_up() -> None:
    with serving(says("7")) as endpoint:
        pass
    assert "ConnectError: " in refused(engine_of(endpoint.url, retries=1))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_would_fail_again_is_not_tried_again(status: int) -> None:
    with serving(reply({"error": {"message": "no such\n\x1b[31mmodel"}}, status)) as endpoint:
        said = refused(engine_of(endpoint.url))
    assert f"HTTP {status}: no such [31mmodel (tried 1×)" in said
    assert len(endpoint.seen) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>oops</html>", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe\xfd", "is not JSON"),
        (b'{"choices": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b"[]", "no text"),
        (b"null", "no text"),
        (b"7", "no text"),
        (b'{"error": {"message": "quota"}}', "no text in choices[0].message.content: quota"),
        (b'{"error": "quota"}', "no text in choices[0].message.content: quota"),
        (b'{"choices": []}', "no text"),
        (b'{"choices": {}}', "no text"),
        (b'{"choices": "text"}', "no text"),
        (b'{"choices": [{}]}', "no text"),
        (b'{"choices": [{"message": {}}]}', "no text"),
        (b'{"choices": [{"message": "text"}]}', "no text"),
        (b'{"choices": [{"message": {"content": null}}]}', "no text"),
        (b'{"choices": [{"message": {"content": 7}}]}', "no text"),
        (b'{"choices": [{"message": {"content": ["7"]}}]}', "no text"),
        (b'{"choices": [{"message": {"content": 7}}], "x": "' + b"y" * 1_000_000 + b'"}', "no text"),
    ],
)
def test_a_malformed_answer_is_a_failure_of_speech(body: bytes, reason: str) -> None:
    with serving(reply(body)) as endpoint:
        assert reason in refused(engine_of(endpoint.url))
    assert len(endpoint.seen) == 1


def test_a_huge_answer_is_not_read_to_its_end() -> None:
    with serving(floods) as endpoint:
        assert "its answer is longer than 8 MB" in refused(engine_of(endpoint.url))
    assert len(endpoint.seen) == 1


def test_a_large_answer_is_read() -> None:
    with serving(says("x" * 7_000_000)) as endpoint:
        assert len(ask(engine_of(endpoint.url))[0].text) == 7_000_000


def test_an_answer_that_blows_up_is_not_read() -> None:
    bomb = gzip.compress(b" " * (20 << 20))
    with serving(reply(bomb, headers={"Content-Encoding": "gzip"})) as endpoint:
        assert "longer than 8 MB" in refused(engine_of(endpoint.url))
    with serving(reply(b"not gzip", headers={"Content-Encoding": "gzip"})) as endpoint:
        assert "DecodingError" in refused(engine_of(endpoint.url))
    assert len(endpoint.seen) == 1


def test_redirects_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    with serving(says("7")) as elsewhere:
        target = {"Location": f"{elsewhere.url}/chat/completions"}
        for status in (301, 302, 307, 308):
            with serving(reply(b"", status, headers=target)) as endpoint:
                assert f"HTTP {status}: it redirects" in refused(engine_of(endpoint.url, key_env="MY_KEY"))
            assert len(endpoint.seen) == 1
    assert elsewhere.seen == []


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("", 0), ("7", 7), ("0.5", 0.5), ("0", 0), ("-3", 0), ("60", 60), ("61", 60), ("1e9", 60), ("inf", 60),
        ("nan", 0), ("soon", 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("Wed, 21 Oct 9999 07:28:00 GMT", 60),
        ("Wed, 99 Oct 9999", 0), ("9" * 400, 60),
    ],
)  # fmt: skip
def test_retry_after_by_hand(header: str, seconds: float) -> None:
    assert retry_delay(header) == seconds


def test_retry_after_may_be_a_date() -> None:
    assert 25 < retry_delay(formatdate(time.time() + 30, usegmt=True)) <= 30


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made between tries; they pass at once."""
    made: list[float] = []
    sleep = asyncio.sleep

    async def pass_at_once(seconds: float) -> None:
        made.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pass_at_once)
    return made


def test_the_pauses_grow_with_jitter_and_have_a_limit(pauses: list[float]) -> None:
    with serving(reply(b"", 500)) as endpoint:
        for pause in (0.5, 0.5, 200):
            refused(engine_of(endpoint.url, retries=5, pause=pause))
    assert len(pauses) == 15
    for n, pause in enumerate(pauses[:10]):
        expected = 0.5 * 2 ** (n % 5)
        assert 0.5 * expected <= pause <= 1.5 * expected
    assert len(set(pauses[:10])) == 10
    assert pauses[10:] == [60] * 5


@pytest.mark.parametrize(("asked", "least", "most"), [("7", 7, 7), ("3600", 60, 60), ("0", 0, 0.0015)])
def test_retry_after_is_honoured(pauses: list[float], asked: str, least: float, most: float) -> None:
    with serving(reply(b"", 429, headers={"Retry-After": asked}), says("7")) as endpoint:
        ask(engine_of(endpoint.url))
    [pause] = pauses
    assert least <= pause <= most


def test_jitter_takes_nothing_from_seeded_numbers() -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    with serving(reply(b"", 500), says("7")) as endpoint:
        ask(engine_of(endpoint.url))
    assert random.random() == expected


def test_so_many_at_once_and_no_more() -> None:
    lock = threading.Lock()
    now, most = 0, 0

    def counted(handler: Handler) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.03)
        with lock:
            now -= 1
        says("7")(handler)

    with serving(counted) as endpoint:
        ask(engine_of(endpoint.url, at_once=3), *(request(seed=i) for i in range(9)))
        assert most == 3
        most = 0
        ask(engine_of(endpoint.url), *(request(seed=i) for i in range(40)))
        assert 3 < most <= 32


def test_waiting_for_a_seat_is_not_waiting_for_an_answer() -> None:
    with serving(slowly(says("7"), 0.3)) as endpoint:
        assert len(ask(engine_of(endpoint.url, at_once=1, timeout=1.2, retries=0), *[request()] * 5)) == 5


def test_a_pause_is_no_request() -> None:
    """One seat: while the first waits for its next try, the second is served."""
    with serving(reply(b"", 429, headers={"Retry-After": "0.3"}), says("first"), says("second")) as endpoint:
        said = ask(engine_of(endpoint.url, at_once=1), request(seed=1), request(seed=2))
    assert [seen.body["seed"] for seen in endpoint.seen] == [1, 2, 1]
    assert [completion.text for completion in said] == ["second", "first"]


def test_who_gives_up_waiting_frees_its_seat() -> None:
    async def play(engine: OpenAIEngine) -> Completion:
        gone = asyncio.create_task(engine.generate(request()))
        async with asyncio.timeout(10):
            while not endpoint.seen:
                await asyncio.sleep(0.01)
            gone.cancel()
            return await engine.generate(request())

    with serving(hangs, says("7")) as endpoint:
        assert asyncio.run(play(engine_of(endpoint.url, at_once=1))).text == "7"


def test_connections_last_as_long_as_their_loop() -> None:
    async def talk(engine: OpenAIEngine) -> None:
        for _ in range(3):
            await engine.generate(request())

    with serving(says("7")) as endpoint:
        engine = engine_of(endpoint.url)
        for _ in range(2):
            asyncio.run(talk(engine))
            assert engine._connections.by_loop == {}
    ports = [seen.port for seen in endpoint.seen]
    assert len(set(ports[:3])) == len(set(ports[3:])) == 1
    assert ports[0] != ports[3]


def test_two_loops_at_the_same_time_have_their_own() -> None:
    said: list[Completion] = []
    with serving(slowly(says("7"), 0.05)) as endpoint:
        engine = engine_of(endpoint.url)
        threads = [threading.Thread(target=lambda: said.extend(ask(engine, request(), request()))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [completion.text for completion in said] == ["7"] * 6


LOOPS = """
import asyncio, gc, sys
from marft.engines.openai import OpenAIEngine, unclosed_tag, reported_stop
from marft.types import Message, Request, Sampling, SpeechError

engine = OpenAIEngine(sys.argv[1], "m", None, timeout=1, retries=1, pause=0.001)
asked = Request(adapter=None, messages=(), prompt_ids=(), sampling=Sampling(), seed=1)

async def some(count):
    return await asyncio.gather(*(engine.generate(asked) for _ in range(count)), return_exceptions=True)

async def left_alone():  # a request is under way when the loop ends
    asyncio.create_task(engine.generate(asked))
    await asyncio.sleep(0.05)

async def breaks_down():
    await engine.generate(asked)
    raise KeyError("the workflow")

for count in (1, 5, 3):
    assert all(isinstance(said, Exception) or said.text == "7" for said in asyncio.run(some(count)))
asyncio.run(left_alone())
try:
    asyncio.run(breaks_down())
except KeyError:
    pass
assert asyncio.run(some(1))[0].text == "7"
del engine
gc.collect()
print("fine")
"""


def test_no_loop_leaves_a_warning_behind(tmp_path: Path) -> None:
    """asyncio.run again and again, with failures, a request left alone and a crash: everything is closed in time."""
    script = tmp_path / "loops.py"
    script.write_text(LOOPS)
    todo = [says("7"), says("7"), hangs_up, breaks_off, says("7"), hangs, says("7"), slowly(says("7"), 0.2), says("7")]
    with serving(*todo) as endpoint:
        command = [sys.executable, "-W", "error", str(script), endpoint.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.stdout == "fine\n"


def test_the_key_goes_to_its_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", f"  {KEY}\n")
    with serving(says("7")) as endpoint:
        engine = engine_of(endpoint.url, key_env="MY_KEY")
        monkeypatch.delenv("MY_KEY")  # it was read when the engine was made
        ask(engine)
    assert endpoint.seen[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("value", [None, "", "  \n"])
def test_a_missing_key_is_asked_for(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(MarftError) as caught:
        engine_of("https://api.example.org/v1", key_env="MY_KEY")
    assert str(caught.value) == "agents: set the environment variable MY_KEY to the key of https://api.example.org/v1"


@pytest.mark.parametrize("value", ["sk-secret\nsecond", "sk-secret\x01", "sk-secré", "sk secret"])
def test_what_can_be_no_key_is_not_quoted(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(MarftError, match=r"MY_KEY is no key of https://api.example.org/v1") as caught:
        engine_of("https://api.example.org/v1", key_env="MY_KEY")
    assert "sec" not in str(caught.value)


def echoed(how: str) -> Behaviour:
    """The server quotes the key it was given."""
    escaped = KEY.replace("/", "\\/").replace("s", "\\u0073")
    return {
        "error": reply({"error": {"message": f"wrong key {KEY}!"}}, 401),
        "escaped": reply(b'{"error": {"message": "wrong key ' + escaped.encode() + b'!"}}', 401),
        "other json": reply(b'{"detail": ["wrong key ' + escaped.encode() + b'!"]}', 403),
        "text": reply(f"wrong key {KEY}!".encode(), 500),
        "at the cut": reply(b"-" * (200 - len("HTTP 401: ") - 12) + f"{KEY}!".encode(), 401),
        "no text": reply({"wrong key": KEY}),
        "reason": reply(b"wrong key", 401, f"Wrong key {KEY}", {"X-Key": f"Bearer {KEY}"}),
        "not http": babbles(f"wrong key {KEY}".encode()),
    }[how]  # fmt: skip


@pytest.mark.parametrize(
    "how", ["error", "escaped", "other json", "text", "at the cut", "no text", "reason", "not http"]
)
def test_the_key_is_in_no_error_and_in_no_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    with serving(echoed(how)) as endpoint:
        engine = engine_of(endpoint.url, key_env="MY_KEY", retries=1)
        with pytest.raises(SpeechError) as caught:
            ask(engine)
    assert endpoint.seen[0].headers["authorization"] == f"Bearer {KEY}"
    shown = [str(caught.value), repr(caught.value), repr(engine), str(engine), caplog.text]
    shown += traceback.format_exception(caught.value)
    assert "wrong key" in str(caught.value) or how in ("at the cut", "not http")
    for text in shown:
        assert KEY[:12] not in text
        assert "0123456789" not in text  # a part that is spelled the same with and without escapes
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert "HTTP Request: POST" in caplog.text or how == "not http"  # the log is looked at


def test_the_key_is_in_no_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is a placeholder, which is a word like any other."""
    for key, heard in ((KEY, "it is ***"), ("EMPTY", "it is EMPTY")):
        monkeypatch.setenv("MY_KEY", key)
        with serving(says(f"it is {key}")) as endpoint:
            assert ask(engine_of(endpoint.url, key_env="MY_KEY"))[0].text == heard


def test_top_k_is_not_part_of_the_interface() -> None:
    with serving(says("7")) as endpoint, pytest.raises(MarftError, match=f"^agents: {endpoint.url} takes no top_k;"):
        ask(engine_of(endpoint.url), request(top_k=3))
    assert endpoint.seen == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("api.example.org/v1", "no address"), ("ftp://example.org", "no address"), ("http://", "no address"),
        ("", "no address"), ("https://example.org:99999/v1", "no address"), ("https://example.org:x", "no address"),
        ("https://exa\nmple.org", "no address"), ("https://me:hidden@example.org/v1", "holds a login"),
        ("https://example.org/v1?key=hidden", "holds a login"),
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_is_one_line(url: str, reason: str) -> None:
    with pytest.raises(MarftError, match=rf"^agents: the url .*{reason}") as caught:
        engine_of(url)
    assert str(caught.value).isprintable()
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "reason", "stop"),
    [
        ("Let me see: <python>2 + 2", None, "</python>"),  # the endpoint does not tell; the open tag does
        ("<python>a<calculator>2", None, "</calculator>"),
        ("Let me see: <python>2 + 2", "</python>", "</python>"),
        ("one", "###", "###"),
        ("one", "other", None),
        ("one", 7, None),
        ("one", None, None),
    ],
)
def test_which_stop_string_ended_an_answer(said: str, reason: object, stop: str | None) -> None:
    stops = ("###", "</python>", "</calculator>")
    assert (reported_stop(reason, stops) or unclosed_tag(said, stops)) == stop
