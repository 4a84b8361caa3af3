"""What is said in Python as a file would say it: classes and functions become names, and are kept by them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from marft.envs.base import Environment
from marft.import_paths import name_of, numbered_name
from marft.types import MarftError

if TYPE_CHECKING:
    from marft.config import Config
    from marft.game.play import Game

EnvSettings: TypeAlias = str | type[Environment[Any]] | Mapping[str, Any]
WorkflowSettings: TypeAlias = "str | Callable[[Game], Awaitable[None]]"
AgentSettings: TypeAlias = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSettings:
    """Settings as a file has them, and by their names the objects that only Python code has."""

    settings: Mapping[str, Any]  # `agents` among the team's
    agents: bool  # whether they stand for a whole team
    objects: Mapping[str, Any]

    def config(self, source: str | Path | None) -> Config:
        """Of a recipe or a file, with these settings on top; given agents are the whole team, nobody is left of the old."""
        from marft.config import merge_settings, parse, read_source

        below = read_source(str(source or "duo"))
        if self.agents:
            below = {**below, "team": {key: v for key, v in below.get("team", {}).items() if key != "agents"}}
        return parse(merge_settings(below, self.settings))


def collect_settings(
    settings: Mapping[str, Any], *, env: EnvSettings | None, workflow: Any, agents: Mapping[str, AgentSettings] | None
) -> PythonSettings:
    """`settings` are sections of the config; the others stand for parts of them."""
    objects: dict[str, Any] = {}
    sections = dict(settings)
    if env is not None:
        sections["env"] = env_settings(env, "env", objects)
    team = dict(sections.get("team", {}))
    if workflow is not None:
        team["workflow"] = workflow
    if agents is not None:
        team["agents"] = agents
    if team:
        sections["team"] = team_settings(team, objects)
    benchmarks = sections["eval"].get("benchmarks") if isinstance(sections.get("eval"), Mapping) else None
    if isinstance(benchmarks, Mapping):
        named = {name: env_settings(each, f"eval.benchmarks.{name}", objects) for name, each in benchmarks.items()}
        sections["eval"] = {**sections["eval"], "benchmarks": named}
    for key in ("algorithm", "credit", "engine"):
        if key in sections:
            sections[key] = choice_settings(sections[key], key, objects)
    return PythonSettings(settings=sections, agents=agents is not None, objects=objects)


def env_settings(env: Any, key: str, objects: dict[str, Any]) -> Any:
    """A class becomes its name; its settings are written to files, so they are plain."""
    if not isinstance(env, Mapping):
        return {"name": env_name(env, key, objects)}
    check_plain_settings(env, key)
    return {**env, "name": env_name(env["name"], f"{key}.name", objects)} if "name" in env else dict(env)


def choice_settings(section: Any, key: str, objects: dict[str, Any]) -> Any:
    """The class of an algorithm, a credit or an engine becomes its name, alone or as `name` of its settings."""
    if isinstance(section, type):
        return {"name": register_object(section, objects)}
    if isinstance(section, Mapping) and isinstance(section.get("name"), type):
        check_plain_settings(section, key)
        return {**section, "name": register_object(section["name"], objects)}
    if not isinstance(section, str | Mapping):
        raise MarftError(object_message(key, section))
    return section


def env_name(env: Any, key: str, objects: dict[str, Any]) -> Any:
    """A class as its name; raises a MarftError for anything that is neither a class nor a name."""
    if isinstance(env, Environment):
        raise MarftError(f"{object_message(key, env)}: every worker process makes its own")
    if isinstance(env, type) and issubclass(env, Environment):
        return register_object(env, objects)
    if not isinstance(env, str):
        raise MarftError(f"{key}: give a name or a subclass of marft.Environment, not {type(env).__name__}")
    return env


def object_message(key: str, given: object) -> str:
    """What to give in place of an object."""
    kind = type(given).__name__
    return f"{key}: give the class, {kind}, and its settings as {{'name': {kind}, …}}, not an object made of it"


def team_settings(team: Mapping[str, Any], objects: dict[str, Any]) -> dict[str, Any]:
    """The team's section with workflow and scripts as names."""
    said = dict(team)
    if "workflow" in said and not isinstance(said["workflow"], str):
        from marft.game.workflows import check_workflow

        check_workflow(said["workflow"], "workflow")
        said["workflow"] = register_object(said["workflow"], objects)
    if isinstance(said.get("agents"), Mapping):
        said["agents"] = {name: agent_settings(agent, name, objects) for name, agent in said["agents"].items()}
    return said


def agent_settings(agent: Any, name: str, objects: dict[str, Any]) -> Any:
    """An agent's settings with its script, and functions and classes among its tools, as names."""
    if not isinstance(agent, Mapping):
        return agent
    said = dict(agent)
    script, tools = said.get("script"), said.get("tools")
    if script is not None and not isinstance(script, str):
        if not callable(script):
            raise MarftError(f"team.agents.{name}.script: give a function of the messages it sees, or its name")
        said["script"] = register_object(script, objects)
    if isinstance(tools, list | tuple):
        said["tools"] = [register_object(tool, objects) if callable(tool) else tool for tool in tools]
    return said


def register_object(given: Any, objects: dict[str, Any]) -> str:
    """Its name, by which it is kept. What one function made several of, or lambdas, are numbered in their order."""
    own = name = name_of(given)
    number = 1
    while objects.setdefault(name, given) != given:
        number += 1
        name = numbered_name(own, number)
    return name


def check_plain_settings(section: Mapping[str, Any], key: str) -> None:
    """Raise a MarftError where a setting beside the name could not be written to YAML."""
    for name, value in section.items():
        if name != "name":
            check_plain(value, f"{key}.{name}")


def check_plain(value: Any, key: str) -> None:
    """Raise a MarftError where a setting could not be written to YAML."""
    match value:
        case None | bool() | int() | float() | str():
            return
        case Mapping():
            for name, each in value.items():
                check_plain(each, f"{key}.{name}")
        case list() | tuple():
            for each in value:
                check_plain(each, key)
        case _:
            raise MarftError(
                f"{key}: settings are saved with the run, so give plain values (numbers, texts, lists, mappings), not "
                f"{type(value).__name__}"
            )
