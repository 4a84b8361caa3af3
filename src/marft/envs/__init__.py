"""Tasks and rewards: environments by name, and the class to make your own from."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from marft.envs.base import Environment
from marft.types import MarftError

BUILT_IN = {"arithmetic": "marft.envs.arithmetic:Arithmetic", "gsm8k": "marft.envs.gsm8k:Gsm8k"}


def make_env(name: str, settings: Mapping[str, Any]) -> Environment[Any]:
    """The environment of a config: a built-in name, or the user's own class as `package.module:Class`."""
    target = BUILT_IN.get(name, name)
    if ":" not in target:
        raise MarftError(f"unknown environment {name!r}; use {', '.join(BUILT_IN)} or package.module:Class")
    module, _, attribute = target.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise MarftError(f"env.name: cannot import {target!r}: {error}") from None
    parameters = inspect.signature(kind).parameters
    for key in settings:
        if key not in parameters:
            known = ", ".join(parameters) or "none"
            raise MarftError(f"unknown key 'env.{key}'; settings of {name}: {known}")
    try:
        env = kind(**settings)
    except (TypeError, ValueError) as error:
        raise MarftError(f"env: {error}") from None
    if not isinstance(env, Environment):
        raise MarftError(f"env.name: {target!r} is not a marft.Environment")
    return env
