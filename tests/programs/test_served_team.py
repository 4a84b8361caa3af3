"""A team behind OpenAI's protocol, asked by OpenAI's own client; and what hostile ones come to."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import openai
import pytest
import toys
from openai import AsyncOpenAI
from voices import Voice, by_luck, in_turn, run, team

from marft.envs.hosting import InProcess
from marft.game.play import Game
from marft.game.tools import AgentTool, InlineCall, Tools
from marft.game.workflows import Workflow
from marft.game.workflows.built_in import sequential, vote
from marft.programs import served_team as module
from marft.programs.served_team import ServedTeam, make_server
from marft.types import Completion, PromptTooLong, Request, SpeechError, Task

ASKED: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
Use = Callable[[AsyncOpenAI], Awaitable[None]]


def served(voice: Voice | None = None, workflow: Workflow = sequential) -> ServedTeam:
    return ServedTeam(
        name="duo", agents=team("planner", "solver", voice=voice), host=InProcess(toys.Echo()), workflow=workflow,
        task=Task(id="yours", prompt=""), seed="0",
    )  # fmt: skip


@asynccontextmanager
async def listening(team: ServedTeam, token: str | None = None) -> AsyncIterator[str]:
    """Where it is."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = make_server(team, token)
    await server.listen(bound)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
    finally:
        await server.close()


def ask(use: Use, team: ServedTeam, *, token: str | None = None, key: str = "any") -> None:
    """`use` with OpenAI's client, which asks once."""

    async def play() -> None:
        async with listening(team, token) as url, AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
            await use(client)

    asyncio.run(play())


def test_models_are_the_team_and_its_agents() -> None:
    async def use(client: AsyncOpenAI) -> None:
        assert [model.id for model in (await client.models.list()).data] == ["duo", "planner", "solver"]

    ask(use, served())


def test_a_team_that_takes_no_questions_is_no_model() -> None:
    voice = Voice()
    agents_only = served(voice)
    agents_only.plays = False

    async def use(client: AsyncOpenAI) -> None:
        assert [model.id for model in (await client.models.list()).data] == ["planner", "solver"]
        with pytest.raises(openai.NotFoundError, match="takes no questions; ask one of planner, solver"):
            await client.chat.completions.create(model="duo", messages=ASKED)
        assert voice.requests == []
        assert (await client.chat.completions.create(model="solver", messages=ASKED)).choices

    ask(use, agents_only)


def test_an_agent_reads_the_client_s_messages_alone() -> None:
    voice = Voice()

    async def use(client: AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="solver", messages=ASKED, temperature=0.25, top_p=0.5, max_tokens=7, stop=["."], seed=3, logprobs=True
        )
        [choice] = answer.choices
        assert (choice.message.content, choice.finish_reason) == ("<solver>", "stop")
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [(each.token, each.logprob) for each in choice.logprobs.content] == [
            ("token_id:1", -0.5),
            ("token_id:2", -0.1),
        ]
        assert not hasattr(choice.message, "reasoning_content")

    ask(use, served(voice))
    [request] = voice.requests
    assert (request.adapter, [m.content for m in request.messages]) == ("solver", ["Be brief.", "2 + 2?"])
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.stop) == (0.25, 0.5, 7, (".",))


def test_the_agent_s_own_sampling_is_the_default_and_its_limit_stays() -> None:
    voice = Voice()

    async def use(client: AsyncOpenAI) -> None:
        await client.chat.completions.create(model="solver", messages=ASKED, max_tokens=1000)

    ask(use, served(voice))
    sampling = voice.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (1.0, 1.0, 99)


@pytest.mark.parametrize(("asked", "used"), [(1e-40, 0.0), (1e-7, 0.0), (1e-6, 1e-6), (0.5, 0.5)])
def test_a_temperature_of_all_but_nothing_is_none(asked: float, used: float) -> None:
    voice = Voice()

    async def use(client: AsyncOpenAI) -> None:
        await client.chat.completions.create(model="solver", messages=ASKED, temperature=asked)
        await client.responses.create(model="solver", input="2 + 2?", temperature=asked)

    ask(use, served(voice))
    assert [request.sampling.temperature for request in voice.requests] == [used, used]


