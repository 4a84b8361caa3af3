"""Several servers as one backend, with servers that only speak the protocol: who is asked, who goes and who comes back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from teams import team_of
from vllm_fake import Fake, echo_of, faking

from marft.config.schema import EngineConfig
from marft.engines.vllm.engine import VllmEngine, check_available, make_vllm_engine
from marft.engines.vllm.fleet import Servers
from marft.engines.vllm.routing import prefix_key, rank_servers
from marft.types import Completion, MarftError, Request, Sampling, SpeechError

TEAM = team_of({"solver": 4})
LOAD, UNLOAD, COMPLETE = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/completions"


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fake]]:
    """Two servers, which are looked at often."""
    monkeypatch.setattr("marft.engines.vllm.fleet.LOOK_S", 0.05)
    with ExitStack() as stack:
        servers = [stack.enter_context(faking()) for _ in range(2)]
        for server in servers:
            server.echoes = True
        yield servers


async def at_once() -> None: ...


def open_at(fakes: Sequence[Fake], slots: int = 64) -> tuple[VllmEngine, Servers]:
    config = EngineConfig(name="vllm", url=tuple(fake.url for fake in fakes), slots=slots)
    engine = make_vllm_engine(TEAM, config, at_once)
    assert isinstance(engine.backend, Servers)
    return engine, engine.backend


def request(seed: int, prompt: Sequence[int] = (7, 8)) -> Request:
    return Request(adapter="solver", prompt_ids=tuple(prompt), sampling=Sampling(max_tokens=9), seed=seed)


def run(work: Awaitable[list[Completion]]) -> list[Completion]:
    async def within() -> list[Completion]:
        async with asyncio.timeout(30):
            return await work

    return asyncio.run(within())


async def ask(engine: VllmEngine, requests: Sequence[Request]) -> list[Completion]:
    """All at once; each must be answered as itself."""
    said = await asyncio.gather(*map(engine.generate, requests))
    assert [each.token_ids[0] for each in said] == [echo_of(each.seed) for each in requests]
    return said


def asked(fake: Fake) -> int:
    """Completions that were asked for, without those that ask how log-probs are given."""
    return sum(body["top_k"] != 1 for body in fake.bodies(COMPLETE))


def owner(fakes: Sequence[Fake], prompt: Sequence[int]) -> Fake:
    """The server that requests with this prompt go to."""
    [first, *_] = rank_servers(prefix_key("solver", prompt), [fake.base for fake in fakes])
    return next(fake for fake in fakes if fake.base == first)


def prompt_of(fakes: Sequence[Fake], fake: Fake) -> tuple[int, int]:
    """A prompt that is this server's."""
    return next((i, i) for i in range(3, 60) if owner(fakes, (i, i)) is fake)


async def until(is_so: Callable[[], object]) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


# --- who is asked -----------------------------------------------------------------------------------------------------
def test_prompts_that_begin_alike_go_to_one_server(fakes: list[Fake]) -> None:
    engine, servers = open_at(fakes)
    prompts = [(i, i) for i in range(3, 23)]

    async def play() -> list[Completion]:
        said: list[Completion] = []
        for seed, prompt in enumerate(prompts * 3):  # one after the other: nobody is busy
            said += await ask(engine, [request(seed, prompt)])
        return said

    run(play())
    for fake in fakes:
        own = [prompt for prompt in prompts if owner(fakes, prompt) is fake]
        assert own  # each has some
        asked_of_it = [tuple(body["prompt"]) for body in fake.bodies(COMPLETE) if body["top_k"] != 1]
        assert asked_of_it == own * 3
    assert {member.url: (member.requests, member.tokens) for member in servers.members} == {
        fake.base: (asked(fake), 2 * asked(fake)) for fake in fakes
    }


