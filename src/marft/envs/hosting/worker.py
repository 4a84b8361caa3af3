"""What a worker process does, however it was started: builds the environment, and answers one question at a time.

As a program of its own it is `python -m marft.envs.hosting.worker`, driven by `SpawnedWorker`: the environment's name and
settings come by standard input, then questions; answers go to standard output. It ends when its input does, also in the
middle of a question: that is how it ends with the process that asks.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from marft.envs import make_env
from marft.envs.base import Environment
from marft.envs.hosting.messages import pack_answer, pack_fault
from marft.envs.processes import adopt_orphans, claim_stdout, read_frames, receive_in_thread, to_frame
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


def main() -> None:
    """A thread reads the questions: the main thread belongs to the environment."""
    adopt_orphans()
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(claim_stdout(prints_to=2), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # an environment reads what it likes, but not our messages
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    receive_in_thread(read_frames(asked), questions.put)
    env = build_env(*pickle.loads(questions.get()))
    answer = pickle.dumps(env if isinstance(env, str) else None)
    with suppress(OSError):  # whoever asked has gone
        while True:
            answers.write(to_frame(answer))
            answers.flush()
            if isinstance(env, str):
                return
            answer = answer_question(env, questions.get())


if __name__ == "__main__":
    main()
