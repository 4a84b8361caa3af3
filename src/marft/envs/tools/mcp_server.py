"""Tools of an MCP server: a program that we start and speak with by its standard input and output, or an HTTP address.

The session lives in a thread with an event loop of its own, for a run's loop ends all tasks with each call. One that fails
or is late is asked whether it still answers before the next call, and opened anew where it does not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from marft.envs.tools.calls import read_arguments, result_of, result_text, within
from marft.envs.tools.schema import function_schema, one_line, one_text_argument, tag_help
from marft.game.tools import AgentTool, ToolFailure
from marft.types import MarftError
from marft.untrusted_values import described, quoted, shortened

NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
START_S = 30.0  # that a server has to say what tools it offers
HEALTH_S = 5.0  # that one which failed has to answer
END_S = 10.0  # that a session has to close; a program that goes on is killed within it


def load_mcp() -> ModuleType:
    """The official client library; one line where it is missing."""
    try:
        mcp = import_module("mcp")
        mcp.Client  # noqa: B018  # which older versions do not have
    except (ImportError, AttributeError):
        raise MarftError("tools: an MCP server needs the package mcp, 2 or newer; pip install 'marft[mcp]'") from None
    logging.getLogger("mcp").addHandler(logging.NullHandler())  # what servers say wrongly is nobody's to read here
    return mcp


@dataclass(slots=True)
class Session:
    """An open session, the task that holds it, and what ends it."""

    client: Any
    task: asyncio.Task[None]
    ended: asyncio.Event
    doubtful: bool = False  # a call of it failed or was late


class McpServer:
    """A server by its address: `http://…`, or a command line."""

    def __init__(self, address: str) -> None:
        self.address, self._mcp = address, load_mcp()
        self._session: Session | None = None
        self._holding: set[asyncio.Task[None]] = set()  # sessions that are open, opening or being closed
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the server
        self._loop = asyncio.new_event_loop()
        self._opening = asyncio.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name="marft-mcp", daemon=True)
        self._thread.start()
        try:
            self._offered = asyncio.run_coroutine_threadsafe(self._list_tools(), self._loop).result()
        except MarftError:
            self.close()
            raise

    def tools(self, deadline: float) -> Iterator[tuple[str, AgentTool]]:
        """All that it offers, with the server's own schemas; calls end within so many seconds."""
        for tool in self._offered:
            parameters, description = tool.input_schema, one_line(tool.description or "")
            yield (
                tool.name,
                AgentTool(
                    help=tag_help(tool.name, description, parameters),
                    use=McpCall(self, tool.name, one_text_argument(parameters), deadline),
                    argument=one_text_argument(parameters),
                    schema=function_schema(tool.name, description, parameters),
                ),
            )

    async def call(self, tool: str, arguments: dict[str, Any], deadline: float) -> str:
        """A tool's result, from whichever loop asks."""
        asked = asyncio.run_coroutine_threadsafe(self._call(tool, arguments), self._loop)
        return str(result_of(await within(deadline, asyncio.wrap_future(asked))))

    def close(self) -> None:
        """Ends the session, the program and the thread."""
        if self._loop.is_closed():
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(2 * END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        if not self._thread.is_alive():
            self._loop.close()
        self._errors.close()

    # --- in the thread's loop ----------------------------------------------------------------------------------------
    async def _list_tools(self) -> list[Any]:
        try:
            async with asyncio.timeout(START_S):
                client, found, page = (await self._connected()).client, [], None
                while page is None or page.next_cursor is not None:
                    page = await client.list_tools(cursor=None if page is None else page.next_cursor)
                    found += page.tools
        except TimeoutError:
            raise MarftError(f"tools: the MCP server {self.address!r} did not answer in {START_S:g} seconds") from None
        except ToolFailure as failure:
            raise MarftError(f"tools: {failure}") from None
        except Exception as error:  # the network, or a server's nonsense
            raise MarftError(f"tools: the MCP server {self.address!r} lists no tools: {reason(error)}") from None
        if not found:
            raise MarftError(f"tools: the MCP server {self.address!r} offers no tools")
        if odd := [tool.name for tool in found if not NAME.fullmatch(tool.name)]:  # agents write <name>…</name>
            raise MarftError(f"tools: the MCP server {self.address!r} names a tool {quoted(odd[0])}, which is no name")
        return found

    async def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        session = await self._connected()
        try:
            result = await session.client.call_tool(tool, arguments)
        except asyncio.CancelledError:
            session.doubtful = True
            raise
        except Exception as error:  # the network, or a server's nonsense
            session.doubtful = True
            raise ToolFailure(reason(error), "failed_calls") from None
        texts = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
        text = result_text("\n".join(texts) if texts else result.structured_content)
        if result.is_error:
            raise ToolFailure(text, "failed_calls")
        return text

    async def _connected(self) -> Session:
        """The session, opened anew where it does not answer any more."""
        async with self._opening:
            session = self._session
            if session is not None and (session.task.done() or (session.doubtful and not await answers(session))):
                await self._drop()
            self._session = self._session or await self._open()
            return self._session

    async def _open(self) -> Session:
        opened: asyncio.Future[Any] = self._loop.create_future()
        ended = asyncio.Event()
        task = self._loop.create_task(self._hold(opened, ended))
        self._holding.add(task)
        task.add_done_callback(self._holding.discard)
        try:
            async with asyncio.timeout(START_S):
                return Session(await asyncio.shield(opened), task, ended)
        except TimeoutError:
            why = f"no answer in {START_S:g} seconds"
        except Exception as error:  # it does not exist, ends at once, or speaks something else
            why = reason(error)
        finally:
            if not opened.done():
                task.cancel()
        if said := self._last_words():
            why = f"{why} ({said})"
        raise ToolFailure(f"the MCP server {self.address!r} does not start: {why}", "failed_calls")

    async def _hold(self, opened: asyncio.Future[Any], ended: asyncio.Event) -> None:
        """One task enters and leaves the session, as the library wants it."""
        try:
            async with self._mcp.Client(self._transport()) as client:
                opened.set_result(client)
                await ended.wait()
        except Exception as error:  # the network, or the program
            if not opened.done():
                opened.set_exception(error)

    def _transport(self) -> Any:
        if self.address.startswith(("http://", "https://")):
            return self.address
        command, *arguments = shlex.split(self.address)
        server = self._mcp.StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
        return self._mcp.stdio_client(server, errlog=self._errors)

    async def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.ended.set()
            if not (await asyncio.wait({session.task}, timeout=END_S))[0]:
                session.task.cancel()

    async def _end(self) -> None:
        """No program is left, not even one that never answered."""
        await self._drop()
        for task in self._holding:
            if not task.cancelling():  # a second time would interrupt its tidying up
                task.cancel()
        if self._holding:
            await asyncio.wait(set(self._holding), timeout=END_S)

    def _last_words(self) -> str:
        """The last line that the program wrote to its standard error."""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return shortened(lines[-1], 200) if lines else ""


@dataclass(frozen=True, slots=True)
class McpCall:
    """Asks one tool of a server."""

    server: McpServer
    tool: str
    argument: str | None
    deadline: float

    async def __call__(self, asked: str) -> str:
        arguments = read_arguments(asked) if self.argument is None else {self.argument: asked}
        return await self.server.call(self.tool, arguments, self.deadline)


async def answers(session: Session) -> bool:
    """Whether a server that failed still answers; then it is trusted again."""
    try:
        async with asyncio.timeout(HEALTH_S):
            await session.client.list_tools(cache_mode="bypass")
    except Exception:  # whatever it is, it is no answer
        return False
    session.doubtful = False
    return True


def reason(error: BaseException) -> str:
    """What went wrong at the bottom of groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return described(error)