def test_a_server_that_is_busy_leaves_the_rest_to_the_least_busy(fakes: list[Fake]) -> None:
    busy, other = fakes
    busy.speaks, prompt = threading.Event(), prompt_of(fakes, busy)
    engine, _ = open_at(fakes)

    async def play() -> list[Completion]:
        first = asyncio.create_task(ask(engine, [request(i, prompt) for i in range(5)]))
        await until(lambda: asked(busy) == 5)  # as many as it may have while the other has none
        said = await ask(engine, [request(5, prompt)])
        assert (asked(busy), asked(other)) == (5, 1)
        assert busy.speaks is not None
        busy.speaks.set()
        said += await first
        return said + await ask(engine, [request(6, prompt)])  # now it has time

    run(play())
    assert (asked(busy), asked(other)) == (6, 1)


def test_every_server_has_an_adapter_version_before_it_is_asked_and_drops_it_after(fakes: list[Fake]) -> None:
    engine, _ = open_at(fakes)
    run(ask(engine, [request(i, (i, i)) for i in range(3, 23)]))
    engine.publish(1)
    run(ask(engine, [request(i, (i, i)) for i in range(3, 23)]))
    for fake in fakes:
        assert [path for path, _ in fake.seen][1] == LOAD  # the first asks how log-probs are given
        assert [body["lora_name"].rpartition("-")[2] for body in fake.bodies(LOAD)] == ["solver@0", "solver@1"]
        assert [body["lora_name"].rpartition("-")[2] for body in fake.bodies(UNLOAD)] == ["solver@0"]
    engine.close()
    assert [fake.loaded for fake in fakes] == [[], []]


# --- who goes and who comes back --------------------------------------------------------------------------------------
def test_a_server_that_is_killed_hands_its_requests_on(fakes: list[Fake], capfd: pytest.CaptureFixture[str]) -> None:
    victim, heir = fakes
    victim.speaks = heir.speaks = threading.Event()
    engine, servers = open_at(fakes)
    requests = [request(i, (3 + i, 3 + i)) for i in range(30)]

    async def play() -> list[Completion]:
        playing = asyncio.create_task(ask(engine, requests))
        await until(lambda: asked(victim) + asked(heir) == 30)
        victim.kill()
        assert heir.speaks is not None
        heir.speaks.set()
        return await playing

    before = 30 - len([each for each in requests if owner(fakes, each.prompt_ids) is heir])
    assert before > 3
    run(play())
    assert asked(victim) >= 3
    assert asked(heir) == 30
    assert [member.requests for member in servers.members] == [0, 30]  # once each
    away = f"marft: vLLM at {victim.base} is away: "
    assert len([line for line in capfd.readouterr().err.splitlines() if line.startswith(away)]) == 1


def test_a_server_that_comes_back_has_its_adapters_and_is_used_again(fakes: list[Fake]) -> None:
    lost, other = fakes
    prompt = prompt_of(fakes, lost)
    engine, servers = open_at(fakes)

    async def play() -> list[Completion]:
        said = await ask(engine, [request(1, prompt)])
        lost.kill()
        said += await ask(engine, [request(2, prompt)])
        assert (asked(lost), asked(other)) == (1, 1)
        engine.publish(1)  # while it is away
        said += await ask(engine, [request(3, prompt)])
        lost.revive()
        other.speaks = threading.Event()  # somebody waits, so that servers are looked at
        waiting = asyncio.create_task(ask(engine, [request(4, prompt_of(fakes, other))]))
        await until(lambda: servers.members[0].living)
        said += await ask(engine, [request(5, prompt)])
        other.speaks.set()
        return said + await waiting

    run(play())
    assert (asked(lost), asked(other)) == (2, 3)
    assert [name.rpartition("-")[2] for name in lost.loaded] == ["solver@1"]
    assert lost.loaded == other.loaded
    at = [path for path, _ in lost.seen]
    assert at[-2:] == [LOAD, COMPLETE]


