"""What an agent may use in the middle of its turn: it writes a call, reads the result, and speaks on."""

from __future__ import annotations

import inspect

from marft import import_paths
from marft.envs.tools.calls import Threads, result_text
from marft.envs.tools.schema import function_schema, one_line, text_parameters
from marft.envs.tools.text import Tool, text_tool
from marft.game.tools import AgentTool
from marft.types import MarftError


def make_tool(name: str, deadline: float) -> tuple[str, AgentTool]:
    """The tool that a config calls `name`, by the name that agents call it; one that cannot work on this machine is refused
    here, in one line."""
    match name:
        case "calculator":
            from marft.envs.tools.calculator import Calculator

            return offer(Calculator(), "expression", deadline)
        case "python":
            from marft.envs.tools.python import Python

            return offer(Python(), "code", deadline)
    found = import_paths.find(name, "tools")
    if inspect.isclass(found):
        return offer(text_tool(name, found), "text", deadline)
    if not callable(found):
        raise MarftError(f"tools: {name!r} is neither a class nor a function")
    from marft.envs.tools.function import function_tool

    return function_tool(name, found, deadline)


def offer(tool: Tool, argument: str, deadline: float) -> tuple[str, AgentTool]:
    """A tool that is asked with a text, which models call `argument`; each call has a thread, so that several run at once."""
    threads = Threads(deadline)

    async def use(text: str) -> str:
        return result_text(str(await threads.call(tool.use, text)))

    description = getattr(tool, "description", tool.help)
    schema = function_schema(tool.name, one_line(str(description)), text_parameters(argument))
    return tool.name, AgentTool(help=tool.help, use=use, argument=argument, schema=schema)