@pytest.mark.parametrize("model", ["solver", "duo"])
def test_seeds_repeat_answers_and_choices_differ(model: str) -> None:
    async def use(client: AsyncOpenAI) -> None:
        async def say(**given: Any) -> list[str | None]:
            answer = await client.chat.completions.create(model=model, messages=ASKED, **given)
            return [choice.message.content for choice in answer.choices]

        assert await say(seed=5) == await say(seed=5)
        assert await say(seed=5) != await say(seed=6)
        assert await say() != await say()
        three = await say(seed=5, n=3)
        assert len(set(three)) == 3
        assert three[:1] == await say(seed=5)

    ask(use, served(Voice(by_luck)))


def test_the_team_plays_its_workflow_with_its_own_prompts() -> None:
    voice = Voice(by_luck)
    alone = run(team("planner", "solver", voice=Voice(by_luck)), task=Task(id="yours", prompt="2 + 2?"), sample=3)

    async def use(client: AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model="duo", messages=ASKED, seed=3)
        message = answer.choices[0].message
        planned, solved = alone.turns
        assert message.content == solved.text
        assert message.reasoning_content == f"planner: {planned.text}"  # type: ignore[attr-defined]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
        assert answer.usage.prompt_tokens == len(planned.prompt_ids) + len(solved.prompt_ids)
        with_n = await client.chat.completions.create(model="duo", messages=ASKED, seed=3, n=2)
        assert with_n.choices[0].message.content == solved.text

    ask(use, served(voice))
    assert "You are PLANNER." in voice.heard("planner")[0]
    assert "Be brief." not in voice.heard("planner")[0]


def test_what_a_workflow_says_last_is_the_team_s_answer() -> None:
    async def use(client: AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model="duo", messages=ASKED, logprobs=True)
        message = answer.choices[0].message
        assert message.content == "7"
        assert message.reasoning_content == "planner: 7\n\nsolver: 7"  # type: ignore[attr-defined]

    ask(use, served(Voice(in_turn("7", "7")), vote))


async def asides(game: Game) -> None:
    await game.act("solver")
    await game.act("planner", aside=True)


def test_what_is_said_aside_is_no_answer() -> None:
    async def use(client: AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model="duo", messages=ASKED)
        assert answer.choices[0].message.content == "<solver>"

    ask(use, served(workflow=asides))


@pytest.mark.parametrize(("model", "reasoning"), [("solver", None), ("duo", "planner: <planner>")])
def test_streams_and_responses_say_the_same(model: str, reasoning: str | None) -> None:
    async def use(client: AsyncOpenAI) -> None:
        said, thought, used = "", "", 0
        async for chunk in await client.chat.completions.create(
            model=model, messages=ASKED, stream=True, stream_options={"include_usage": True}
        ):
            for choice in chunk.choices:
                said += choice.delta.content or ""
                thought += getattr(choice.delta, "reasoning_content", "")
            used = chunk.usage.completion_tokens if chunk.usage else used
        assert (said, thought or None) == ("<solver>", reasoning)
        assert used == (4 if reasoning else 2)
        response = await client.responses.create(model=model, input="2 + 2?", instructions="Be brief.")
        assert response.output_text == "<solver>"
        summaries = [part.text for item in response.output if item.type == "reasoning" for part in item.summary]
        assert summaries == ([reasoning] if reasoning else [])
        async with client.responses.stream(model=model, input="2 + 2?") as stream:
            assert (await stream.get_final_response()).output_text == "<solver>"

    ask(use, served())


def test_tools_are_an_agent_s() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'

    async def use(client: AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model="solver", messages=ASKED, tools=[TOOL])
        [choice] = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        with pytest.raises(openai.BadRequestError, match="the team has tools of its own"):
            await client.chat.completions.create(model="duo", messages=ASKED, tools=[TOOL])

    ask(use, served(Voice(in_turn(call))))


