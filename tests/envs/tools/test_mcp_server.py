"""MCP servers as tools, against a real little one: by its standard input and output, and by HTTP."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from quick import config_of

from marft.config import ServerConfig
from marft.envs.tools import mcp_server
from marft.envs.tools.mcp_server import McpServer
from marft.game.lockstep import Lockstep
from marft.game.tools import ToolFailure
from marft.rollouts.event_loop import one_loop, run_async
from marft.training.agents import OpenTools
from marft.types import MarftError

SOURCE = '''
import os, sys, time
from mcp.server.mcpserver import MCPServer

server = MCPServer("little")

@server.tool()
def add(a: int, b: int) -> int:
    """Adds
    two numbers."""
    return a + b

@server.tool()
def echo(text: str) -> str:
    return text

@server.tool()
def pid(n: int, m: int) -> int:
    return os.getpid()

@server.tool()
async def nap(seconds: float) -> str:
    import anyio
    await anyio.sleep(seconds)
    return "slept"

@server.tool()
def die(now: bool) -> str:
    os._exit(3)

if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run()
'''


@pytest.fixture
def program(tmp_path: Path) -> Path:
    pytest.importorskip("mcp", reason="MCP servers need the package mcp (the extra mcp)")
    path = tmp_path / "server.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def command(program: Path) -> str:
    return shlex.join([sys.executable, str(program)])


def http_server(program: Path, port: int) -> subprocess.Popen[bytes]:
    started = subprocess.Popen(
        [sys.executable, str(program), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for _ in range(300):
        with socket.socket() as door:
            if door.connect_ex(("127.0.0.1", port)) == 0:
                return started
        time.sleep(0.1)
    raise AssertionError("the little server did not start")


@pytest.fixture
def address(program: Path) -> Iterator[str]:
    port = free_port()
    started = http_server(program, port)
    yield f"http://127.0.0.1:{port}/mcp"
    started.kill()
    started.wait()


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


def use(server: McpServer, tool: str, asked: str, deadline: float = 30.0) -> str:
    async def ask() -> str:
        return await dict(server.tools(deadline))[tool].use(asked)

    return run_async(ask())


def failure(server: McpServer, tool: str, asked: str, deadline: float = 30.0) -> ToolFailure:
    with pytest.raises(ToolFailure) as caught:
        use(server, tool, asked, deadline)
    return caught.value


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "marft-mcp"]


def check_use(server: McpServer) -> None:
    """What holds by whatever way a server is reached."""
    tools = dict(server.tools(30.0))
    assert list(tools) == ["add", "echo", "pid", "nap", "die"]
    schema = json.loads(tools["add"].schema)["function"]
    assert (schema["name"], schema["description"]) == ("add", "Adds two numbers.")
    assert schema["parameters"]["required"] == ["a", "b"]
    assert (tools["add"].argument, tools["echo"].argument) == (None, "text")
    assert use(server, "add", '{"a": 2, "b": 3}') == "5"
    assert use(server, "echo", "x" * 3_000) == "x" * 1_000
    wrong = failure(server, "add", '{"a": "many"}')
    assert wrong.count == "failed_calls"
    assert "valid integer" in str(wrong)
    assert failure(server, "add", "2, 3").count == "malformed_calls"

    async def at_once() -> list[str]:
        return await asyncio.gather(*(tools["nap"].use('{"seconds": 0.5}') for _ in range(8)))

    began = time.monotonic()
    assert run_async(at_once()) == ["slept"] * 8
    assert time.monotonic() - began < 3
    late = failure(server, "nap", '{"seconds": 20}', 0.3)
    assert (str(late), late.count) == ("no answer within 0.3 seconds", "late_calls")
    assert use(server, "add", '{"a": 2, "b": 3}') == "5"


def test_a_program_by_its_standard_input_and_output(command: str) -> None:
    with closing(McpServer(command)) as server:
        pid = int(use(server, "pid", '{"n": 1, "m": 2}'))
        check_use(server)
        with one_loop():  # and from another loop, in which tasks end with each call
            assert use(server, "add", '{"a": 2, "b": 3}') == use(server, "add", '{"a": 1, "b": 4}') == "5"
        assert int(use(server, "pid", '{"n": 1, "m": 2}')) == pid  # one session, whatever was late
        assert is_running(pid)
    assert not is_running(pid)
    assert threads() == []
    server.close()  # once more is no mistake


def test_a_server_by_its_address(address: str) -> None:
    with closing(McpServer(address)) as server:
        check_use(server)
    assert threads() == []


def test_a_program_that_dies_is_started_again(command: str) -> None:
    with closing(McpServer(command)) as server:
        first = int(use(server, "pid", '{"n": 1, "m": 2}'))
        died = failure(server, "die", '{"now": true}')
        assert (str(died), died.count) == ("MCPError: Connection closed", "failed_calls")
        second = int(use(server, "pid", '{"n": 1, "m": 2}'))
        assert first != second
    assert not is_running(first)
    assert not is_running(second)
    assert threads() == []


def test_an_address_that_goes_and_comes_back_is_found_again(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    started = http_server(program, port)
    with closing(McpServer(f"http://127.0.0.1:{port}/mcp")) as server:
        assert use(server, "add", '{"a": 2, "b": 3}') == "5"
        started.kill()
        started.wait()
        assert failure(server, "add", '{"a": 2, "b": 3}', 2.0).count in ("failed_calls", "late_calls")
        away = failure(server, "add", '{"a": 2, "b": 3}')
        assert away.count == "failed_calls"
        assert "does not start: ConnectError" in str(away)
        started = http_server(program, port)
        try:
            assert use(server, "add", '{"a": 2, "b": 3}') == "5"
        finally:
            started.kill()
            started.wait()
    assert threads() == []


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("http://127.0.0.1:9/mcp", "tools: the MCP server 'http://127.0.0.1:9/mcp' does not start: ConnectError: "),
        ("no-such-program", "tools: the MCP server 'no-such-program' does not start: FileNotFoundError: "),
        (f"{sys.executable} -c 'raise SystemExit(\"no key\")'", "(no key)"),
    ],
)
def test_a_server_that_does_not_start_is_one_line(address: str, line: str) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the package mcp (the extra mcp)")
    with pytest.raises(MarftError) as caught:
        McpServer(address)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert threads() == []


def test_one_that_never_answers_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the package mcp (the extra mcp)")
    monkeypatch.setattr(mcp_server, "START_S", 1.0)
    with pytest.raises(MarftError, match=r"'sleep 61.25' (did not answer|does not start: no answer) in 1 seconds"):
        McpServer("sleep 61.25")
    assert threads() == []
    listed = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    assert [line for line in listed.splitlines() if line.endswith("sleep 61.25") and line[0] != "Z"] == []


def test_agents_share_a_server_and_it_ends_with_their_tools(command: str) -> None:
    agent: dict[str, Any] = {"tools": [{"mcp": command}, "calculator"], "tool_deadline": 5}
    agents = config_of(team={"agents": {"ann": agent, "bob": agent}}).team.agents
    assert agents["ann"].tools[0] == ServerConfig(mcp=command)
    with closing(OpenTools(agents, Lockstep())) as tools:
        assert len(threads()) == 1
        assert list(tools.by_agent["ann"].by_name) == ["add", "echo", "pid", "nap", "die", "calculator"]

        async def ask(name: str) -> str:
            return await tools.by_agent[name].by_name["pid"].use('{"n": 1, "m": 2}')

        assert run_async(ask("ann")) == run_async(ask("bob"))
    assert threads() == []


def test_without_the_package_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(
        MarftError, match=r"^tools: an MCP server needs the package mcp, 2 or newer; pip install 'marft\[mcp\]'$"
    ):
        McpServer("python server.py")
