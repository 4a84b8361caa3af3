"""What a worker process does, however it was started: builds the environment, and answers one question at a time."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from marft.envs import make_env
from marft.envs.base import Environment
from marft.envs.hosting.sealing import packed, packed_fault
from marft.game.vetting import Fault, fault_of, vetted
from marft.types import MarftError


def build(name: str, settings: Mapping[str, Any], path: Sequence[str]) -> Environment[Any] | str:
    """The environment, or one line that says why there is none."""
    sys.path[:] = path
    try:
        return make_env(name, settings)
    except MarftError as error:
        return str(error)


def reply(env: Environment[Any], question: bytes) -> bytes:
    """The packed answer to a pickled `(method, arguments)`; whatever goes wrong is a Fault."""
    try:
        method, arguments = pickle.loads(question)
        return packed(method, vetted(method, getattr(env, method)(*arguments)))
    except Fault as fault:
        return packed_fault(fault)
    except BaseException as error:  # the user's code: anything may come, SystemExit too
        return packed_fault(fault_of(error))