@pytest.mark.parametrize("inline", [None, InlineCall(opening="", closing="=")])
def test_an_agent_s_own_tools_do_not_end_its_answer(inline: InlineCall | None) -> None:
    async def never(asked: str) -> str:
        raise AssertionError(asked)

    voice = Voice()
    served_team = served(voice)
    solver = served_team.agents["solver"]
    tools = Tools(by_name={"add": AgentTool(help="", use=never)}, most=2, inline=inline)
    armed = replace(solver, tools=tools, sampling=replace(solver.sampling, stop=("END", *tools.stops)))
    served_team.agents = {**served_team.agents, "solver": armed}

    async def use(client: AsyncOpenAI) -> None:
        await client.chat.completions.create(model="solver", messages=ASKED, stop=["."])

    ask(use, served_team)
    assert voice.requests[0].sampling.stop == ("END", ".")


def test_another_token_is_refused() -> None:
    async def use(client: AsyncOpenAI) -> None:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.models.list()
        assert refused.value.code == "invalid_api_key"

    for key in ("guess", "secre", "secret2"):
        ask(use, served(), token="secret", key=key)

    async def knows(client: AsyncOpenAI) -> None:
        assert (await client.models.list()).data

    ask(knows, served(), token="secret", key="secret")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer s\xe9cret", "Basic secret", "secret"])
def test_a_header_without_the_token(header: str) -> None:
    async def play() -> None:
        async with (
            listening(served(), "secret") as url,
            aiohttp.ClientSession() as http,
            http.get(f"{url}/models", headers={"Authorization": header}) as answer,
        ):
            assert answer.status == 401

    asyncio.run(play())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:8", 200),
        ("[::1", 403),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
def test_a_web_page_s_own_name_does_not_lead_to_it(host: str, status: int) -> None:
    async def play() -> None:
        for token, expected in ((None, status), ("secret", 200)):  # a token is enough
            headers = {"Host": host, "Authorization": "Bearer secret"}
            async with (
                listening(served(), token) as url,
                aiohttp.ClientSession() as http,
                http.get(f"{url}/models", headers=headers) as answer,
            ):
                assert answer.status == expected

    asyncio.run(play())


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("https://127.0.0.1", 200),
        ("http://[::1]:8", 200),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("http://localhost:80@evil.example", 403),
        ("http://[::1", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_a_stranger_s_page_is_refused(origin: str, status: int) -> None:
    async def play() -> None:
        for token, expected in ((None, status), ("secret", 200)):
            headers = {"Origin": origin, "Authorization": "Bearer secret"}
            async with (
                listening(served(), token) as url,
                aiohttp.ClientSession() as http,
                http.post(f"{url}/chat/completions", json=GOOD, headers=headers) as answer,
            ):
                assert answer.status == expected

    asyncio.run(play())


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("text/plain", 415),
        ("text/plain; application/json", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
    ],
)
def test_what_a_form_could_send_is_refused(kind: str, status: int) -> None:
    voice = Voice()

    async def play() -> None:
        for token, expected in ((None, status), ("secret", 200)):
            voice.requests.clear()
            headers = {"Content-Type": kind, "Authorization": "Bearer secret"}
            async with (
                listening(served(voice), token) as url,
                aiohttp.ClientSession() as http,
                http.post(f"{url}/chat/completions", data=json.dumps(GOOD).encode(), headers=headers) as answer,
            ):
                assert (answer.status, bool(voice.requests)) == (expected, expected == 200)

    asyncio.run(play())


GOOD = {"model": "duo", "messages": ASKED}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("body", "status", "line"),
    [
        ({**GOOD, "model": "gpt-4o"}, 404, "there is no model 'gpt-4o'; there are duo, planner, solver"),
        ({**GOOD, "messages": []}, 400, "messages are empty"),
        ({**GOOD, "messages": [{"role": "system", "content": "x"}]}, 400, "the last message of the user"),
        ({**GOOD, "messages": [{"role": "user", "content": " "}]}, 400, "the last message of the user"),
        ({**GOOD, "messages": [{"role": "user", "content": "\ud83d"}]}, 400, "messages[0].content"),
        ({**GOOD, "temperature": -1}, 400, "temperature is a number from 0 to 2"),
        ({**GOOD, "temperature": float("nan")}, 400, "temperature is a number from 0 to 2"),
        ({**GOOD, "temperature": "hot"}, 400, "temperature is a number from 0 to 2"),
        ({**GOOD, "top_p": 0}, 400, "top_p is a number"),
        ({**GOOD, "seed": 1 << 80}, 400, "seed is a whole number"),
        ({**GOOD, "n": 17}, 400, "n is a number from 1 to 16"),
        (b"{" * 100_000, 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"x" * (9 << 20), 413, "at most 8 MiB"),
    ],
)  # fmt: skip
def test_hostile_bodies(body: Any, status: int, line: str) -> None:
    voice = Voice()

    async def play() -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with listening(served(voice)) as url, aiohttp.ClientSession() as http:
            async with http.post(f"{url}/chat/completions", data=data, headers=JSON) as answer:
                error = (await answer.json())["error"]
                assert (answer.status, line in error["message"]) == (status, True), error
            async with http.get(f"{url}/models") as answer:
                assert answer.status == 200

    asyncio.run(play())
    assert voice.requests == []


