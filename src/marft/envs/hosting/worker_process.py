"""What a worker process does, however it was started: builds the environment, and answers one question at a time.

As a program of its own it is `python -m marft.envs.hosting.worker_process`, driven by `SpawnedWorker`: the environment's name
and settings come by standard input, then questions; answers go to standard output. It ends when its input does, also in the
middle of a question: that is how it ends with the process that asks.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from marft.envs import make_env
from marft.envs.base import Environment
from marft.envs.hosting.messages import pack_answer, pack_fault
from marft.game.validation import EnvironmentFault, fault_from_exception, validate_output
from marft.processes import adopt_orphans, claim_stdout, read_frames, receive_in_thread, to_frame
from marft.types import MarftError


def build_env(message: bytes) -> Environment[Any] | str:
    """The environment of a pickled `(name, settings, path)`, or one line that says why there is none."""
    name, settings, sys.path[:] = pickle.loads(message)
    try:
        return make_env(name, settings)
    except MarftError as error:
        return str(error)


def build_answer(env: Environment[Any] | str) -> bytes:
    """What `build_env` gave, for whoever waits for it: an empty frame, or that line."""
    return to_frame(env.encode(errors="backslashreplace") if isinstance(env, str) else b"")


def answer_question(env: Environment[Any], question: bytes) -> bytes:
    """The packed answer to a pickled `(method, arguments)`; whatever goes wrong is an EnvironmentFault."""
    try:
        method, arguments = pickle.loads(question)
        return pack_answer(method, validate_output(method, getattr(env, method)(*arguments)))
    except EnvironmentFault as fault:
        return pack_fault(fault)
    except BaseException as error:  # the user's code: anything may come, SystemExit too
        return pack_fault(fault_from_exception(error))


def serve(env: Environment[Any], questions: Iterable[bytes], send: Callable[[bytes], object]) -> None:
    """Answers one question after another, until nobody asks."""
    for question in questions:
        send(to_frame(answer_question(env, question)))


def main() -> None:
    """A thread reads the questions: the main thread belongs to the environment."""
    adopt_orphans()
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(claim_stdout(prints_to=2), "wb")

    def send(data: bytes) -> None:
        answers.write(data)
        answers.flush()

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # an environment reads what it likes, but not our messages
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    receive_in_thread(read_frames(asked), questions.put)
    env = build_env(questions.get())
    with suppress(OSError):  # whoever asked has gone
        send(build_answer(env))
        if not isinstance(env, str):
            serve(env, iter(questions.get, None), send)


if __name__ == "__main__":
    main()
