"""vLLM itself, in this process and as a server: what it says is what the learner would have said of it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from teams import fill_b, team_of

# the suite of all engines, run on these; `case` is the fixture that is replaced
from test_contract import (  # noqa: F401
    Case,
    test_a_completion_ends_before_its_stop_string,
    test_a_completion_is_whole,
    test_encode_gives_ids_that_depend_on_the_messages,
)

from marft.config.schema import EngineConfig
from marft.engines.vllm.engine import VllmEngine, make_vllm_engine
from marft.engines.vllm.process import Process
from marft.models.chat import render
from marft.models.registry import NANO
from marft.models.scoring import action_span, hidden_states, logprobs
from marft.models.team import TeamModel
from marft.types import Completion, MarftError, Message, PromptTooLong, Request, Sampling

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed; docs/engines.md says how")

RANKS = {"planner": 4, "solver": 7}
CLOSE = 2e-4  # log-probs of two float32 programs
SERVE = [
    "--host",
    "127.0.0.1",
    "--gpu-memory-utilization",
    "0.1",
    "--no-enable-chunked-prefill",
    "--enable-lora",
    "--max-loras",
    "3",
    "--max-lora-rank",
    "8",
    "--dtype",
    "float32",
    "--logprobs-mode",
    "processed_logprobs",
]


async def at_once() -> None:
    pass


@pytest.fixture(scope="module")
def team() -> TeamModel:
    return team_of(RANKS)


@pytest.fixture(scope="module")
def process(team: TeamModel) -> VllmEngine:
    return make_vllm_engine(team, EngineConfig(name="vllm", slots=16, memory=0.1), at_once)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    os.environ.setdefault("VLLM_API_KEY", secrets.token_urlsafe(32))  # for the server and for us
    environment = {**os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        *SERVE,
        "--model",
        str(NANO),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        for _ in range(600):
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture(scope="module", params=["process", "server"])
def engine(request: pytest.FixtureRequest, team: TeamModel) -> VllmEngine:
    if request.param == "process":
        return request.getfixturevalue("process")
    return make_vllm_engine(team, EngineConfig(name="vllm", url=request.getfixturevalue("url"), slots=16), at_once)


@pytest.fixture
def case(engine: VllmEngine, team: TeamModel) -> Case:
    return Case(engine=engine, longest=team.longest, team=team)


def question(
    team: TeamModel,
    number: int = 0,
    adapter: str | None = "solver",
    *,
    words: int = 1,
    seed: int = 7,
    **sampling: object,
) -> Request:
    text = f"Start with {number + 3}. Add {number % 9}." + " Subtract 1." * words
    settings: dict[str, Any] = {"max_tokens": 12, **sampling}
    ids = render(team.tokenizer, [Message(role="user", content=text)])
    return Request(adapter=adapter, prompt_ids=ids, sampling=Sampling(**settings), seed=seed)


def ask(engine: VllmEngine, requests: Sequence[Request]) -> list[Completion]:
    async def play() -> list[Completion]:
        async with asyncio.timeout(120):
            return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(play())


def own(team: TeamModel, request: Request, said: Completion) -> list[float]:
    """The learner's log-probs of the same tokens."""
    with torch.no_grad():
        hidden = hidden_states(team, [action_span(request.adapter, request.prompt_ids, said.token_ids)])
        count = len(said.token_ids)
        temperature = torch.full((count,), request.sampling.temperature)
        found, _ = logprobs(team, hidden, torch.tensor(said.token_ids), temperature)
    return found.tolist()