def test_a_body_that_swells_is_cut() -> None:
    async def play() -> None:
        packed = gzip.compress(b" " * (64 << 20))
        async with listening(served()) as url, aiohttp.ClientSession() as http:
            headers = {**JSON, "Content-Encoding": "gzip"}
            async with http.post(f"{url}/chat/completions", data=packed, headers=headers) as answer:
                assert answer.status == 413

    asyncio.run(play())


class Waits(Voice):
    """Until it is let go on, or given up."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.given_up = asyncio.Event(), asyncio.Event()

    async def generate(self, request: Request) -> Completion:
        self.begun.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        return await super().generate(request)


@pytest.mark.parametrize("model", ["solver", "duo"])
def test_a_client_that_goes_away_takes_its_request_back(model: str) -> None:
    voice = Waits()
    team = served(voice)

    async def use(client: AsyncOpenAI) -> None:
        asked = asyncio.ensure_future(client.chat.completions.create(model=model, messages=ASKED))
        await voice.begun.wait()
        asked.cancel()
        async with asyncio.timeout(5):
            await voice.given_up.wait()
            while team.under_way:
                await asyncio.sleep(0.01)
        await client.models.list()

    ask(use, team)


def test_a_request_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_S", 0.1)
    voice = Waits()

    async def use(client: AsyncOpenAI) -> None:
        with pytest.raises(openai.InternalServerError, match=r"no answer within 0\.1 s") as late:
            await client.chat.completions.create(model="solver", messages=ASKED)
        assert (late.value.status_code, late.value.type) == (504, "server_error")
        assert voice.given_up.is_set()

    ask(use, served(voice))


def test_a_flood_is_refused_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 1)
    voice = Waits()

    async def use(client: AsyncOpenAI) -> None:
        asked = asyncio.ensure_future(client.chat.completions.create(model="solver", messages=ASKED))
        await voice.begun.wait()
        with pytest.raises(openai.RateLimitError, match="at most 1 requests"):
            await client.chat.completions.create(model="solver", messages=ASKED)
        asked.cancel()

    ask(use, served(voice))


class Raises(Voice):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: BaseException | None = error

    async def generate(self, request: Request) -> Completion:
        if (error := self.error) is not None:
            self.error = None
            raise error
        return await super().generate(request)


@pytest.mark.parametrize(
    ("error", "model", "status", "code"),
    [
        (SpeechError("the line is dead"), "solver", 502, "agent_failed"),
        (SpeechError("the line is dead"), "duo", 502, "team_failed"),
        (PromptTooLong(9, 8), "solver", 400, "context_length_exceeded"),
        (ZeroDivisionError("ours"), "solver", 500, "internal_error"),
    ],
)
def test_what_fails_fails_one_request(
    error: BaseException, model: str, status: int, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def use(client: AsyncOpenAI) -> None:
        with pytest.raises(openai.APIStatusError) as failed:
            await client.chat.completions.create(model=model, messages=ASKED)
        assert (failed.value.status_code, failed.value.code) == (status, code)
        answer = await client.chat.completions.create(model=model, messages=ASKED)
        assert answer.choices[0].message.content == "<solver>"

    ask(use, served(Raises(error)))
    assert ("ZeroDivisionError: ours" in capsys.readouterr().err) == (status == 500)  # a bug is loud, for us alone
