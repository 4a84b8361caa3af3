"""Tasks and rewards: environments by name, and the class to make your own from."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from marft import import_paths
from marft.config.section import nearest
from marft.envs.base import Environment
from marft.types import MarftError
from marft.untrusted_values import described, escaped

BUILT_IN = {
    "arithmetic": "marft.envs.arithmetic:Arithmetic",
    "math": "marft.envs.math:Math",
    "code": "marft.envs.code:Code",
    "reasoning": "marft.envs.reasoning:Reasoning",
    "pettingzoo": "marft.envs.pettingzoo:PettingZoo",
    "verifiers": "marft.envs.verifiers:Verifiers",
    "gymnasium": "marft.envs.gymnasium:Gymnasium",
    "textarena": "marft.envs.textarena:TextArena",
    "openenv": "marft.envs.openenv:OpenEnv",
}

EXAMPLES = {  # of settings that built-in environments cannot do without
    "math": {"data": "env.data=gsm8k or env.data=FILE.jsonl"},
    "code": {"data": "env.data=mbpp or env.data=FILE.jsonl"},
    "reasoning": {"task": "env.task=chain_sum"},
    "pettingzoo": {"game": "env.game=pettingzoo.classic.tictactoe_v3", "agents": "env.agents=[x, o]"},
    "verifiers": {"environment": "env.environment=gsm8k"},
    "gymnasium": {"id": "env.id=FrozenLake-v1", "agents": "env.agents=[player]"},
    "textarena": {"id": "env.id=TicTacToe-v0", "agents": "env.agents=[x, o]"},
    "openenv": {"url": "env.url=http://127.0.0.1:8000", "agents": "env.agents=[player]"},
}


def make_env(name: str, settings: Mapping[str, Any]) -> Environment[Any]:
    """The environment of a config: a built-in name, or the user's own class as `package.module:Class`."""
    target = BUILT_IN.get(name, name)
    if ":" not in target:
        from marft.envs.suggestions import hint_for_env

        hint = hint_for_env(name, BUILT_IN)
        raise MarftError(f"unknown environment {name!r}{hint}; use {', '.join(BUILT_IN)} or package.module:Class")
    kind = import_paths.find(target, "env.name")
    if not isinstance(kind, type) or not issubclass(kind, Environment):
        raise MarftError(f"env.name: {target!r} is not a marft.Environment")
    parameters = inspect.signature(kind).parameters
    for key in settings:
        if key not in parameters:
            known = ", ".join(parameters) or "none"
            raise MarftError(
                f"unknown key 'env.{key}'{nearest(key, parameters, prefix=['env'])}; settings of {name}: {known}"
            )
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in settings and parameter.kind != parameter.VAR_KEYWORD:
            example = EXAMPLES.get(name, {}).get(key)
            raise MarftError(f"env.{key} is missing; {name} needs it{f', as in {example}' if example else ''}")
    try:
        return kind(**settings)
    except MarftError:
        raise
    except SystemExit as error:
        raise MarftError(f"env: it ends the process: {described(error)}") from error
    except Exception as error:  # the user's code: anything may come
        raise MarftError(f"env: {error_message(error)}") from error


def error_message(error: BaseException) -> str:
    """What a constructor says of its settings, or at least of what kind it is."""
    try:
        return escaped(str(error)) or type(error).__name__
    except Exception:  # the user's code
        return described(error)