def test_log_probs_are_the_learner_s_for_every_adapter_and_the_base_in_one_batch(
    engine: VllmEngine, team: TeamModel
) -> None:
    adapters = ("planner", None, "solver", None) * 4
    asked = [question(team, i, adapter, temperature=1.7, seed=i) for i, adapter in enumerate(adapters)]
    answers = ask(engine, asked)
    assert sum(len(said.token_ids) for said in answers) > 100
    for request, said in zip(asked, answers, strict=True):
        assert said.logprobs == pytest.approx(own(team, request, said), abs=CLOSE)
        other = Request(adapter="planner", prompt_ids=request.prompt_ids, sampling=request.sampling, seed=0)
        assert request.adapter == "planner" or said.logprobs != pytest.approx(own(team, other, said), abs=10 * CLOSE)


def test_log_probs_are_those_of_the_truncated_distribution(engine: VllmEngine, team: TeamModel) -> None:
    [sure, free, greedy] = ask(
        engine, [question(team, top_k=1), question(team, top_k=3, temperature=2.0), question(team, temperature=0)]
    )
    assert sure.logprobs == (0.0,) * len(sure.token_ids)
    assert greedy.logprobs == (0.0,) * len(greedy.token_ids)
    assert sure.token_ids == greedy.token_ids
    request = question(team, top_k=3, temperature=2.0)
    with torch.no_grad():
        hidden = hidden_states(team, [action_span("solver", request.prompt_ids, free.token_ids)])
        best = (team.logits(hidden) / 2).topk(3)
    for token, logprob, tokens, values in zip(free.token_ids, free.logprobs, best.indices, best.values, strict=True):
        assert logprob == pytest.approx(float(values.log_softmax(-1)[tokens == token]), abs=CLOSE)


def test_the_seed_decides_the_draw(engine: VllmEngine, team: TeamModel) -> None:
    def draws() -> list[Completion]:
        return ask(engine, [question(team, temperature=2.0, seed=seed) for seed in range(8)])

    first, second = draws(), draws()
    assert [said.token_ids for said in first] == [said.token_ids for said in second]
    assert len({said.token_ids for said in first}) > 4


def test_a_turn_ends_at_its_token_its_limit_or_the_model_s(engine: VllmEngine, team: TeamModel) -> None:
    messages = (Message(role="user", content="Start with 3. Add 4."),)
    sampling = Sampling(temperature=0, max_tokens=64)
    [said] = ask(engine, [Request(adapter=None, prompt_ids=engine.encode(messages), sampling=sampling, seed=0)])
    assert said.finish == "stop"
    assert said.token_ids[-1] in team.end_ids
    assert not set(said.token_ids[:-1]) & team.end_ids
    [short] = ask(engine, [question(team, temperature=0, max_tokens=1)])
    assert (len(short.token_ids), short.finish) == (1, "length")
    long = Request(adapter=None, prompt_ids=(5,) * (team.longest - 2), sampling=sampling, seed=0)
    assert len(ask(engine, [long])[0].token_ids) <= 2
    with pytest.raises(PromptTooLong):
        ask(engine, [Request(adapter=None, prompt_ids=(5,) * team.longest, sampling=sampling, seed=0)])


def test_after_an_update_nothing_is_left_of_the_old_adapter(engine: VllmEngine, team: TeamModel) -> None:
    """The prompt fills blocks of the prefix cache, whose keys an update makes wrong."""
    request = question(team, words=80, temperature=1.0)
    assert len(request.prompt_ids) > 2 * 128
    engine.publish(10)
    [before, again] = [ask(engine, [request])[0] for _ in range(2)]
    assert again.logprobs == pytest.approx(own(team, request, before), abs=CLOSE)
    fill_b(team, 0.05, seed=2)
    engine.publish(11)
    [after] = ask(engine, [request])
    assert after.version == 11
    expected = own(team, request, after)
    assert after.logprobs == pytest.approx(expected, abs=CLOSE)
    fill_b(team, 0.05)
    assert own(team, request, after) != pytest.approx(expected, abs=100 * CLOSE)  # the update mattered
    engine.publish(12)
    [restored] = ask(engine, [request])
    assert (restored.token_ids, restored.logprobs) == (before.token_ids, pytest.approx(before.logprobs, abs=CLOSE))


