"""A clean process that has built the environment and forks workers from itself: a new worker costs milliseconds.

Run as `python -m marft.envs.hosting.nursery FD`. Through the socket FD come the environment's name and settings, and then
one socket for each worker that is wanted. It ends when that socket is closed, and its workers end with it.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from marft.envs import make_env
from marft.envs.base import Environment
from marft.game.world import Fault
from marft.types import MarftError

PR_SET_PDEATHSIG = 1  # of prctl(2)


def main(control: socket.socket) -> None:
    env = build(Connection(os.dup(control.fileno())))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers: the kernel buries them
    while env is not None:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:  # the other end is closed
            return
        worker = os.fork()
        if worker == 0:
            control.close()
            die_with(os.getppid())
            with suppress(EOFError, OSError):  # whoever asked has gone
                serve(env, Connection(descriptors[0]))
            os._exit(0)
        os.close(descriptors[0])
        control.sendall(worker.to_bytes(8, "big"))


def build(first: Connection) -> Environment[Any] | None:
    """The environment; whether it could be built is answered with None or one line."""
    name, settings, sys.path[:] = first.recv()
    try:
        env = make_env(name, settings)
    except MarftError as error:
        first.send(str(error))
        return None
    first.send(None)
    return env


def die_with(parent: int) -> None:
    """A group of its own, so that it can be killed with all it started; and no life after the nursery's."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an environment may wait for processes of its own
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def serve(env: Environment[Any], questions: Connection) -> None:
    while True:
        question = questions.recv_bytes()
        try:
            method, arguments = pickle.loads(question)
            answer = getattr(env, method)(*arguments)
        except BaseException as error:  # the user's code: anything may come, SystemExit too
            answer = Fault("raised", f"raised {type(error).__name__}: {error}", traceback.format_exc())
        try:
            questions.send(answer)
        except Exception as error:  # pickle raises what it likes
            kind = type(answer).__name__
            questions.send(Fault("raised", f"returned {kind}, which cannot be pickled: {error}", ""))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
