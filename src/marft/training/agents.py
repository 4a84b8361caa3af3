"""The agents of a config: prompt, sampling and tools of each, and the engines that they speak with."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from marft import import_paths
from marft.config import AgentConfig, Config
from marft.engines.absent import AbsentEngine
from marft.engines.base import Engine
from marft.engines.checked import CheckedEngine
from marft.engines.local import LocalEngine
from marft.engines.scripted import ScriptedEngine, find_script
from marft.envs.tools import Tool, make_tool
from marft.game.agent import Agent, TextEngine
from marft.game.lockstep import Lockstep
from marft.game.thoughts import USUAL_MARKERS, ThoughtMarkers
from marft.game.tool_calls import format_of
from marft.game.tools import AgentTool, Tools
from marft.models.chat import ChatFormat
from marft.models.team import TeamModel
from marft.types import ChatOptions, MarftError, Sampling

UNLIMITED = 1 << 30
MOST_CALLS = 4  # of tools in one turn, unless the config says how many


def make_agent(
    config: Config,
    name: str,
    adapter: str | None,
    engine: TextEngine,
    lockstep: Lockstep,
    team: TeamModel | None = None,
) -> Agent:
    """An agent of the config with its prompt, sampling settings and tools, which speaks with `engine`, by that adapter.
    `team` is its base model, which has its own way to mark thoughts and calls."""
    agent = config.team.agents[name]
    chat = ChatOptions(arguments=tuple(agent.chat_template_kwargs.items()))
    spoken = None if team is None else ChatFormat(team.tokenizer, team.end_ids)
    tools = make_tools(agent, lockstep)
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
        call_format=(None if spoken is None else format_of(spoken.template)) or "hermes",
    )


def make_tools(agent: AgentConfig, lockstep: Lockstep) -> Tools:
    """The agent's tools, each used in a thread, so that several agents' calls run at once."""

    def offer(tool: Tool) -> AgentTool:
        return AgentTool(help=tool.help, use=lambda text: lockstep.reply(asyncio.to_thread(tool.use, text)))

    made = [make_tool(name) for name in agent.tools]
    if twice := [tool.name for tool in made if [other.name for other in made].count(tool.name) > 1]:
        raise MarftError(f"tools: two of them are called {twice[0]!r}; give one of them another name")
    return Tools(by_name={tool.name: offer(tool) for tool in made}, most=agent.calls or MOST_CALLS)


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
            return LocalEngine(team, config.engine.slots, lockstep.settled, memory=memory)
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
