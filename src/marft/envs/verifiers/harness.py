"""verifiers' chat with tools, in this process: its own loop, without a program that is installed and started each time."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import cache
from types import ModuleType
from typing import Any

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes import ProgramResult, Runtime
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Trace

__all__ = ["Chat"]

NO_LIMIT = httpx.Timeout(None, connect=60.0)  # the program's deadline is the limit


class ChatConfig(HarnessConfig):
    """Nothing beside what every harness has."""


class Chat(Harness[ChatConfig]):
    """What verifiers' harness `null` does: the model speaks and calls tools until it calls none."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: ModelContext, trace: Trace, runtime: Runtime, endpoint: str, secret: str, mcp_urls: dict[str, str],
        data: TaskData, tool_interception_url: str | None = None,
    ) -> ProgramResult:  # fmt: skip
        """One conversation, to its end; how it failed is in the result, as of a program."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages.extend(message_to_wire(message) for message in prompt or [])
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        try:
            await converse(endpoint, secret, ctx.model, messages, servers, tool_interception_url or "")
        except SystemExit as ended:  # how the loop reports a lost connection
            return ProgramResult(exit_code=int(ended.code or 0), stdout="", stderr="the connection was lost")
        except Exception as error:  # a turn that was refused, a tool server that is away
            return ProgramResult(exit_code=1, stdout="", stderr=f"{type(error).__name__}: {error}")
        return ProgramResult(exit_code=0, stdout="", stderr="")


@cache
def chat_program() -> ModuleType:
    """The program that `null` starts. It is one text of several files, which do not work as the modules they are."""
    module = ModuleType("verifiers_chat_program")
    exec(compile(CHAT_PROGRAM_SOURCE, module.__name__, "exec", dont_inherit=True), module.__dict__)
    return module


async def converse(
    endpoint: str, secret: str, model: str, messages: list[dict[str, Any]], servers: Mapping[str, Any], gate: str
) -> None:
    """verifiers' own loop, with the tools of these servers and without a shell."""
    options = Namespace(
        api_key=secret, tool_interception_url=gate, bash=False, edit=False, search=False, serper_key=""
    )  # fmt: skip
    program = chat_program()
    async with AsyncExitStack() as stack:
        # no certificates are read: the endpoint is on the loopback interface
        http = DefaultAsyncHttpxClient(verify=False, timeout=NO_LIMIT)
        client = await stack.enter_async_context(
            AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=NO_LIMIT, http_client=http)
        )
        asking = await stack.enter_async_context(httpx.AsyncClient(verify=False, timeout=NO_LIMIT)) if gate else None
        tools, dispatch, connections = await program.connect_mcp({"mcpServers": servers}, stack)
        compactor = program.Compactor(client, model, tools, False, None)
        compactor.note_good(messages)
        await program.run_chat_loop(options, compactor, messages, dispatch, connections, asking)
