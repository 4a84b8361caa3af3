"""OpenAI's protocol: what clients ask in chat completions and responses, and the answers in their form."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.game.messages import read_messages, read_tools
from marft.game.tool_calls import Spoken
from marft.types import Message, Turn

MOST_CHOICES = 16
REASONING = ("reasoning", "item_reference")  # items of the Responses API that say nothing an agent could read


class BadRequest(Exception):
    """What a client asked cannot be done; the status and a code go with the line."""

    def __init__(self, line: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(line)
        self.status, self.code = status, code

    def body(self) -> dict[str, Any]:
        """As clients read errors."""
        kind = "authentication_error" if self.status == 401 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One call of an agent. Temperature and the like are the agent's own, whatever the client says."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    choices: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    stream: bool = False
    stream_usage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A turn, and the message taken apart."""

    turn: Turn
    spoken: Spoken

    @property
    def finish(self) -> str:
        """Why it ended, in the protocol's words."""
        return "tool_calls" if self.spoken.calls else self.turn.completion.finish


def parse_json(body: bytes) -> Mapping[str, Any]:
    """The object that a request holds."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the request is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRequest("the request is not a JSON object")
    return found


def read_chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """A request for chat completions."""
    kind = section(body, "response_format").get("type", "text")
    if kind != "text":
        raise BadRequest(f"response_format {kind!r} is not offered: agents are trained on what they say freely")
    if body.get("functions"):
        raise BadRequest("functions is the older form; write tools")
    stop = body.get("stop") or ()
    with client_errors():
        return ChatRequest(
            model=read_model(body),
            messages=read_messages(body.get("messages")),
            tools=chosen_tools(body),
            choices=read_count(body, "n", most=MOST_CHOICES) or 1,
            max_tokens=read_count(body, "max_completion_tokens") or read_count(body, "max_tokens"),
            stop=read_stop((stop,) if isinstance(stop, str) else stop),
            logprobs=bool(body.get("logprobs")),
            stream=bool(body.get("stream")),
            stream_usage=bool(section(body, "stream_options").get("include_usage")),
        )


def read_responses_request(body: Mapping[str, Any]) -> ChatRequest:
    """A request of the Responses API: its items become messages."""
    if body.get("previous_response_id") or body.get("conversation"):
        raise BadRequest("nothing is stored here: send the whole conversation as input")
    kind = section(section(body, "text"), "format").get("type", "text")
    if kind != "text":
        raise BadRequest(f"text.format {kind!r} is not offered: agents are trained on what they say freely")
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise BadRequest("input is a text or a list of items")
    messages = list(messages_of_items(items))
    if body.get("instructions"):
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    given_tools = body.get("tools") or []
    if not isinstance(given_tools, list):
        raise BadRequest("tools are a list")
    tools = [
        {
            "type": "function",
            "function": {key: tool[key] for key in ("name", "description", "parameters") if key in tool},
        }
        if isinstance(tool, dict) and tool.get("type") == "function"
        else tool
        for tool in given_tools
    ]
    with client_errors():
        return ChatRequest(
            model=read_model(body),
            messages=read_messages(messages),
            tools=chosen_tools({**body, "tools": tools}),
            max_tokens=read_count(body, "max_output_tokens"),
            stream=bool(body.get("stream")),
        )


def messages_of_items(items: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Messages in the form of chat completions; calls that follow one another are one message's."""
    calls: list[dict[str, Any]] = []
    text: Any = None
    for item in (*items, None):
        if isinstance(item, dict) and item.get("type") == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls.append({"id": item.get("call_id"), "type": "function", "function": function})
            continue
        if calls:
            yield {"role": "assistant", "content": text, "tool_calls": calls}
            calls, text = [], None
        elif text is not None:
            yield {"role": "assistant", "content": text}
            text = None
        if item is None:
            return
        if not isinstance(item, dict):
            raise BadRequest("an item of input is no object")
        if item.get("type") == "function_call_output":
            yield {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        elif item.get("role") == "assistant":
            text = item.get("content")  # its calls may follow
        elif item.get("type") not in REASONING:
            yield {"role": item.get("role"), "content": item.get("content")}


def section(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object inside a request, empty where it is not there."""
    found = body.get(key) or {}
    if not isinstance(found, dict):
        raise BadRequest(f"{key} is not an object")
    return found


def read_model(body: Mapping[str, Any]) -> str:
    """The agent that is asked for."""
    model = body.get("model")
    if not isinstance(model, str):
        raise BadRequest("model is missing; it is the name of an agent")
    return model


def read_count(body: Mapping[str, Any], key: str, most: int | None = None) -> int | None:
    """A positive number, or none."""
    count = body.get(key)
    if count is None:
        return None
    if not isinstance(count, int) or isinstance(count, bool) or count < 1 or (most is not None and count > most):
        raise BadRequest(f"{key} is a number from 1{f' to {most}' if most else ''}")
    return count


def read_stop(given: object) -> tuple[str, ...]:
    """Texts that end a message."""
    if not isinstance(given, list | tuple) or not all(isinstance(text, str) and text for text in given):
        raise BadRequest("stop is a text or a list of texts, none of them empty")
    return tuple(given)


def chosen_tools(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The tools that the agent is told of; none where it shall call none."""
    choice, tools = body.get("tool_choice"), body.get("tools") or ()
    if choice not in (None, "auto", "none"):
        raise BadRequest("tool_choice: an agent decides itself whether it calls a tool; say auto or none")
    read_tools(tools)
    return () if choice == "none" else tuple(tools)


class client_errors:  # used as a statement
    """What is wrong with messages or tools is the client's."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError):
            raise BadRequest(str(error)) from None


# --- answers ---------------------------------------------------------------------------------------------------------
def usage(answers: Sequence[Answer]) -> dict[str, int]:
    """Tokens of a request: the prompt counts once."""
    prompt = len(answers[0].turn.prompt_ids)
    drawn = sum(len(answer.turn.completion.token_ids) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}


def assistant_message(answer: Answer) -> dict[str, Any]:
    """What the agent said, in the form of chat completions."""
    spoken = answer.spoken
    message: dict[str, Any] = {"role": "assistant", "content": spoken.content or (None if spoken.calls else "")}
    if spoken.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in spoken.calls
        ]
    return message


def token_logprobs(answer: Answer) -> dict[str, Any]:
    """Each drawn token by its id, since a token need not be a text, and its log-prob."""
    said = answer.turn.completion
    return {
        "content": [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in zip(said.token_ids, said.logprobs, strict=True)
        ]
    }


def completion_body(request: ChatRequest, answers: Sequence[Answer], number: str) -> dict[str, Any]:
    """The answer of chat completions."""
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [
            {
                "index": i,
                "message": assistant_message(answer),
                "finish_reason": answer.finish,
                "logprobs": token_logprobs(answer) if request.logprobs else None,
            }
            for i, answer in enumerate(answers)
        ],
        "usage": usage(answers),
    }


def completion_chunks(request: ChatRequest, answers: Sequence[Answer], number: str) -> Iterator[dict[str, Any]]:
    """The same as a stream: a chunk with the whole message of each choice, one that ends it, and the usage."""
    common = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": int(time.time())}
    common["model"] = request.model
    for i, answer in enumerate(answers):
        delta = assistant_message(answer)
        for place, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = place
        logprobs = token_logprobs(answer) if request.logprobs else None
        yield {**common, "choices": [{"index": i, "delta": delta, "finish_reason": None, "logprobs": logprobs}]}
        yield {**common, "choices": [{"index": i, "delta": {}, "finish_reason": answer.finish, "logprobs": None}]}
    if request.stream_usage:
        yield {**common, "choices": [], "usage": usage(answers)}


def response_body(request: ChatRequest, answer: Answer, number: str) -> dict[str, Any]:
    """The answer of the Responses API."""
    spoken, counted = answer.spoken, usage([answer])
    output: list[dict[str, Any]] = []
    if spoken.content or not spoken.calls:
        text = {"type": "output_text", "text": spoken.content, "annotations": [], "logprobs": []}
        output.append(
            {"type": "message", "id": f"msg-{number}", "role": "assistant", "status": "completed", "content": [text]}
        )
    output += [
        {
            "type": "function_call", "id": f"fc-{number}-{call.id}", "call_id": call.id, "name": call.name,
            "arguments": call.arguments, "status": "completed",
        }
        for call in spoken.calls
    ]  # fmt: skip
    cut = answer.turn.completion.finish == "length"
    return {
        "id": f"resp-{number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "model": request.model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counted["total_tokens"],
        },
    }
