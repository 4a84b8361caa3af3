"""The agents of a config: prompt, sampling and tools of each, and the engines that they speak with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from marft import import_paths
from marft.config import AgentConfig, Config, ServerConfig
from marft.engines.absent import AbsentEngine
from marft.engines.base import Engine
from marft.engines.checked import CheckedEngine
from marft.engines.local import LocalEngine
from marft.engines.scripted import ScriptedEngine, find_script
from marft.envs.tools import make_tool
from marft.envs.tools.mcp_server import McpServer
from marft.game.agent import Agent, TextEngine
from marft.game.lockstep import Lockstep, Patience
from marft.game.thoughts import USUAL_MARKERS, ThoughtMarkers
from marft.game.tool_calls import format_of
from marft.game.tools import AgentTool, InlineCall, Tools
from marft.models.chat import ChatFormat
from marft.models.team import TeamModel
from marft.types import ChatOptions, MarftError, Sampling

UNLIMITED = 1 << 30
MOST_CALLS = 4  # of tools in one turn, unless the config says how many
TOOL_DEADLINE = 30.0  # seconds of a call, unless the config says how many


def make_agent(
    config: Config,
    name: str,
    adapter: str | None,
    engine: TextEngine,
    tools: Tools,
    spoken: ChatFormat | None = None,
) -> Agent:
    """An agent of the config with its prompt, sampling settings and tools, which speaks with `engine`, by that adapter.
    `spoken` is its base model's way to write chats, and to mark thoughts and calls."""
    agent = config.team.agents[name]
    written = None if spoken is None else format_of(spoken.template)
    tools = replace(tools, written=written if tools.by_name and not tools.inline else None)
    chat = ChatOptions(arguments=tuple(agent.chat_template_kwargs.items()), tools=tools.schemas)
    sampling = (
        Sampling(max_tokens=UNLIMITED) if agent.kind == "scripted" else agent.sampling
    )  # a script says what it says
    return Agent(
        name=name,
        prompt=None if config.team.anonymous else agent.prompt,
        sees=agent.sees,
        adapter=adapter,
        sampling=replace(sampling, stop=(*agent.stop, *tools.stops)),
        engine=engine,
        tools=tools,
        history=config.team.history,
        chat=chat,
        thoughts=USUAL_MARKERS if spoken is None else ThoughtMarkers(*spoken.thought_markers(chat)),
        call_format=written or "hermes",
    )


class OpenTools:
    """The tools of a team by agent, and the servers that some of them live in: one of each, whoever calls it."""

    def __init__(self, agents: Mapping[str, AgentConfig], lockstep: Lockstep) -> None:
        self._servers: dict[str, McpServer] = {}
        self._agents = frozenset(agents)
        try:
            self.by_agent = {name: self._open(agent, lockstep) for name, agent in agents.items()}
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the servers that were started."""
        for server in self._servers.values():
            server.close()

    def _open(self, agent: AgentConfig, lockstep: Lockstep) -> Tools:
        deadline = agent.tool_deadline or TOOL_DEADLINE
        offered = [pair for each in agent.tools for pair in self._offered(each, deadline)]
        names = [name for name, _ in offered]
        if twice := [name for name in names if names.count(name) > 1]:
            raise MarftError(f"tools: two of them are called {twice[0]!r}; give one of them another name")
        if mates := [name for name in names if name in self._agents]:
            raise MarftError(f"tools: {mates[0]!r} is also an agent's name; give one of them another")
        return Tools(
            by_name={name: in_lockstep(tool, lockstep) for name, tool in offered},
            most=agent.calls or MOST_CALLS,
            inline=inline_call(agent, offered),
        )

    def _offered(self, tool: str | ServerConfig, deadline: float) -> Iterable[tuple[str, AgentTool]]:
        if isinstance(tool, str):
            return [make_tool(tool, deadline)]
        if tool.mcp not in self._servers:
            self._servers[tool.mcp] = McpServer(tool.mcp)
        return self._servers[tool.mcp].tools(deadline)


def inline_call(agent: AgentConfig, offered: Sequence[tuple[str, AgentTool]]) -> InlineCall | None:
    """How an agent calls its only tool in the middle of a message; None where it does otherwise."""
    if agent.inline_call is None:
        return None
    if len(offered) != 1 or offered[0][1].argument is None:
        names = ", ".join(name for name, _ in offered)
        raise MarftError(f"inline_call: it asks one tool that takes one text, and the tools are {names}; drop it")
    opening, closing = agent.inline_call.split("{text}")
    return InlineCall(opening=opening, closing=closing)


def in_lockstep(tool: AgentTool, lockstep: Lockstep) -> AgentTool:
    """The tool, whose answers engines wait for as long as it is quick."""
    use, patience = tool.use, Patience(lockstep)
    return replace(tool, use=lambda asked: patience.reply(use(asked)))


def make_agent_engine(agent: AgentConfig) -> Engine | None:
    """The engine of an agent alone: its script, or its remote endpoint; None where it speaks with a base model."""
    if agent.script is not None:
        return ScriptedEngine(find_script(agent.script), ids=False)
    if remote := agent.remote:
        from marft.engines.openai import OpenAIEngine  # its HTTP library is loaded by those who need it

        return OpenAIEngine(
            remote.url, remote.model, key_env=remote.key_env, timeout=remote.timeout, retries=remote.retries
        )
    return None


# --- engines -----------------------------------------------------------------------------------------------------------
def make_engine(config: Config, team: TeamModel, lockstep: Lockstep, bases: int = 1) -> Engine:
    """The engine that the config names, generating with `team`, one of so many `bases`."""
    if config.only_learns:
        return AbsentEngine(team)
    match config.engine.name:
        case "local":
            memory = config.engine.share / config.engines_beside() / bases
            return LocalEngine(team, config.engine.slots, lockstep.settled, memory=memory, keep=config.kept_turns)
        case "vllm":
            from marft.engines.vllm.engine import make_vllm_engine

            return make_vllm_engine(team, config.engine, lockstep.settled, config.engines_beside())
        case name:
            return open_own_engine(name, team, config.engine.options)


def open_own_engine(name: str, team: TeamModel, options: Mapping[str, Any]) -> Engine:
    """The user's class, made with the base and its adapters."""
    kind = import_paths.find(name, "engine.name")
    try:
        made = kind(team, **options)
    except TypeError as error:
        raise MarftError(f"engine.name: {name!r} cannot be made: {error}") from error
    if missing := [each for each in ("encode", "generate", "publish", "tokens", "close") if not hasattr(made, each)]:
        raise MarftError(f"engine.name: {name!r} is no engine, it has no {missing[0]}; see marft.engines.base.Engine")
    return CheckedEngine(made, int(team.config.vocab_size), name)
