"""Functions as tools: their schemas, what is checked before a call, and calls that raise, hang or say too much."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from marft.envs.tools import calls as calls_module
from marft.envs.tools import make_tool
from marft.envs.tools.function import function_tool
from marft.envs.tools.text import SHOWN
from marft.game.tools import AgentTool, ToolFailure
from marft.types import MarftError


def add(a: int, b: Annotated[int, Field(description="the second number")] = 2) -> int:
    """Adds two numbers.

    Nobody reads this.
    """
    return a + b


async def wait(seconds: float) -> str:
    """Waits."""
    await asyncio.sleep(seconds)
    return "done"


def hang(seconds: float) -> str:
    time.sleep(seconds)
    return "done"


def echo(text: str) -> str:
    """Says it again."""
    return text


@dataclass
class Point:
    x: float
    name: str


def point(name: Literal["a", "b"], scale: float = 1.0) -> Point:
    return Point(scale, name)


def unserialisable(n: int) -> Any:
    return threading.Lock()


def leave(n: int) -> str:
    raise SystemExit(3)


def stop(n: int) -> str:
    raise StopIteration


def half(n: int) -> str:
    return "\ud800" * n


def tool_of(function: Any, deadline: float = 30.0) -> AgentTool:
    return function_tool("m:f", function, deadline)[1]


def use(function: Any, asked: str, deadline: float = 30.0) -> str:
    async def ask() -> str:
        return await tool_of(function, deadline).use(asked)

    return asyncio.run(ask())


def failure(function: Any, asked: str, deadline: float = 30.0) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught:
        use(function, asked, deadline)
    return caught.value


def test_a_signature_is_the_schema() -> None:
    assert json.loads(tool_of(add).schema) == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer"},
                    "b": {"type": "integer", "default": 2, "description": "the second number"},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }


def test_an_argument_may_be_called_title() -> None:
    def book(title: str, n: int) -> str:
        return title

    parameters = json.loads(tool_of(book).schema)["function"]["parameters"]
    assert parameters["properties"] == {"title": {"type": "string"}, "n": {"type": "integer"}}
    assert use(book, '{"title": "Emma", "n": 1}') == "Emma"


def test_several_arguments_are_json_and_one_text_is_itself() -> None:
    assert tool_of(add).argument is None
    assert tool_of(echo).argument == "text"
    assert tool_of(wait).argument is None  # not a text
    assert use(add, '{"a": 3, "b": 4}') == "7"
    assert use(echo, '{"a": 3}') == '{"a": 3}'


def test_the_line_for_tags() -> None:
    assert tool_of(add).help == (
        'add: write <add>{"a": …, "b": …}</add> and its result is shown to you; a: integer; '
        "b: integer, may be left out, the second number. Adds two numbers."
    )
    assert tool_of(echo).help == (
        "echo: write <echo>TEXT</echo> and its result is shown to you; text: string. Says it again."
    )


def test_by_its_name_in_a_config() -> None:
    name, tool = make_tool(f"{__name__}:add", 30.0)
    assert name == "add"
    assert tool.schema == tool_of(add).schema


def test_plain_and_async_functions_are_called() -> None:
    assert use(hang, '{"seconds": 0}') == use(wait, '{"seconds": 0}') == "done"


def test_other_values_are_json() -> None:
    assert use(point, '{"name": "a", "scale": 2}') == '{"x":2.0,"name":"a"}'


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ("3, 4", "the arguments are not JSON: Extra data: line 1 column 2 (char 1)"),
        ("[3, 4]", "the arguments are no JSON object"),
        ('{"b": 4}', "a: Field required"),
        ('{"a": "many"}', "a: Input should be a valid integer, unable to parse string as an integer"),
        ('{"a": 1, "c": 2}', "c: Extra inputs are not permitted"),
    ],
)
def test_arguments_that_do_not_fit_are_told_and_counted(asked: str, line: str) -> None:
    told = failure(add, asked)
    assert (str(told), told.count) == (line, "malformed_calls")


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (leave, "SystemExit: 3"),
        (stop, "StopIteration: "),
        (unserialisable, "it returned lock, which is no JSON: "),
    ],
)
def test_what_it_raises_or_returns_badly_is_told(function: Any, line: str) -> None:
    told = failure(function, '{"n": 1}')
    assert str(told).startswith(line)
    assert told.count == "failed_calls"


def test_results_are_short_and_can_be_encoded() -> None:
    assert len(use(echo, "x" * 5_000)) == SHOWN
    use(half, '{"n": 3}').encode()


@pytest.mark.parametrize("function", [wait, hang])
def test_a_late_call_is_told_counted_and_holds_nobody_up(function: Any) -> None:
    async def both() -> list[Any]:
        tool = tool_of(function, 0.2)
        asked = (tool.use('{"seconds": 1.5}'), tool.use('{"seconds": 0}'))
        return await asyncio.gather(*asked, return_exceptions=True)

    began = time.monotonic()
    late, done = asyncio.run(both())
    assert time.monotonic() - began < 1.2
    assert (str(late), late.count, done) == ("no answer within 0.2 seconds", "late_calls", "done")


def test_too_many_threads_that_never_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MOST_LATE", 1)

    async def twice() -> list[Any]:
        tool = tool_of(hang, 0.05)
        return [
            (await asyncio.gather(tool.use('{"seconds": 0.6}'), return_exceptions=True))[0],
            (await asyncio.gather(tool.use('{"seconds": 0}'), return_exceptions=True))[0],
            await asyncio.sleep(0.8),
            await tool.use('{"seconds": 0}'),
        ]

    late, refused, _, after = asyncio.run(twice())
    assert str(refused) == "1 earlier calls of it have not ended yet"
    assert (late.count, refused.count, after) == ("late_calls", "late_calls", "done")


def test_calls_run_at_once() -> None:
    meeting = threading.Barrier(3, timeout=10)

    def meet(n: int) -> int:
        meeting.wait()
        return n

    async def all_of_them() -> list[str]:
        tool = tool_of(meet)
        return await asyncio.gather(*(tool.use(f'{{"n": {n}}}') for n in range(3)))

    assert asyncio.run(all_of_them()) == ["0", "1", "2"]


def many(*numbers: int) -> int:
    return sum(numbers)


def unsaid(a) -> int:  # type: ignore[no-untyped-def]
    return int(a)


def odd(a: threading.Thread) -> int:
    return 1


def unknown(a: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
    return 1


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (many, "tools: 'm:f' takes *numbers: 'int', which has no name to call it by; give arguments names"),
        (unsaid, "tools: 'm:f' does not say what kind 'a' is; annotate it, as in a: int"),
        (odd, "tools: models cannot give 'm:f' its arguments: Unable to generate pydantic-core schema"),
        (unknown, "tools: the signature of 'm:f' cannot be read: NameError: name 'Nowhere' is not defined"),
        (lambda: 1, "tools: 'm:f' has no name that a model could call; write a plain function"),
    ],
)
def test_what_cannot_be_a_tool_is_one_line(function: Any, line: str) -> None:
    with pytest.raises(MarftError) as caught:
        tool_of(function)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_what_is_neither_class_nor_function_is_one_line() -> None:
    with pytest.raises(MarftError, match="is neither a class nor a function"):
        make_tool(f"{__name__}:SHOWN", 30.0)
