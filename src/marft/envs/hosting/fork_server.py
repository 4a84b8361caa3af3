"""A clean process that has built the environment and forks workers from itself: a new worker costs milliseconds.

Run as `python -m marft.envs.hosting.fork_server FD`. Through the socket FD come the environment's name and settings, and then
one socket for each worker that is wanted. It ends when that socket is closed, and its workers end with it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from marft.envs.base import Environment
from marft.envs.hosting.worker import answer_question, build_env
from marft.envs.processes import adopt_orphans, end_with_parent, kill_descendants, parent_watched


def main(control: socket.socket) -> None:
    """Answers whether the environment could be built with None or one line, and then forks for as long as it is asked."""
    adopt_orphans()
    first = Connection(os.dup(control.fileno()))
    with parent_watched():  # nobody sees yet whether our socket is closed
        env = build_env(*first.recv())
    first.send(env if isinstance(env, str) else None)
    if isinstance(env, str):
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers: the kernel buries them
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:  # the other end is closed
            return
        server = os.getpid()
        worker = os.fork()
        if worker == 0:
            control.close()
            os.setsid()  # a group of its own, so that it can be killed with all it started
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an environment may wait for processes of its own
            end_with_parent(server)
            with suppress(EOFError, OSError):  # whoever asked has gone
                serve(env, Connection(descriptors[0]))
            os._exit(0)
        os.close(descriptors[0])
        control.sendall(worker.to_bytes(8, "big"))


def serve(env: Environment[Any], questions: Connection) -> None:
    """What a forked worker does until its connection ends."""
    while True:
        questions.send_bytes(answer_question(env, questions.recv_bytes()))


if __name__ == "__main__":
    try:
        main(socket.socket(fileno=int(sys.argv[1])))
    finally:
        kill_descendants(os.getpid())