def test_a_server_that_was_started_again_unseen_gets_its_adapters_back(fakes: list[Fake]) -> None:
    lost, _ = fakes
    prompt = prompt_of(fakes, lost)
    engine, servers = open_at(fakes)
    run(ask(engine, [request(1, prompt)]))
    lost.loaded.clear()
    run(ask(engine, [request(2, prompt)]))  # it says 404, and another answers

    async def wait() -> list[Completion]:
        for seed in range(3, 1000):
            if servers.members[0].living:
                return await ask(engine, [request(seed, prompt)])
            await ask(engine, [request(seed, prompt)])
            await asyncio.sleep(0.01)
        raise AssertionError

    before = servers.members[0].requests
    run(wait())
    assert servers.members[0].requests == before + 1
    assert len(lost.loaded) == 1


def test_a_server_that_hangs_is_taken_out(fakes: list[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    hung, other = fakes
    engine, servers = open_at(fakes)
    prompt = prompt_of(fakes, hung)
    run(ask(engine, [request(1, prompt)]))
    monkeypatch.setattr("marft.engines.vllm.server.SHORT", 0.3)
    hung.mute = threading.Event()
    began = time.monotonic()
    run(ask(engine, [request(2, prompt), request(3, prompt)]))
    assert time.monotonic() - began < 10
    assert not servers.members[0].living
    assert asked(other) == 2


def test_a_server_that_is_absent_at_first_joins_later(fakes: list[Fake]) -> None:
    late, early = fakes
    late.kill()
    engine, servers = open_at(fakes)
    prompt = prompt_of(fakes, late)
    run(ask(engine, [request(1, prompt)]))
    assert asked(early) == 1
    late.revive()
    early.speaks = threading.Event()

    async def play() -> list[Completion]:
        waiting = asyncio.create_task(ask(engine, [request(2, prompt_of(fakes, early))]))
        await until(lambda: servers.members[0].living)
        said = await ask(engine, [request(3, prompt)])
        assert early.speaks is not None
        early.speaks.set()
        return said + await waiting

    run(play())
    assert asked(late) == 1
    assert late.loaded == early.loaded


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_nobody_left_fails_the_episode_in_one_line(fakes: list[Fake], when: str) -> None:
    engine, servers = open_at(fakes)
    run(ask(engine, [request(1)]))

    async def play() -> list[Completion]:
        for fake in fakes:
            fake.speaks = threading.Event()
            if when == "before":
                fake.kill()
        playing = asyncio.create_task(ask(engine, [request(2)]))
        if when == "meanwhile":
            await until(lambda: sum(map(asked, fakes)) == 2)
            for fake in fakes:
                fake.kill()
        return await playing

    began = time.monotonic()
    with pytest.raises(SpeechError, match=r"^none of 2 servers answers: vLLM at http://127.0.0.1:\d+ is away: .*$"):
        run(play())
    assert time.monotonic() - began < 10
    assert not any(member.living for member in servers.members)
    for fake in fakes:
        fake.speaks = None
        fake.revive()
    run(ask(engine, [request(3)]))  # the next request finds them again
    assert sum(len(fake.loaded) for fake in fakes) >= 1


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_fails_hands_its_requests_on_until_it_completes_something(
    fakes: list[Fake], status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    broken, other = fakes
    prompt = prompt_of(fakes, broken)
    engine, servers = open_at(fakes)
    run(ask(engine, [request(1, prompt)]))
    broken.refuses[COMPLETE] = status
    run(ask(engine, [request(seed, prompt) for seed in range(2, 6)]))
    assert (servers.members[0].requests, servers.members[1].requests) == (1, 4)

    async def mend() -> list[Completion]:
        other.speaks = threading.Event()  # somebody waits, so that servers are looked at
        waiting = asyncio.create_task(ask(engine, [request(6, prompt)]))
        await asyncio.sleep(0.5)  # ten looks, at each of which it lists its models
        assert not servers.members[0].living
        broken.refuses.clear()
        await until(lambda: servers.members[0].living)
        said = await ask(engine, [request(7, prompt)])
        other.speaks.set()
        return said + await waiting

    run(mend())
    assert servers.members[0].requests == 2
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if line.endswith("is back")] == [f"marft: vLLM at {broken.base} is back"]
    assert (
        lines.count(f"marft: vLLM at {broken.base} answers {status}: no such thing; it is asked for every 0.05 s") == 1
    )


@pytest.mark.parametrize("path", [COMPLETE, LOAD])
def test_where_all_servers_fail_the_episode_does_and_says_so(fakes: list[Fake], path: str) -> None:
    engine, _ = open_at(fakes)
    for fake in fakes:
        fake.refuses[path] = 500
    began = time.monotonic()
    with pytest.raises(SpeechError, match=r"^none of 2 servers answers: .*500: no such thing"):
        run(ask(engine, [request(1)]))
    assert time.monotonic() - began < 10
    for fake in fakes:
        fake.refuses.clear()
    run(ask(engine, [request(2)]))  # the next request finds them again


def test_who_no_longer_waits_is_counted_nowhere(fakes: list[Fake]) -> None:
    engine, servers = open_at(fakes)
    for fake in fakes:
        fake.speaks = threading.Event()

    async def play() -> list[Completion]:
        waiting = asyncio.create_task(ask(engine, [request(1)]))
        await until(lambda: sum(map(asked, fakes)))
        waiting.cancel()
        await asyncio.wait([waiting])
        return []

    run(play())
    assert servers.under_way == 0
    assert [(member.attempts, member.requests, member.living) for member in servers.members] == [(set(), 0, True)] * 2


# --- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "longest", "said"),
    [
        ("other", 64, "serves other with 64 tokens, and the first server m with 64"),
        ("m", 32, "serves m with 32 tokens"),
    ],
)
def test_another_model_or_limit_is_refused(fakes: list[Fake], model: str, longest: int, said: str) -> None:
    fakes[1].model, fakes[1].longest = model, longest
    with pytest.raises(MarftError, match=rf"^engine.url: {fakes[1].base} {said}.*; start all with the same"):
        check_available(EngineConfig(name="vllm", url=tuple(fake.url for fake in fakes)))


def test_another_model_is_not_taken_back(fakes: list[Fake], capfd: pytest.CaptureFixture[str]) -> None:
    lost, other = fakes
    prompt = prompt_of(fakes, lost)
    engine, servers = open_at(fakes)
    run(ask(engine, [request(1, prompt)]))
    lost.kill()
    lost.model = "other"
    run(ask(engine, [request(2, prompt)]))
    lost.revive()
    other.speaks = threading.Event()
    said: list[str] = []

    async def play() -> list[Completion]:
        playing = asyncio.create_task(ask(engine, [request(3, prompt)]))
        await until(lambda: said.append(capfd.readouterr().err) or "serves other" in "".join(said))
        await asyncio.sleep(0.3)  # some more looks
        assert other.speaks is not None
        other.speaks.set()
        return await playing

    run(play())
    assert not servers.members[0].living
    assert ("".join(said) + capfd.readouterr().err).count("serves other with 64 tokens") == 1


def test_all_absent_at_the_start_is_one_line_with_what_to_do(fakes: list[Fake]) -> None:
    for fake in fakes:
        fake.kill()
    with pytest.raises(
        MarftError, match=r"engine.url: no vLLM server answers at .*; start one with .* vllm serve MODEL"
    ):
        check_available(EngineConfig(name="vllm", url=tuple(fake.url for fake in fakes)))


def test_one_that_cannot_be_learnt_from_is_refused_whatever_the_others_are(fakes: list[Fake]) -> None:
    fakes[1].certain = -0.4
    with pytest.raises(MarftError, match=f"{fakes[1].url} gives log-probs before temperature"):
        check_available(EngineConfig(name="vllm", url=tuple(fake.url for fake in fakes)))
