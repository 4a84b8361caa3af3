"""OpenAI's protocol: what clients ask in chat completions, and the answers in their form."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marft.game.messages import read_messages, read_tools
from marft.game.observation import described
from marft.game.tool_calls import Spoken
from marft.types import Message, Turn

MOST_CHOICES = 16
HOTTEST = 2.0  # temperature
COLDEST = 1e-6  # that a distribution can be computed at; below it is 0
TOP_P_LEAST = 1e-6  # of what no token would be left below
FORMATS = ("text", "json_object", "json_schema")
JSON_PROMPT = "Answer with JSON alone."
SCHEMA_PROMPT = "Answer with JSON alone, of this schema:\n{}"


class BadRequest(Exception):
    """What a client asked cannot be done; the status and a code go with the line."""

    def __init__(self, line: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(line)
        self.status, self.code = status, code

    def body(self) -> dict[str, Any]:
        """As clients read errors."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = "server_error" if self.status >= 500 else kinds.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One call of an agent. In training temperature, top_p and seed are the agent's own, whatever the client says."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    choices: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    logprobs: bool = False
    stream: bool = False
    stream_usage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A turn, and the message taken apart; of a whole team the last one, `before` which the others were said."""

    turn: Turn
    spoken: Spoken
    before: tuple[Turn, ...] = ()

    @property
    def reasoning(self) -> str:
        """What the team said before its answer, each turn after its speaker's name."""
        return "\n\n".join(described(turn, named=True) for turn in self.before)

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
    if body.get("functions"):
        raise BadRequest("functions is the older form; write tools")
    stop = body.get("stop") or ()
    with client_errors():
        return ChatRequest(
            model=read_model(body),
            messages=tell_format(read_messages(body.get("messages")), read_format(body)),
            tools=chosen_tools(body.get("tools"), body.get("tool_choice")),
            choices=read_count(body, "n", most=MOST_CHOICES) or 1,
            max_tokens=read_count(body, "max_completion_tokens") or read_count(body, "max_tokens"),
            stop=read_stop((stop,) if isinstance(stop, str) else stop),
            temperature=read_temperature(body),
            top_p=read_number(body, "top_p", TOP_P_LEAST, 1.0),
            seed=read_seed(body),
            logprobs=bool(body.get("logprobs")),
            stream=bool(body.get("stream")),
            stream_usage=bool(section(body, "stream_options").get("include_usage")),
        )


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


def read_number(body: Mapping[str, Any], key: str, least: float, most: float) -> float | None:
    """A number within bounds, or none."""
    number = body.get(key)
    if number is None:
        return None
    if not isinstance(number, int | float) or isinstance(number, bool) or not least <= number <= most:
        raise BadRequest(f"{key} is a number from {least:g} to {most:g}")
    return float(number)


def read_temperature(body: Mapping[str, Any]) -> float | None:
    """0 where it is all but that."""
    temperature = read_number(body, "temperature", 0.0, HOTTEST)
    return 0.0 if temperature is not None and temperature < COLDEST else temperature


def read_seed(body: Mapping[str, Any]) -> int | None:
    """A number of any sign, or none."""
    seed = body.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or abs(seed) >= 1 << 63):
        raise BadRequest("seed is a whole number of 64 bits")
    return seed


def read_stop(given: object) -> tuple[str, ...]:
    """Texts that end a message."""
    if not isinstance(given, list | tuple) or not all(isinstance(text, str) and text for text in given):
        raise BadRequest("stop is a text or a list of texts, none of them empty")
    return tuple(given)


def chosen_tools(given: object, choice: object) -> tuple[Mapping[str, Any], ...]:
    """The tools that the agent is told of. Whether it calls one it decides itself, also where a call is required: its
    samples must be its own."""
    tools = given or ()
    read_tools(tools)
    assert isinstance(tools, Sequence)
    match choice:
        case None | "auto" | "required":
            return tuple(tools)
        case "none":
            return ()
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            if named := tuple(tool for tool in tools if tool["function"]["name"] == name):
                return named
            raise BadRequest(f"tool_choice: tools have no function {name!r}")
    raise BadRequest("tool_choice is auto, none, required or one function")


def read_format(body: Mapping[str, Any]) -> str | None:
    """What `response_format` tells the agent; None where it may say anything."""
    given = section(body, "response_format")
    return format_prompt(given.get("type", "text"), section(given, "json_schema").get("schema"))


def format_prompt(kind: object, schema: object) -> str | None:
    """How an agent is told to answer with JSON. Nothing holds it to that: it is trained on what it says freely."""
    match kind:
        case "text":
            return None
        case "json_object":
            return JSON_PROMPT
        case "json_schema":
            try:
                return SCHEMA_PROMPT.format(json.dumps(schema))
            except RecursionError:
                raise BadRequest("the schema of the format is nested too deeply") from None
    raise BadRequest(f"the format {kind!r} is none of {', '.join(FORMATS)}")


def tell_format(messages: tuple[Message, ...], told: str | None) -> tuple[Message, ...]:
    """Messages whose system message ends with how to answer."""
    if told is None:
        return messages
    first, *rest = messages
    if first.role == "system":
        return (replace(first, content=f"{first.content}\n\n{told}"), *rest)
    return (Message(role="system", content=told), *messages)


class client_errors:  # used as a statement
    """What is wrong with messages or tools is the client's."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError):
            raise BadRequest(str(error)) from None


# --- answers ---------------------------------------------------------------------------------------------------------
def usage(answers: Sequence[Answer]) -> dict[str, int]:
    """Tokens of a request: a prompt counts once, however many choices it was asked for."""
    turns = [turn for answer in answers for turn in (*answer.before, answer.turn)]
    prompt = sum(map(len, {turn.prompt_ids for turn in turns}))
    drawn = sum(len(turn.completion.token_ids) for turn in turns)
    return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}


def assistant_message(answer: Answer) -> dict[str, Any]:
    """What the agent said, in the form of chat completions."""
    spoken = answer.spoken
    message: dict[str, Any] = {"role": "assistant", "content": spoken.content or (None if spoken.calls else "")}
    if spoken.calls:
        message["tool_calls"] = [call.plain() for call in spoken.calls]
    if answer.before:
        message["reasoning_content"] = answer.reasoning
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
