"""A Python function as a tool: its signature is the schema, and arguments are checked against it before the call."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model

from marft.envs.tools.calls import Threads, read_arguments, result_of, result_text, within
from marft.envs.tools.schema import function_schema, one_text_argument, tag_help
from marft.game.tools import AgentTool, ToolFailure
from marft.types import MarftError
from marft.untrusted_values import described, shortened

MOST_ERRORS = 3  # told at once of arguments that do not fit


def function_tool(path: str, function: Callable[..., Any], deadline: float) -> tuple[str, AgentTool]:
    """The name and the tool of the user's function, which the config calls `path`."""
    name = getattr(function, "__name__", "")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name):
        raise MarftError(f"tools: {path!r} has no name that a model could call; write a plain function")
    model = arguments_model(path, function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of defaults that are no JSON, and are left out
        try:
            parameters = without_titles(model.model_json_schema())
        except (PydanticUserError, TypeError, ValueError) as error:
            raise MarftError(f"tools: {path!r} has no JSON schema: {first_line(error)}") from None
    description = (inspect.getdoc(function) or "").partition("\n")[0]
    argument = one_text_argument(parameters)
    threads = Threads(deadline)

    async def use(asked: str) -> str:
        arguments = dict(checked_arguments(model, read_arguments(asked) if argument is None else {argument: asked}))
        if inspect.iscoroutinefunction(function):
            found = result_of(await within(deadline, function(**arguments)))
        else:
            found = await threads.call(function, **arguments)
        return result_text(found)

    return name, AgentTool(
        help=tag_help(name, description, parameters), use=use, argument=argument,
        schema=function_schema(name, description, parameters),
    )  # fmt: skip


def arguments_model(path: str, function: Callable[..., Any]) -> type[BaseModel]:
    """The function's arguments, each of the kind that it is annotated with; what no model could give is refused."""
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:  # annotations are the user's code
        raise MarftError(f"tools: the signature of {path!r} cannot be read: {described(error)}") from None
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise MarftError(
                f"tools: {path!r} takes {parameter}, which has no name to call it by; give arguments names"
            )
        if parameter.name not in hints:
            raise MarftError(f"tools: {path!r} does not say what kind {parameter.name!r} is; annotate it, as in a: int")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a field may be called as a method of pydantic's
            return create_model("Arguments", __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields)
    except Exception as error:  # annotations may be anything, with hooks of their own
        raise MarftError(f"tools: models cannot give {path!r} its arguments: {first_line(error)}") from None


def checked_arguments(model: type[BaseModel], given: Any) -> BaseModel:
    """Arguments of the right kinds; ToolFailure says which are not."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[:MOST_ERRORS]
        lines = [": ".join(filter(None, [".".join(map(str, each["loc"])), each["msg"]])) for each in wrong]
        raise ToolFailure(shortened("; ".join(lines)), "malformed_calls") from None
    except Exception as error:  # of the user's own validators
        raise ToolFailure(described(error), "malformed_calls") from None


def without_titles(schema: Any) -> Any:
    """A schema less the titles that pydantic makes of names."""
    match schema:
        case {"properties": dict(properties), **others}:
            inner = {key: without_titles(value) for key, value in properties.items()}
            return {**without_titles(others), "properties": inner}
        case dict():
            return {key: without_titles(value) for key, value in schema.items() if key != "title"}
        case list():
            return [without_titles(each) for each in schema]
    return schema


def first_line(error: BaseException) -> str:
    """Of what an error says."""
    return str(error).partition("\n")[0]
