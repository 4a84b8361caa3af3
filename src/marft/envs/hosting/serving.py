"""What a worker process does, however it was started: builds the environment, and answers one question at a time."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from marft.envs import make_env
from marft.envs.base import Environment
from marft.envs.hosting.messages import pack_answer, pack_fault
from marft.game.validation import EnvironmentFault, fault_from_exception, validate_output
from marft.types import MarftError


def build_env(name: str, settings: Mapping[str, Any], path: Sequence[str]) -> Environment[Any] | str:
    """The environment, or one line that says why there is none."""
    sys.path[:] = path
    try:
        return make_env(name, settings)
    except MarftError as error:
        return str(error)


def answer_question(env: Environment[Any], question: bytes) -> bytes:
    """The packed answer to a pickled `(method, arguments)`; whatever goes wrong is an EnvironmentFault."""
    try:
        method, arguments = pickle.loads(question)
        return pack_answer(method, validate_output(method, getattr(env, method)(*arguments)))
    except EnvironmentFault as fault:
        return pack_fault(fault)
    except BaseException as error:  # the user's code: anything may come, SystemExit too
        return pack_fault(fault_from_exception(error))
