"""The endpoint: OpenAI's protocol, one key an episode, and what clients may not do."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
import toys
from voices import Voice, in_turn, run, team

from marft.game.play import Game
from marft.programs import endpoint as module
from marft.programs.endpoint import Endpoint, Session
from marft.programs.protocol import chosen_tools
from marft.types import Completion, Episode, Request, SpeechError

ASKED = [{"role": "user", "content": "2 + 2?"}]
Client = Callable[..., Awaitable[tuple[int, Any]]]


def with_client(
    use: Callable[[Session, Client], Awaitable[None]],
    voice: Voice | None = None,
    endpoint: Endpoint | None = None,
    **how: Any,
) -> Episode:
    """An episode in which `use` speaks to the endpoint as any client would."""

    async def workflow(game: Game) -> None:
        served = endpoint or Endpoint()
        session = await served.open(game)
        async with aiohttp.ClientSession() as http:

            async def post(
                path: str, body: Any = None, key: str | None = None, method: str = "POST"
            ) -> tuple[int, Any]:
                headers = {"Authorization": f"Bearer {key or session.api_key}"}
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                url = session.base_url + path
                async with http.request(
                    method, url, data=data if method == "POST" else None, headers=headers
                ) as answer:
                    text = await answer.text()
                    return answer.status, json.loads(text) if "json" in answer.content_type else text

            try:
                await use(session, post)
            finally:
                await served.close(session)

    return run(team("planner", "solver", voice=voice or Voice()), workflow, env=toys.Echo(), **how)


def test_a_call_is_a_turn_of_the_agent_it_names() -> None:
    async def use(session: Session, post: Client) -> None:
        status, answer = await post("/chat/completions", {"model": "solver", "messages": ASKED, "temperature": 0})
        assert status == 200
        assert answer["object"] == "chat.completion"
        [choice] = answer["choices"]
        assert choice == {
            "index": 0, "message": {"role": "assistant", "content": "<solver>"}, "finish_reason": "stop", "logprobs": None,
        }  # fmt: skip
        assert answer["usage"]["completion_tokens"] == 2

    [turn] = with_client(use).turns
    assert (turn.agent, turn.text, turn.aside) == ("solver", "<solver>", True)
    assert turn.observation[0].content == "2 + 2?"
    assert turn.completion.token_ids == (1, 2)


def test_choices_logprobs_and_limits() -> None:
    voice = Voice(in_turn("4", "5", "6"))

    async def use(session: Session, post: Client) -> None:
        body = {"model": "planner", "messages": ASKED, "n": 3, "logprobs": True, "max_tokens": 5, "stop": "."}
        status, answer = await post("/chat/completions", body)
        assert status == 200
        assert sorted(choice["message"]["content"] for choice in answer["choices"]) == ["4", "5", "6"]
        first = answer["choices"][0]["logprobs"]["content"]
        assert [(each["token"], each["logprob"]) for each in first] == [("token_id:1", -0.5), ("token_id:2", -0.1)]

    assert len(with_client(use, voice).turns) == 3
    assert {(r.sampling.max_tokens, r.sampling.stop) for r in voice.requests} == {(5, (".",))}
    assert len({r.seed for r in voice.requests}) == 3


def test_a_stream_says_the_same() -> None:
    async def use(session: Session, post: Client) -> None:
        body = {"model": "solver", "messages": ASKED, "stream": True, "stream_options": {"include_usage": True}}
        status, text = await post("/chat/completions", body)
        assert status == 200
        *chunks, done = [line.removeprefix("data: ") for line in text.strip().split("\n\n")]
        assert done == "[DONE]"
        parts = [json.loads(chunk) for chunk in chunks]
        assert parts[0]["choices"][0]["delta"]["content"] == "<solver>"
        assert parts[1]["choices"][0]["finish_reason"] == "stop"
        assert parts[2]["usage"]["total_tokens"] > 0

    assert len(with_client(use).turns) == 1


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_calls_of_tools() -> None:
    voice = Voice(in_turn(CALL, "2"))

    async def use(session: Session, post: Client) -> None:
        _, answer = await post("/chat/completions", {"model": "solver", "messages": ASKED, "tools": [TOOL]})
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "tool_calls"
        [call] = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        messages = [*ASKED, choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "2"}]
        _, answer = await post("/chat/completions", {"model": "solver", "messages": messages, "tools": [TOOL]})
        assert answer["choices"][0]["message"]["content"] == "2"

    turns = with_client(use, voice).turns
    assert turns[1].observation[1].calls[0].name == "add"
    assert turns[1].observation[2].answers == turns[1].observation[1].calls[0].id


@pytest.mark.parametrize(
    "said", ['<tool_call>{"name"</tool_call>', f"{CALL}<tool_call>no</tool_call>", CALL.replace("1", '"\\ud83d"')]
)
def test_a_malformed_call_is_shown_to_the_program_as_it_was_said(said: str) -> None:
    async def use(session: Session, post: Client) -> None:
        _, answer = await post("/chat/completions", {"model": "solver", "messages": ASKED, "tools": [TOOL]})
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": said}

    with_client(use, Voice(in_turn(said)))


def test_the_responses_api() -> None:
    voice = Voice(in_turn(CALL, "<think>hm</think>2"))

    async def use(session: Session, post: Client) -> None:
        tool = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
        body = {"model": "solver", "instructions": "Add.", "input": "1 + 1?", "tools": [tool]}
        status, answer = await post("/responses", body)
        assert status == 200
        [call] = answer["output"]
        assert (call["type"], call["name"]) == ("function_call", "add")
        body["input"] = [
            {"role": "user", "content": [{"type": "input_text", "text": "1 + 1?"}]},
            call,
            {"type": "function_call_output", "call_id": call["call_id"], "output": "2"},
        ]
        _, answer = await post("/responses", body)
        assert answer["output"][0]["content"][0]["text"] == "2"
        assert answer["status"] == "completed"

    first, second = with_client(use, voice).turns
    assert [m.role for m in first.observation] == ["system", "user"]
    assert [m.role for m in second.observation] == ["system", "user", "assistant", "tool"]


def events_of(text: str) -> list[dict[str, Any]]:
    """The server-sent events of a response, each named as its data is."""
    found = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_a_streamed_response_says_the_same() -> None:
    voice = Voice(in_turn(f"I add.{CALL}"))

    async def use(session: Session, post: Client) -> None:
        tool = {"type": "function", "name": "add", "parameters": {"type": "object"}}
        status, text = await post("/responses", {"model": "solver", "input": "1?", "tools": [tool], "stream": True})
        assert status == 200
        events = events_of(text)
        of_item = ["output_item.added", "{}.delta", "{}.done", "output_item.done"]
        assert [event["type"].removeprefix("response.") for event in events] == [
            "created", "in_progress",
            "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
            "output_item.done",
            *(name.format("function_call_arguments") for name in of_item),
            "completed",
        ]  # fmt: skip
        assert events[0]["response"]["output"] == []
        said, call = events[-1]["response"]["output"]
        assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == [said, call]
        assert said["content"][0]["text"] == events[4]["delta"] == "I add."
        assert call["arguments"] == events[9]["delta"] == '{"a": 1}'
        assert {event["item_id"] for event in events[3:7]} == {said["id"]}

    assert len(with_client(use, voice).turns) == 1


@pytest.mark.parametrize(("limit", "status"), [({}, "completed"), ({"max_output_tokens": 2}, "incomplete")])
def test_a_response_is_incomplete_where_the_client_s_own_limit_cut_it(limit: dict[str, int], status: str) -> None:
    class Rambles(Voice):
        async def generate(self, request: Request) -> Completion:
            return replace(await super().generate(request), finish="length")

    async def use(session: Session, post: Client) -> None:
        _, answer = await post("/responses", {"model": "solver", "input": "1?", **limit})
        assert answer["status"] == status
        _, text = await post("/responses", {"model": "solver", "input": "1?", "stream": True, **limit})
        assert events_of(text)[-1]["type"] == f"response.{status}"

    with_client(use, Rambles())


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (None, ["add", "sub"]),
        ("auto", ["add", "sub"]),
        ("required", ["add", "sub"]),
        ("none", []),
        ({"type": "function", "function": {"name": "sub"}}, ["sub"]),
        ({"type": "function", "name": "sub"}, ["sub"]),
    ],
)
def test_which_tools_an_agent_is_told_of(choice: object, told: list[str]) -> None:
    given = [{"type": "function", "function": {"name": name}} for name in ("add", "sub")]
    assert [tool["function"]["name"] for tool in chosen_tools(given, choice)] == told


SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/chat/completions", {"messages": ASKED, "response_format": {"type": "text"}}, None),
        ("/chat/completions", {"messages": ASKED, "response_format": {"type": "json_object"}}, "Answer with JSON alone."),
        ("/chat/completions", {"messages": [{"role": "system", "content": "Add."}, *ASKED], "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}, json.dumps(SCHEMA)),
        ("/responses", {"instructions": "Add.", "input": "2 + 2?", "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}}, json.dumps(SCHEMA)),
    ],
)  # fmt: skip
def test_an_agent_is_told_the_form_of_its_answer(path: str, body: dict[str, Any], told: str | None) -> None:
    async def use(session: Session, post: Client) -> None:
        status, _ = await post(path, {"model": "solver", **body})
        assert status == 200

    [turn] = with_client(use).turns
    *system, asked = turn.observation
    assert asked.content == "2 + 2?"
    assert [message.role for message in system] == ["system"] * (told is not None)
    if told is not None:
        own = "instructions" in body or len(body.get("messages", ())) > 1
        assert system[0].content.startswith("Add.\n\n") == own
        assert system[0].content.endswith(told)


def test_who_is_on_the_team() -> None:
    async def use(session: Session, post: Client) -> None:
        _, answer = await post("/models", method="GET")
        assert [model["id"] for model in answer["data"]] == ["planner", "solver"]

    with_client(use)


@pytest.mark.parametrize(
    ("path", "body", "status", "line"),
    [
        ("/chat/completions", {"model": "gpt-4o", "messages": ASKED}, 404, "no agent is called 'gpt-4o'; the team has planner, solver"),
        ("/chat/completions", {"messages": ASKED}, 400, "model is missing"),
        ("/chat/completions", {"model": "solver"}, 400, "messages are a list"),
        ("/chat/completions", {"model": "solver", "messages": [{"role": "x"}]}, 400, "role is none of"),
        ("/chat/completions", {"model": "solver", "messages": ASKED, "n": 1000}, 400, "n is a number from 1 to 16"),
        ("/chat/completions", {"model": "solver", "messages": ASKED, "n": True}, 400, "n is a number"),
        ("/chat/completions", {"model": "solver", "messages": ASKED, "max_tokens": -1}, 400, "max_tokens is a number"),
        ("/chat/completions", {"model": "solver", "messages": ASKED, "stop": [""]}, 400, "stop is"),
        ("/chat/completions", {"model": "solver", "messages": ASKED, "response_format": {"type": "xml"}}, 400, "the format 'xml' is none of text"),
        ("/chat/completions", {"model": "solver", "messages": ASKED, "response_format": [1]}, 400, "response_format is not an object"),
        ("/chat/completions", {"model": "solver", "messages": ASKED, "tool_choice": "always"}, 400, "tool_choice is auto, none"),
        ("/chat/completions", {"model": "solver", "messages": ASKED, "tool_choice": {"type": "function", "function": {"name": "sub"}}}, 400, "tools have no function 'sub'"),
        ("/chat/completions", {"model": "solver", "messages": ASKED, "tools": [3]}, 400, "tools"),
        ("/chat/completions", b"{", 400, "not JSON"),
        ("/chat/completions", b"[]", 400, "not a JSON object"),
        ("/chat/completions", b"x" * (9 << 20), 413, "at most 8 MiB"),
        ("/responses", {"model": "solver", "input": [3]}, 400, "no object"),
        ("/responses", {"model": "gpt-4o", "input": "x", "stream": True}, 404, "no agent is called 'gpt-4o'"),
        ("/responses", {"model": "solver", "input": "x", "text": {"format": {"type": "grammar"}}}, 400, "the format 'grammar' is none of text"),
        ("/responses", {"model": "solver", "input": "x", "previous_response_id": "r"}, 400, "nothing is stored"),
        ("/embeddings", {}, 404, "is not offered"),
        ("/reward", {"reward": float("nan")}, 400, "finite number"),
        ("/reward", {"reward": "1"}, 400, "finite number"),
    ],
)  # fmt: skip
def test_what_a_client_does_wrong_it_is_told(path: str, body: Any, status: int, line: str) -> None:
    async def use(session: Session, post: Client) -> None:
        got, answer = await post(path, body)
        assert got == status
        assert line in answer["error"]["message"]

    assert with_client(use).turns == ()


def test_another_key_opens_nothing() -> None:
    other = Endpoint()

    async def use(session: Session, post: Client) -> None:
        async def inner(game: Game) -> None:
            second = await other.open(game)
            await other.close(second)
            for key in ("", "guess", second.api_key):  # one of an episode that is over
                status, answer = await post("/chat/completions", {"model": "solver", "messages": ASKED}, key or "x")
                assert (status, answer["error"]["code"]) == (401, "invalid_api_key")

        await inner(session.game)

    assert with_client(use, endpoint=other).turns == ()


def test_a_flood_is_refused_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 2)

    class Waits(Voice):
        async def generate(self, request: Request) -> Completion:
            await asyncio.sleep(0.05)
            return await super().generate(request)

    async def use(session: Session, post: Client) -> None:
        body = {"model": "solver", "messages": ASKED}
        found = await asyncio.gather(*(post("/chat/completions", body) for _ in range(6)))
        assert sorted(status for status, _ in found) == [200, 200, 429, 429, 429, 429]

    assert len(with_client(use, Waits()).turns) == 2


def test_an_agent_that_cannot_speak_ends_the_episode() -> None:
    class Mute(Voice):
        async def generate(self, request: Request) -> Completion:
            raise SpeechError("the line is dead")

    async def use(session: Session, post: Client) -> None:
        status, answer = await post("/chat/completions", {"model": "solver", "messages": ASKED})
        assert (status, answer["error"]["code"]) == (409, "episode_over")
        await session.broken

    assert with_client(use, Mute(), ended="failed").error == "solver: the line is dead"


def test_a_client_that_hangs_up_in_mid_stream_has_had_its_turn() -> None:
    async def use(session: Session, post: Client) -> None:
        address = session.base_url.split("/")[2].split(":")
        _, writer = await asyncio.open_connection(address[0], int(address[1]))
        body = json.dumps({"model": "solver", "messages": ASKED, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {session.api_key}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if session.game.turns:
                break
        status, _ = await post("/models", method="GET")
        assert status == 200

    assert len(with_client(use).turns) == 1


def test_it_listens_on_loopback_while_an_episode_is_open_and_no_longer() -> None:
    async def use(session: Session, post: Client) -> None:
        assert session.base_url.startswith("http://127.0.0.1:")
        urls.append(session.base_url)

    urls: list[str] = []
    with_client(use)

    async def knock() -> None:
        host, port = urls[0].split("/")[2].split(":")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))

    asyncio.run(knock())


def test_all_episodes_of_a_play_may_knock_at_once() -> None:
    async def use(session: Session, post: Client) -> None:
        host, port = session.base_url.split("/")[2].split(":")
        with ExitStack() as knocking:
            for _ in range(400):  # this loop takes none of them meanwhile
                knocking.enter_context(socket.create_connection((host, int(port)), timeout=2))
        status, _ = await post("/models", method="GET")
        assert status == 200

    with_client(use)