def test_old_adapter_versions_go_when_nobody_uses_them(process: VllmEngine, team: TeamModel) -> None:
    backend = process.backend
    assert isinstance(backend, Process)

    async def play() -> None:
        process.publish(20)
        slow = asyncio.create_task(process.generate(question(team, max_tokens=200, temperature=2.0)))
        while not backend.engine.has_unfinished_requests():
            await asyncio.sleep(0)
        process.publish(21)
        [said] = await asyncio.gather(process.generate(question(team, adapter="planner", max_tokens=2)))
        assert said.version == 21
        names = {adapter_version.name.rpartition("-")[2] for adapter_version in process.adapter_versions.known.values()}
        assert {"solver@20", "planner@21"} <= names
        assert (await slow).version == 20
        assert {
            adapter_version.name.rpartition("-")[2] for adapter_version in process.adapter_versions.known.values()
        } <= {
            "planner@21",
            "solver@21",
            "base",
        }

    asyncio.run(play())
    numbers = {
        adapter_version.number
        for adapter_version in process.adapter_versions.known.values()
        if adapter_version.ready is not None
    }
    assert backend.engine.list_loras() == numbers
    assert {path.name for path in process.adapter_versions.folder.iterdir()} == {
        adapter_version.name for adapter_version in process.adapter_versions.known.values()
    }


def test_who_gives_up_leaves_nothing_behind(process: VllmEngine, team: TeamModel) -> None:
    backend = process.backend
    assert isinstance(backend, Process)

    async def play() -> Completion:
        lost = asyncio.create_task(process.generate(question(team, max_tokens=500, temperature=2.0)))
        kept = asyncio.create_task(process.generate(question(team, 1, max_tokens=20, temperature=2.0)))
        while not backend.engine.has_unfinished_requests():
            await asyncio.sleep(0)
        lost.cancel()
        return await kept

    assert len(asyncio.run(play()).token_ids) <= 20
    assert not backend.asked
    assert not backend.engine.has_unfinished_requests()


def test_many_requests_go_through_together(process: VllmEngine, team: TeamModel) -> None:
    backend = process.backend
    assert isinstance(backend, Process)
    steps = 0
    step = backend.engine.step

    def counted() -> object:
        nonlocal steps
        steps += 1
        return step()

    backend.engine.step = counted
    try:
        said = ask(process, [question(team, i, temperature=2.0, seed=i) for i in range(16)])
    finally:
        del backend.engine.step
    assert steps <= max(len(one.token_ids) for one in said) + 2


def test_a_server_that_takes_no_adapters_of_this_size_says_what_to_do(url: str) -> None:
    large = make_vllm_engine(team_of({"solver": 9}), EngineConfig(name="vllm", url=url), at_once)
    with pytest.raises(MarftError, match=r"--max-lora-rank 9 or more"):
        ask(large, [question(large.team)])


def test_two_runs_of_one_process_write_down_the_mismatch(tmp_path: Path) -> None:
    """The second has no memory to start with unless the first gave its back."""
    settings = (
        "engine.name=vllm engine.memory=0.1 algorithm.correction=2 train.iterations=2 train.tasks=16 eval.tasks=64"
    )
    code = "import sys; from marft.cli import main; sys.exit(main(sys.argv[1::2]) or main(sys.argv[2::2]))"
    words = ["train", "duo", *settings.split()]
    arguments = [
        word
        for word in [*words, f"--run={tmp_path}/RUN"]
        for word in (word.replace("RUN", "a"), word.replace("RUN", "b"))
    ]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in "ab":
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert [row["iteration"] for row in rows] == [1, 2]
        for row in rows:
            assert 0 <= row["mismatch"]["kl"] <= 1e-6
            assert 0 < row["mismatch"]["max"] <= 1e-2
            assert row["mismatch"]["weight"] == pytest.approx(1, abs=1e-3)
            assert row["mismatch"]["truncated"] == 0
