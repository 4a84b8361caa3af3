"""OpenAI's Responses API: its items become messages, and answers are items, at once or as a stream of events."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marft.game.messages import read_messages
from marft.programs.protocol import (
    TOP_P_LEAST,
    Answer,
    BadRequest,
    ChatRequest,
    chosen_tools,
    client_errors,
    format_prompt,
    read_count,
    read_model,
    read_number,
    read_temperature,
    section,
    tell_format,
    usage,
)

SILENT = ("reasoning", "item_reference")  # items that say nothing an agent could read
Events = Iterator[dict[str, Any]]


def read_responses_request(body: Mapping[str, Any]) -> ChatRequest:
    """A request of the Responses API."""
    if body.get("previous_response_id") or body.get("conversation"):
        raise BadRequest("nothing is stored here: send the whole conversation as input")
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise BadRequest("input is a text or a list of items")
    messages = list(messages_of_items(items))
    if body.get("instructions"):
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    form = section(section(body, "text"), "format")
    with client_errors():
        return ChatRequest(
            model=read_model(body),
            messages=tell_format(read_messages(messages), format_prompt(form.get("type", "text"), form.get("schema"))),
            tools=chosen_tools(nested_tools(body.get("tools") or []), body.get("tool_choice")),
            max_tokens=read_count(body, "max_output_tokens"),
            temperature=read_temperature(body),
            top_p=read_number(body, "top_p", TOP_P_LEAST, 1.0),
            stream=bool(body.get("stream")),
        )


def nested_tools(given: object) -> list[Any]:
    """Tools in the form of chat completions, where a function's name lies one level deeper."""
    if not isinstance(given, list):
        raise BadRequest("tools are a list")
    return [
        {
            "type": "function",
            "function": {key: tool[key] for key in ("name", "description", "parameters") if key in tool},
        }
        if isinstance(tool, dict) and tool.get("type") == "function"
        else tool
        for tool in given
    ]


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
        elif item.get("type") not in SILENT:
            yield {"role": item.get("role"), "content": item.get("content")}


def output_items(answer: Answer, number: str) -> list[dict[str, Any]]:
    """What the team said before, what the agent said, and a call each."""
    spoken = answer.spoken
    output: list[dict[str, Any]] = []
    if answer.before:
        summary = [{"type": "summary_text", "text": answer.reasoning}]
        output.append({"type": "reasoning", "id": f"rs-{number}", "summary": summary})
    if spoken.content or not spoken.calls:
        text = {"type": "output_text", "text": spoken.content, "annotations": [], "logprobs": []}
        output.append(
            {"type": "message", "id": f"msg-{number}", "role": "assistant", "status": "completed", "content": [text]}
        )
    calls = [
        {
            "type": "function_call", "id": f"fc-{number}-{call.id}", "call_id": call.id, "name": call.name,
            "arguments": call.arguments, "status": "completed",
        }
        for call in spoken.calls
    ]  # fmt: skip
    return output + calls


def response_body(request: ChatRequest, answer: Answer, number: str) -> dict[str, Any]:
    """The answer in one piece."""
    counted = usage([answer])
    # clients give up on what is incomplete, and an agent that goes on until its own limit would never be judged for it
    cut = answer.turn.completion.finish == "length" and request.max_tokens is not None
    return {
        "id": f"resp-{number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "model": request.model,
        "output": output_items(answer, number),
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


def response_events(request: ChatRequest, answer: Answer, number: str) -> Events:
    """The same as a stream: every item is begun, said whole, and ended."""
    body = response_body(request, answer, number)
    begun = {**body, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    items = (item_events(item, place) for place, item in enumerate(body["output"]))
    ended = "response.incomplete" if body["status"] == "incomplete" else "response.completed"
    events = itertools.chain(
        [{"type": "response.created", "response": begun}, {"type": "response.in_progress", "response": begun}],
        itertools.chain.from_iterable(items),
        [{"type": ended, "response": body}],
    )
    for place, event in enumerate(events):
        yield {**event, "sequence_number": place}


def item_events(item: Mapping[str, Any], place: int) -> Events:
    """One item of the output."""
    where = {"item_id": item["id"], "output_index": place}
    if item["type"] == "reasoning":
        yield {"type": "response.output_item.added", "output_index": place, "item": {**item, "summary": []}}
        yield {"type": "response.output_item.done", "output_index": place, "item": item}
        return
    begun = {**item, "status": "in_progress", **({"content": []} if item["type"] == "message" else {"arguments": ""})}
    yield {"type": "response.output_item.added", "output_index": place, "item": begun}
    if item["type"] == "message":
        [part] = item["content"]
        where["content_index"] = 0
        yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
        yield {"type": "response.output_text.delta", **where, "delta": part["text"], "logprobs": []}
        yield {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **where, "part": part}
    else:
        yield {"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]}
        said = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **where, **said}
    yield {"type": "response.output_item.done", "output_index": place, "item": item}
