"""verifiers' environments and tasks by name, with its mistakes in one line."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

from marft.types import MarftError

CHAT = "marft_chat"  # our harness, by the name under which verifiers finds it
LIBRARY = "verifiers.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is loaded: a taskset's package, the `[env]` section beside it, and who plays which role."""

    environment: str
    arguments: dict[str, Any]
    size: int | None
    agents: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """For other processes."""
        return asdict(self)


def require_library() -> None:
    """MarftError where verifiers is not installed, or is older than what we speak to."""
    if find_spec("verifiers") is None or find_spec(LIBRARY) is None:
        raise MarftError("env: verifiers needs verifiers 0.4; pip install 'marft[verifiers]'")


def load_tasks(source: Source) -> Sequence[Any]:
    """The taskset's tasks, in its own order."""
    from verifiers.v1.utils.loaders import load_taskset, resolve_env_config

    try:
        taskset = load_taskset(resolve_env_config(sections(source, {})).taskset)
        if source.size is not None:
            taskset = taskset.take(source.size)
        if not taskset.bounded:
            raise MarftError(
                f"env.environment: {source.environment} has tasks without end; say how many with env.size=N"
            )
        return list(taskset)
    except MarftError:
        raise
    except Exception as error:  # the user's code and settings: anything may come
        raise MarftError(explained(source, error)) from error


def load_environment(source: Source, team: Sequence[str]) -> Any:
    """The environment, with agents of the team in its roles."""
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    try:
        models = cast_roles(unpinned_roles(source), source.agents, team)
        return load_environment(resolve_env_config(sections(source, models)))
    except MarftError:
        raise
    except Exception as error:  # the user's code and settings: anything may come
        raise MarftError(explained(source, error)) from error


def cast_roles(roles: Sequence[str], agents: Mapping[str, str], team: Sequence[str]) -> dict[str, str]:
    """Which agent plays which role: as `agents` says, by its name, or the team's first where there is but one role."""
    if unknown := [role for role in agents if role not in roles]:
        raise MarftError(f"env.agents: there is no role {unknown[0]!r}; the environment has {', '.join(roles)}")
    cast = {role: agents.get(role, team[0] if len(roles) == 1 and role not in team else role) for role in roles}
    for role, name in cast.items():
        if name not in team:
            raise MarftError(
                f"env.agents: nobody plays {role!r}; say who with env.agents={{{role}: {team[0]}}}, or give it a model and "
                f"a client of its own in env.arguments.{role}"
            )
    return cast


def declared_roles(source: Source) -> dict[str, Any]:
    """The roles of an environment as it declares them."""
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.utils.loaders import env_config_type

    kind = env_config_type(source.environment, str(source.arguments.get("id") or ""))
    return {key: field.default for key, field in kind.model_fields.items() if isinstance(field.default, AgentConfig)}


def unpinned_roles(source: Source) -> list[str]:
    """Roles without a model of their own."""
    given = {role: source.arguments.get(role) or {} for role in declared_roles(source)}
    return [role for role, default in declared_roles(source).items() if not (given[role].get("model") or default.model)]


def sections(source: Source, models: Mapping[str, str]) -> dict[str, Any]:
    """verifiers' `[env]` section: as the user gives it, and a role without a runtime or a harness of its own is played
    here, by a chat with tools."""
    register_harness()
    found = {**source.arguments, "taskset": {**(source.arguments.get("taskset") or {}), "id": source.environment}}
    for role, default in declared_roles(source).items():
        given = dict(source.arguments.get(role) or {})
        if "runtime" not in default.model_fields_set:
            given.setdefault("runtime", {"type": "subprocess"})
        harness = dict(given.get("harness") or {})
        if is_plain_chat(source, harness, default):
            given["harness"] = {**harness, "id": CHAT}
        if role in models:
            given["model"] = models[role]
        found[role] = given
    return found


def is_plain_chat(source: Source, harness: Mapping[str, Any], default: Any) -> bool:
    """Whether a role has no program of its own: none is named, or verifiers' chat, which ours does in this process."""
    from verifiers.v1.utils.loaders import default_harness_id

    if "id" in harness:
        return bool(harness["id"] == "null")
    if default.harness is not None:
        return bool(default.harness.id == "null")
    # verifiers' own default would run a model's commands
    return bool(default_harness_id(source.environment) == "bash")


def register_harness() -> None:
    """verifiers finds harnesses by the name of a module at the top."""
    from marft.envs.verifiers import harness

    sys.modules.setdefault(CHAT, harness)


def explained(source: Source, error: Exception) -> str:
    """Its own words, in one line."""
    said = " ".join(str(error).split())
    return f"env.environment: {source.environment}: {said or type(error).__name__}"
