"""What a worker process does, however it was started: builds the environment, and answers one question at a time."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from marft.envs import make_env
from marft.envs.base import Environment
from marft.game.world import Fault
from marft.types import MarftError


def build(name: str, settings: Mapping[str, Any], path: Sequence[str]) -> Environment[Any] | str:
    """The environment, or one line that says why there is none."""
    sys.path[:] = path
    try:
        return make_env(name, settings)
    except MarftError as error:
        return str(error)


def reply(env: Environment[Any], question: bytes) -> bytes:
    """The pickled answer to a pickled `(method, arguments)`; whatever goes wrong is a Fault."""
    try:
        method, arguments = pickle.loads(question)
        answer = getattr(env, method)(*arguments)
    except BaseException as error:  # the user's code: anything may come, SystemExit too
        answer = Fault("raised", f"raised {type(error).__name__}: {error}", traceback.format_exc())
    try:
        return pickle.dumps(answer)
    except Exception as error:  # pickle raises what it likes
        kind = type(answer).__name__
        return pickle.dumps(Fault("raised", f"returned {kind}, which cannot be pickled: {error}", ""))
